"""Copies of the results of finished runs, as `data/results` stores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import CONFIG, write_run

from jobs.export.result_folder import REGISTRATION, collect, collect_study
from rl2f_core.config.loading import dump_yaml, load_config, parse_config
from rl2f_core.errors import DataError, RunError
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.evaluation.study.registration import read_versions
from rl2f_core.evaluation.study.report import read_part
from rl2f_core.run.events import JsonlSink, MetricEvent, StatusEvent

REPORT = EvaluationReport(environment="secret_code", turns=3, tasks=4, samples=1, rows=())


def finished(folder: Path, seed: int = 0, **config: Any) -> Path:
    """A finished run with two metric rows and an evaluation report."""
    run = write_run(folder, [], seed=seed, **config)
    values = [{"reward": 0.123456789, "kl": 0.5}, {"reward": 2.0}]
    events = [MetricEvent(id=f"m{i}", stage="rl", step=i, values=v) for i, v in enumerate(values, 1)]
    JsonlSink(run / "events.jsonl").emit(events)
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.json").write_text(REPORT.model_copy(update={"seed": seed}).model_dump_json())
    (run / "evaluation" / "report.md").write_text("# Evaluation\n")
    return run


def test_a_result_folder_contains_configuration_environment_report_times_and_command(tmp_path: Path) -> None:
    run = finished(tmp_path / "runs" / "q", seed=3)
    events = [
        StatusEvent(id="1", time=100.0, status="running", cpu_seconds=0.0),
        MetricEvent(id="2", time=160.0, stage="rl", step=1, values={"reward": 0.123456789, "kl": 0.5}),
        StatusEvent(id="3", time=170.0, status="stopped", cpu_seconds=100.0),
        StatusEvent(id="4", time=1000.0, status="running", cpu_seconds=0.0),
        MetricEvent(id="5", time=1010.0, stage="rl", step=2, values={"reward": 2.0}),
        StatusEvent(id="6", time=1030.5, status="succeeded", cpu_seconds=50.25),
    ]
    (run / "events.jsonl").unlink()
    JsonlSink(run / "events.jsonl").emit(events)
    out = tmp_path / "results" / "quick"
    assert collect([run], out) == [out]
    assert {path.name for path in out.iterdir()} == {
        "config.yaml", "environment.json", "report.json", "report.md", "training.json"
    }  # fmt: skip
    environment = json.loads((out / "environment.json").read_text())
    assert environment["command"] == "rl2f train quick/config.yaml"
    assert environment["seed"] == 3 and environment["packages"]["numpy"] and environment["hardware"]["cores"] >= 1
    assert {"commit", "python", "started"} <= set(environment)
    assert (environment["sessions"], environment["wall_seconds"], environment["cpu_seconds"]) == (2, 100.5, 150.25)
    assert load_config(out / "config.yaml") == load_config(run / "config.yaml")
    assert json.loads((out / "training.json").read_text()) == {
        "rl": {"step": [1, 2], "reward": [0.1235, 2.0], "kl": [0.5, None]}
    }
    assert (out / "report.json").read_bytes() == (run / "evaluation" / "report.json").read_bytes()


def test_a_session_that_was_killed_has_wall_time_but_no_cpu_time(tmp_path: Path) -> None:
    run = finished(tmp_path / "q")
    (run / "events.jsonl").unlink()
    JsonlSink(run / "events.jsonl").emit(
        [
            StatusEvent(id="1", time=10.0, status="running", cpu_seconds=0.0),
            MetricEvent(id="2", time=15.0, stage="rl", step=1, values={}),
            StatusEvent(id="3", time=100.0, status="running", cpu_seconds=0.0),
            StatusEvent(id="4", time=101.0, status="succeeded", cpu_seconds=1.0),
        ]
    )
    collect([run], tmp_path / "out")
    environment = json.loads((tmp_path / "out" / "environment.json").read_text())
    assert (environment["sessions"], environment["wall_seconds"], environment["cpu_seconds"]) == (2, 6.0, None)


def test_several_runs_are_stored_by_seed(tmp_path: Path) -> None:
    runs = [finished(tmp_path / f"q{seed}", seed) for seed in (0, 1)]
    out = tmp_path / "out"
    assert collect(runs, out) == [out / "seed-0", out / "seed-1"]
    assert json.loads((out / "seed-1" / "report.json").read_text())["seed"] == 1
    with pytest.raises(DataError, match="same seed"):
        collect([*runs, finished(tmp_path / "again", 1)], out)


def test_the_arms_of_a_study_are_stored_by_arm_and_seed(tmp_path: Path) -> None:
    study, out = tmp_path / "study", tmp_path / "out"
    for name, seed in (("warm-up-1-seed-0", 0), ("rl2f-seed-0", 0), ("rl2f-seed-1", 1), ("blank-seed-0", 0)):
        finished(study / name, seed)
    (study / "blank-seed-0" / "heartbeat.json").write_text('{"status": "running"}')
    (study / "registration.json").write_text("[]")
    assert collect_study(study, out) == [out / "rl2f" / "seed-0", out / "rl2f" / "seed-1"]
    assert sorted(path.name for path in out.iterdir()) == ["registration.json", "rl2f"]
    stored, run = read_part(out / "rl2f" / "seed-1"), read_part(study / "rl2f-seed-1")
    assert stored is not None and run is not None and stored.report == run.report
    assert [row["reward"] for row in stored.training["rl"]] == [0.1235, 2.0]
    assert [row["step"] for row in stored.training["rl"]] == [row["step"] for row in run.training["rl"]] == [1, 2]
    assert read_part(tmp_path) is None


def test_an_unfinished_run_or_one_without_a_report_is_no_result(tmp_path: Path) -> None:
    run = finished(tmp_path / "q")
    (run / "heartbeat.json").write_text('{"status": "running"}')
    with pytest.raises(RunError, match="not finished"):
        collect([run], tmp_path / "out")
    with pytest.raises(DataError, match="no report"):
        collect([write_run(tmp_path / "other", [])], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_path_of_this_machine_reaches_a_result_folder(tmp_path: Path) -> None:
    model = tmp_path / "models" / "smollm2-135m"
    run = finished(tmp_path / "runs" / "q", model={"name": str(model), "device": "cpu", "dtype": "float32"})
    out = tmp_path / "out"
    collect([run], out)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["model"]["name"] == "smollm2-135m"
    (run / "evaluation" / "report.md").write_text(f"in {run}\n")
    with pytest.raises(DataError, match="path of this machine"):
        collect([run], tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_paths_of_other_runs_become_relative_to_the_folder_of_all_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run = finished(runs / "values")
    config = {
        "kind": "hint_value", "source": str(runs / "q1"),
        "checkpoints": {"base": None, "rl@2": str(runs / "q1" / "checkpoints" / "rl@2")},
        **{key: value for key, value in CONFIG.items() if key != "stages"},
    }  # fmt: skip
    (run / "config.yaml").write_text(dump_yaml(parse_config(config)))
    (run / "evaluation").rename(run / "counterfactual")
    collect([run], tmp_path / "out")
    stored = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert stored["source"] == "runs/q1"
    assert stored["checkpoints"] == {"base": None, "rl@2": "runs/q1/checkpoints/rl@2"}
    config["source"] = "/elsewhere/q1"
    (run / "config.yaml").write_text(dump_yaml(parse_config(config)))
    with pytest.raises(DataError, match="file of this machine"):
        collect([run], tmp_path / "out")


def test_a_registration_behind_a_link_is_neither_read_nor_collected(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (tmp_path / "elsewhere.json").write_text("[]")
    (study / REGISTRATION).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DataError, match="symbolic link"):
        read_versions(study)
    with pytest.raises(DataError, match="symbolic link"):
        collect_study(study, tmp_path / "out")
