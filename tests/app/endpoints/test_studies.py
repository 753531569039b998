"""Studies as a unit: checked, launched, reported with links to dialogues, stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from json_endpoints import JsonEndpoints
from study_data import write_results

from app.commands.evaluation.study import study
from app.common.context import Context
from app.endpoints.studio import Studio
from jobs import studies
from jobs.db import settings
from jobs.db.errors import NotFoundError
from jobs.db.queries import runs
from rl2f_core.common.paths import CONFIGS
from rl2f_core.errors import ConfigError

STUDY = (CONFIGS / "studies" / "tiny.yaml").read_text("utf-8")


@pytest.fixture
def studio(context: Context) -> Any:
    return JsonEndpoints(Studio(context))


def test_a_study_is_launched_as_one_and_its_report_names_the_missing_parts(studio: Any) -> None:
    assert studio.compare.list_studies() == []
    queued = studio.launch.launch_study(yaml=STUDY)
    assert [run["name"] for run in queued[:2]] == ["tiny-warm-up-1-seed-0", "tiny-rl2f-seed-0"] and len(queued) == 6
    assert studio.launch.launch_study(yaml=STUDY) == queued
    assert studio.compare.list_studies() == ["tiny"]
    report = studio.compare.study_report(name="tiny")
    assert report["missing"] == [f"{arm}-seed-{seed}" for seed in (0, 1) for arm in ("rl2f", "contentless")]
    assert [result["finding"] for result in report["hypotheses"]] == ["no result yet"] * 3
    assert report["parts"]["rl2f-seed-0"] == {"run": queued[1]["run"], "status": "queued"}
    for name in ("", "../tiny"):
        with pytest.raises(NotFoundError, match="Known: tiny"):
            studio.compare.study_report(name=name)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ("model.device: cuda", "no CUDA device"),
        ("model.device: tpu", "model.device"),
        ("stages.1.steps: -1", "stages.1.steps"),
        ("stages.1.teacher: nobody", "nobody"),
    ],
)
@pytest.mark.parametrize("start", ["endpoint", "command"])
def test_a_study_whose_first_start_is_refused_leaves_nothing_behind(
    studio: Any, context: Context, tmp_path: Path, changed: str, error: str, start: str
) -> None:
    settings.put(context.db, "slots.cuda", "")
    (file := tmp_path / "refused.yaml").write_text(STUDY.replace("stages.1.teacher: contentless", changed))
    with pytest.raises(ConfigError, match=error):
        if start == "endpoint":
            studio.launch.launch_study(yaml=file.read_text())
        else:
            study(file, workspace=context.workspace.root)
    assert studio.compare.list_studies() == [] and studio.runs.list_runs()["rows"] == []
    assert not (context.workspace.root / "studies").exists()


def test_each_number_of_a_report_links_to_its_dialogues(studio: Any, context: Context) -> None:
    studio.launch.launch_study(yaml=STUDY)
    parts = studies.runs_of(context.queue, "tiny")
    write_results(context.workspace, parts)
    report = studio.compare.study_report(name="tiny")
    first, second, third = report["hypotheses"]
    run, twin = parts["rl2f-seed-1"].id, parts["contentless-seed-1"].id
    assert first["comparison"]["values"] == pytest.approx([0.8, 0.4])
    assert first["comparison"]["difference"]["value"] == pytest.approx(0.6)
    query = "phase=evaluation&checkpoint=rl2f@3&condition=hints"
    assert [side["1"] for side in first["dialogues"]] == [f"/dialogues?run={n}&{query}" for n in (run, twin)]
    assert second["dialogues"][1]["1"] == f"/dialogues?run={run}&{query.replace('rl2f@3', 'warmup@4')}"
    assert third["dialogues"][0]["1"] == f"/dialogues?run={run}&phase=train&stage=rl2f"
    arm = report["arms"][1]
    assert (arm["arm"], arm["row"]["condition"], arm["row"]["values"]) == ("rl2f", "contentless", [0, 0])
    assert arm["dialogues"]["1"] == f"/dialogues?run={run}&{query.replace('hints', 'contentless')}"


@pytest.mark.slow
def test_a_report_is_computed_again_after_the_file_has_changed(studio: Any, context: Context) -> None:
    studio.launch.launch_study(yaml=STUDY)
    write_results(context.workspace, studies.runs_of(context.queue, "tiny"))
    assert studio.compare.study_report(name="tiny")["changes"] == []
    studio.launch.launch_study(yaml=STUDY.replace("smallest_effect: 0.05", "smallest_effect: 0.5"))
    (change,) = studio.compare.study_report(name="tiny")["changes"]
    assert "smallest_effect 0.05 → 0.5" in change


def test_a_study_is_stopped_and_resumed_by_its_name(studio: Any) -> None:
    queued = studio.launch.launch_study(yaml=STUDY)
    stopped = studio.launch.stop_study(name="tiny")
    assert [(run["id"], run["status"]) for run in stopped] == [(run["run"], "stopped") for run in queued]
    assert studio.launch.resume_study(name="tiny") == queued
    assert studio.runs.queue_status()["queued"] == 6
    for call in (studio.launch.stop_study, studio.launch.resume_study):
        with pytest.raises(NotFoundError, match="Unknown study"):
            call(name="other")


def test_the_shipped_studies_are_presets_with_the_size_of_all_runs(studio: Any) -> None:
    """An arm of tiny has 28 dialogues in training and 84 in evaluations: 4 · 112."""
    presets = {preset["name"]: preset for preset in studio.launch.list_study_presets()}
    tiny = presets["tiny"]
    assert (tiny["model"], tiny["runs_on_cpu"], tiny["is_study"]) == ("tiny-random", True, True)
    assert tiny["estimate"]["dialogues"] == 448 and tiny["description"].startswith("A study in a few minutes")
    assert studio.launch.get_preset("tiny") == STUDY
    assert not {*presets} & {preset["name"] for preset in studio.launch.list_presets()}
    assert all(studio.launch.check_config(preset=name)["ok"] for name in presets)


def test_a_study_is_checked_as_a_whole(studio: Any) -> None:
    checked = studio.launch.form_of_yaml(yaml=STUDY)
    assert checked["ok"] and checked["kind"] == "study" and checked["yaml"] == STUDY
    assert checked["command"] == "rl2f study tiny.yaml"
    changed = studio.launch.check_config(yaml=STUDY, overrides={"seeds": [0, 1, 2]})
    assert changed["ok"]
    (error,) = studio.launch.check_config(yaml=STUDY, overrides={"seeds": []})["errors"]
    assert "seeds" in error["message"]
    with pytest.raises(ConfigError, match="Call `launch_study`"):
        studio.launch.launch_run(preset="tiny")
    with pytest.raises(ConfigError, match="needs a matrix of arms"):
        studio.launch.launch_study(yaml=studio.launch.get_preset("quickstart"))


def test_an_arm_outside_the_allow_list_is_refused(studio: Any, context: Context) -> None:
    changed = STUDY.replace("contentless: {stages.1.teacher: contentless}", "other: {model.name: /etc}")
    changed = changed.replace("contentless]", "other]")
    with pytest.raises(ConfigError, match=r"of arm other: model\.name"):
        studio.launch.launch_study(yaml=changed)
    assert runs.page(context.db).total == 0
    assert not studio.launch.check_config(yaml=changed)["ok"]
