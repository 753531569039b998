"""`rl2f share`: static pages of a run without secrets, private paths and external addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import ENVIRONMENT, event, leaky_events, turn, write_run, wrong
from typer.testing import CliRunner

from app.cli import app
from app.static_pages.folder import write_pages
from app.static_pages.selection import chosen_dialogues
from jobs.db.engine import Database
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.errors import DataError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "data" / "example_runs" / "quickstart"


def dialogue(number: int, index: int = 0, hint: str = "hint", **place: Any) -> DialogueEvent:
    task = ENVIRONMENT.task("train", number)
    turns = [turn(task, 0, wrong(task), hint), turn(task, 1, wrong(task, 1), None)]
    name = f"{place.get('phase', 'train')}/{place.get('checkpoint', '')}{place.get('condition', '')}/{number}/{index}"
    return event(task, turns, name=name, index=index, **place)


def run_with(folder: Path, events: list[DialogueEvent], **config: Any) -> RunDir:
    run = RunDir(write_run(folder, events, **config))
    values = {"reward": 0.5, "leak_rate": 0.1, "cum_acc/1": 0.25}
    JsonlSink(run.events_path).emit([MetricEvent(id="metric:rl:1", stage="rl", step=1, values=values)])
    return run


def text_of(folder: Path) -> str:
    """Both pages without plotly.js."""
    index = (folder / "index.html").read_text()
    start = index.rindex("<script>", 0, index.index("plotly.js v"))
    return (
        index[:start]
        + index[index.index("</script>", index.index("plotly.js v")) :]
        + (folder / "dialogues.html").read_text()
    )


# -- which dialogues -----------------------------------------------------------------------------------------------
def test_the_first_middle_and_last_step_come_first_and_then_tasks_under_all_conditions(tmp_path: Path) -> None:
    events = [dialogue(10 * step + n, i, step=step) for step in range(1, 6) for n in range(2) for i in range(2)]
    conditions = [("base", "hints"), ("base", "contentless"), ("rl@5", "hints")]
    events += [
        dialogue(n, phase="evaluation", step=0, checkpoint=checkpoint, condition=condition)
        for checkpoint, condition in conditions
        for n in range(3)
    ]
    run = run_with(tmp_path / "run", events)
    chosen = chosen_dialogues(run, 13)
    assert [e.step for e in chosen] == [1, 1, 3, 3, 5, 5, *[0] * 7]
    evaluated = [(e.task.id, e.checkpoint, e.condition) for e in chosen[6:]]
    complete = {(task, *condition) for task in sorted({task for task, *_ in evaluated})[:2] for condition in conditions}
    assert complete < set(evaluated)
    assert all(not t.token_ids for e in chosen for t in e.dialogue.turns)


def test_an_evaluation_with_many_samples_is_shared_one_sample_of_each_task_first(tmp_path: Path) -> None:
    events = [
        dialogue(number, index, phase="evaluation", step=0, checkpoint="base", condition=condition)
        for condition in ("hints", "contentless", "misleading")
        for number in range(2)
        for index in range(20)
    ]
    run = run_with(tmp_path / "run", events)
    chosen = [(e.task.id, e.condition, e.dialogue.index) for e in chosen_dialogues(run, 6)]
    assert len({task for task, *_ in chosen}) == 2 and {index for *_, index in chosen} == {0}
    assert len(chosen) == len(set(chosen)) == 6
    assert len(chosen_dialogues(run, 40)) == 40 and len(chosen_dialogues(run, 200)) == 120


def test_a_limit_above_the_number_of_dialogues_shares_all_of_every_phase(tmp_path: Path) -> None:
    events = [dialogue(1, index, step=1) for index in range(10)]
    events += [dialogue(2, index, phase="preflight", step=0) for index in range(10)]
    arms = [(arm, index) for arm in ("original", "empty") for index in range(10)]
    events += [dialogue(3, index, f"{arm} hint", phase="fork", step=0, arm=arm) for arm, index in arms]
    run = run_with(tmp_path / "run", events)
    assert len(chosen_dialogues(run, 100)) == len({e.id for e in events})


def test_many_stages_leave_half_of_the_pages_to_the_evaluation(tmp_path: Path) -> None:
    steps = [(stage, step, index) for stage in range(4) for step in range(3) for index in range(4)]
    trained = [(stage, dialogue(10 * stage + step, index, step=step)) for stage, step, index in steps]
    events = [event.model_copy(update={"stage": f"s{stage}"}) for stage, event in trained]
    events += [dialogue(n, phase="evaluation", step=0, checkpoint="base", condition="hints") for n in range(30)]
    phases = [e.phase for e in chosen_dialogues(run_with(tmp_path / "run", events), 40)]
    assert (phases.count("train"), phases.count("evaluation")) == (20, 20)


def test_named_dialogues_replace_the_choice_and_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    events = [dialogue(n) for n in range(4)]
    run = run_with(tmp_path / "run", events)
    ids = [events[2].id, events[1].dialogue.id]
    assert [e.id for e in chosen_dialogues(run, 1, ids)] == [events[1].id, events[2].id]
    with pytest.raises(DataError, match=r"no such dialogue.*\['nobody'\]"):
        chosen_dialogues(run, 1, [*ids, "nobody"])


# -- the pages -----------------------------------------------------------------------------------------------------
def test_the_example_run_becomes_two_pages_without_external_addresses(tmp_path: Path) -> None:
    counts = write_pages(EXAMPLE, tmp_path / "out")
    assert counts["left_out"] == 0 and 10 < counts["shared"] <= 40
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dialogues.html", "index.html"]
    text = text_of(tmp_path / "out")
    assert re.findall(r"""(?:src|href)=["'](?!#|data:|index\.html|dialogues\.html)[^"']*""", text) == []
    assert "@import" not in text and "url(" not in text
    assert text.count("default-src &#39;none&#39;") + text.count("default-src 'none'") == 2
    for expected in (
        "Checkpoints under all conditions",
        "Reward",
        "rl2f (rl2f, 24 steps)",
        "The hint effect of rl2f@24",
    ):
        assert expected in text
    assert text.count('<script type="application/json">') > 10
    assert "--rl-" not in text  # every color of a figure is resolved


def test_texts_of_models_are_escaped(tmp_path: Path) -> None:
    hint = "<img src=x onerror=alert(1)></script><b>bold</b> {{ 7 * 7 }}"
    run = run_with(tmp_path / "run", [dialogue(1, hint=hint)], name="a b")
    write_pages(run.path, tmp_path / "out")
    text = text_of(tmp_path / "out")
    assert "&lt;img src=x onerror=alert(1)&gt;&lt;/script&gt;" in text and "{{ 7 * 7 }}" in text
    assert "<img" not in text and "<b>" not in text


def test_a_leak_that_the_student_did_not_read_is_marked(tmp_path: Path) -> None:
    task = ENVIRONMENT.task("train", 0)
    hints = [turn(task, 0, wrong(task), "It is A.", True), turn(task, 1, wrong(task), "[…]", True, feedback="It is A.")]
    folder = tmp_path / "pages"
    write_pages(run_with(tmp_path / "run", [event(task, hints, name="leaks")]).path, folder)
    page = (folder / "dialogues.html").read_text()
    assert page.count("leak (exact)") == 2 and page.count("not shown to the student") == 1


def test_dialogues_with_paths_of_this_machine_are_left_out(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [dialogue(1), dialogue(2, hint=f"Look into {tmp_path / 'run'}/notes.")])
    assert write_pages(run.path, tmp_path / "out") == {"shared": 1, "left_out": 1}
    assert str(tmp_path) not in text_of(tmp_path / "out")


def test_the_configuration_has_no_alerts_and_only_the_last_part_of_paths(tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run",
        [dialogue(1)],
        model={"name": "/secret-place/models/tiny", "device": "cpu"},
        lora={"init_adapter": "/secret-place/adapters/mine"},
        alerts={"webhook": "https://example.org/HOOK", "command": ["/secret-place/notify"]},
    )
    write_pages(run.path, tmp_path / "out")
    text = text_of(tmp_path / "out")
    assert "secret-place" not in text and "HOOK" not in text and "alerts" not in text
    assert "init_adapter: …/mine" in text and "name: …/tiny" in text


def test_a_reason_of_failure_is_shown_without_the_path_of_the_run(tmp_path: Path) -> None:
    from rl2f_core.run.events import StatusEvent

    run = run_with(tmp_path / "run", [dialogue(1)])
    detail = f"OSError: no space in {run.path}/state"
    JsonlSink(run.events_path).emit([StatusEvent(id="status:9", status="failed", detail=detail)])
    write_pages(run.path, tmp_path / "out")
    assert "failed: OSError: no space in …/state" in text_of(tmp_path / "out")


@pytest.mark.parametrize(
    "secret",
    ["hf_" + "a" * 30, "sk-proj-" + "b" * 30, "ghp_" + "c" * 36, "AKIA" + "D" * 16, "https://user:pass@host/x"],
)
def test_a_token_in_a_dialogue_is_an_error_that_does_not_repeat_it(secret: str, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [dialogue(1, hint=f"Use {secret} for it.")])
    with pytest.raises(DataError, match="A secret would remain") as error:
        write_pages(run.path, tmp_path / "out")
    assert secret not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_value_of_a_secret_variable_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", [dialogue(1, hint="The word is swordfish-9.")])
    write_pages(run.path, tmp_path / "before")
    monkeypatch.setenv("TEACHER_API_KEY", "swordfish-9")
    with pytest.raises(DataError, match=r"dialogues\.html: \$TEACHER_API_KEY"):
        write_pages(run.path, tmp_path / "out")


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(RunError, match="exists"):
        write_pages(EXAMPLE, tmp_path / "out")


# -- the command ---------------------------------------------------------------------------------------------------
def test_the_command_takes_a_number_of_a_run_in_the_workspace(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    write_run(workspace.folder("leaky"), leaky_events())
    db = Database(workspace.database_url())
    db.migrate()
    assert reindex(db, workspace) == [1]
    db.close()
    arguments = ["share", "1", "--out", str(tmp_path / "out"), "--workspace", str(workspace.root)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "dialogues.html").read_text()
    assert "leak (exact)" in text
    ids = re.findall(r'<article id="(d\d+)">', text)
    assert ids == [f"d{n}" for n in range(1, len(ids) + 1)] and ids
    config = yaml.safe_load((workspace.folder("leaky") / "config.yaml").read_text())
    assert json.dumps(config["name"])[1:-1] in text
