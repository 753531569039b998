"""Run kind `train_detector` with people's labels, and `rl2f leaks train`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from detector_report_data import Truth, add_truth, in_test
from typer.testing import CliRunner

from app.cli import app
from jobs import run_kinds
from jobs.db.engine import Database
from jobs.labels.label_queries import LabelAnswer, put
from jobs.run_kinds.train_detector import SUMMARY, labeled_examples
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.classifier.examples import Example, handwritten
from rl2f_core.leaks.classifier.stored import read_detector
from rl2f_core.leaks.guard import make_detectors
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

SMALL = ["copies=0", "num_operations=0", "num_scripted=0", "max_tokens=200", "learning_rate=0.01", "layers=1"]


@pytest.fixture
def truth(db: Database, workspace: Workspace) -> Truth:
    """A run with 80 hints, all labeled truly."""
    made = add_truth(db, workspace, hints=80, flagged=0.3, precise=0.9, missed=0.3)
    for (event, turn), leak in made.leaks.items():
        put(db, made.run.id or 0, event, turn, "anna", LabelAnswer("leak" if leak else "no_leak"))
    return made


def code_of(example: Example) -> str:
    return str(example.query.task.privileged["code"])


def test_labels_on_the_test_set_of_tasks_train_no_detector(truth: Truth, workspace: Workspace) -> None:
    found = list(labeled_examples(workspace.root, [truth.run.id or 0]))
    assert 20 < len(found) < 80 and not any(in_test(code_of(example)) for example in found)
    assert {example.leak for example in found} == {True, False}
    for example in found:
        assert example.leak == ("A B" in example.query.hint) and example.source == "labels"


def test_a_disputed_label_is_no_example(db: Database, truth: Truth, workspace: Workspace) -> None:
    before = list(labeled_examples(workspace.root, [truth.run.id or 0]))
    number = int(before[0].query.hint.split()[1].rstrip(":"))  # the position of its dialogue
    event, turn = list(truth.leaks)[number]
    put(db, truth.run.id or 0, event, turn, "ben", LabelAnswer("no_leak" if before[0].leak else "leak"))
    assert len(list(labeled_examples(workspace.root, [truth.run.id or 0]))) == len(before) - 1


def training_run(workspace: Workspace, tiny: Path, **settings: Any) -> RunDir:
    run_kinds.load()
    config = parse_config({
        "kind": "train_detector", "model": {"name": str(tiny)}, "benchmarks": [], "copies": 0, "num_operations": 0,
        "num_scripted": 0, "epochs": 1, "max_tokens": 200, "layers": 1, "batch_size": 8, **settings,
    })  # fmt: skip
    return RunDir.create(workspace.runs / "9-train", config)


def test_the_job_writes_a_new_version_that_works_in_a_cascade(truth: Truth, workspace: Workspace, tiny: Path) -> None:
    run_dir = training_run(workspace, tiny, runs=[truth.run.id])
    assert execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    summary = json.loads((run_dir.path / SUMMARY).read_text())
    folder = workspace.detectors / "leaks" / "v1"
    assert summary["folder"] == str(folder) and summary["detector"] == "leaks/v1"
    stored = read_detector(folder)
    assert stored.data["labels"] + stored.report.overall.area.n == summary["labels"]
    example = next(labeled_examples(workspace.root, [truth.run.id or 0]))
    cascade = make_detectors(parse_detectors(f"exact,classifier:path={folder}"), example.environment)
    query = LeakQuery(example.query.task, "Think again.", ("x",))
    assert cascade[1].check(query).leak_probability is not None


def test_a_stopped_job_leaves_no_version(truth: Truth, workspace: Workspace, tiny: Path) -> None:
    run_dir = training_run(workspace, tiny, runs=[truth.run.id])
    assert execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: True).status == "stopped"
    assert not list(workspace.detectors.glob("*/v*")) and not (run_dir.path / SUMMARY).exists()


def command(*args: str, cwd: Path) -> Any:
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, ["leaks", *args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.slow
def test_the_command_trains_and_names_the_next_command(tiny: Path, tmp_path: Path) -> None:
    sets = [part for value in SMALL for part in ("--set", value)]
    args = ("train", "--model", str(tiny), "--epochs", "1", "--set", "benchmarks=[handwritten]", *sets)
    done = command(*args, "--figure", "plots/calibration.png", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "plots" / "calibration.png").read_bytes().startswith(b"\x89PNG")
    folder = tmp_path / "detectors" / "leaks" / "v1"
    assert read_detector(folder).settings["epochs"] == 1 and "held-out hints" in done.stdout
    assert f"classifier:path={folder}" in done.stderr.replace("\n", "")
    item = {"environment": "arithmetic", "problem": "What is 47 + 85?", "answer": "132", "attempts": [], "hint": "Add."}
    (tmp_path / "hints.jsonl").write_text(json.dumps(item) + "\n")
    checked = command("check", "hints.jsonl", "--detector", f"classifier:path={folder}:threshold=1", cwd=tmp_path)
    record = json.loads(checked.stdout)
    assert not record["leaked"] and 0 <= record["leak_probability"] <= 1


@pytest.mark.slow
def test_the_table_of_left_out_environments_continues_where_it_ended(tiny: Path, tmp_path: Path) -> None:
    table = tmp_path / "left_out.json"
    done = {f"environment={name}": {"n": 1} | {k: {"value": 0.5} for k in ("recall", "precision", "area")}
            for name in ("binary_matrix", "guess_number", "knights_knaves", "math", "maze", "secret_code",
                         "shortest_path")}  # fmt: skip
    table.write_text(json.dumps({"version": 1, "left_out": done}))
    sets = [part for value in [*SMALL, "benchmarks=[handwritten]"] for part in ("--set", value)]
    args = ("--model", str(tiny), "--epochs", "1", "--leave-each", "environment", "--table", str(table), *sets)
    result = command("train", *args, cwd=tmp_path)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(table.read_text())["left_out"]
    assert len(rows) == 8 and rows["environment=maze"] == done["environment=maze"]
    counts = rows["environment=arithmetic"]["counts"]
    sums = [example for example in handwritten() if example.environment.name == "arithmetic"]
    assert sum(counts.values()) == len(sums) and counts["tp"] + counts["fn"] == sum(e.leak for e in sums)
