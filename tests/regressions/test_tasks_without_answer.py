"""Hints on tasks without a gold answer: rescorings, exports and runs agree on which of them are checked."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from export_builders import ENVIRONMENT, answer, event, rows_of, turn, write_run
from openai_server import FakeEndpoint, Say, serving
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.export.datasets.exporter import export, summary
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import WorkspaceSource
from jobs.imports.importer import import_file
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest
from rl2f_core.environments.worlds.gymnasium_wrapper import Gymnasium
from rl2f_core.types import Task

HINT = "Go to the right twice."
LEAK = f"Verdict: leak\nType: derivation\nQuote: “{HINT}”"
JUDGE = "llm_judge:llm.type=openai_api:llm.model=m:llm.cache=false:llm.base_url={url}"


class Line:
    """An environment of the package gymnasium with two actions and an observation that never changes."""

    action_space, render_mode = SimpleNamespace(n=2), None
    metadata: dict[str, Any] = {}  # noqa: RUF012

    def reset(self, seed: int) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package gymnasium, which has this environment alone."""
    modules = importlib.import_module("sys").modules
    monkeypatch.setitem(modules, "gymnasium", SimpleNamespace(make=lambda name, **settings: Line()))


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    """A judge that quotes the whole hint as a leak."""
    with serving(lambda number, body: Say(LEAK)) as server:
        yield server


def line_task(privileged: dict[str, Any]) -> tuple[Gymnasium, Task]:
    environment = Gymnasium(Gymnasium.Config(id="Line-v0"))
    return environment, environment.task("train", 0).model_copy(update={"privileged": privileged})


PRIVILEGED: dict[str, dict[str, Any] | None] = {
    "recorded by another program": None,
    "other privileged data": {"map": "S..G"},
    "nothing privileged": {},
}
"""Privileged data of the task by what is known about it; None for a recorded task."""


def run_on(kind: str, db: Database, workspace: Workspace, tmp_path: Path) -> int:
    """Store a run with one unchecked hint, and return its number."""
    privileged = PRIVILEGED[kind]
    if privileged is None:
        texts = (("user", "problem"), ("assistant", "attempt"), ("user", HINT), ("assistant", "attempt"))
        messages = [{"role": role, "content": text} for role, text in texts]
        (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages}))
        return import_file(db, workspace, tmp_path / "rows.jsonl").id or 0
    scored, task = ENVIRONMENT.task("train", 0), line_task(privileged)[1]
    attempt = f"<answer>{answer(scored)}</answer>"
    settings = {"environment": {"type": "gymnasium", "id": "Line-v0"}, "teacher": {"type": "llm"}}
    write_run(workspace.folder("run"), [event(task, [turn(scored, 0, attempt, HINT, None)], name="d")], **settings)
    return reindex(db, workspace)[0]


CHECKS = [
    ("recorded by another program", "exact", "unchecked"),
    pytest.param("recorded by another program", "mentions", "unchecked", marks=pytest.mark.slow),
    ("recorded by another program", f"{JUDGE}:mode=contrastive", "unchecked"),
    ("recorded by another program", JUDGE, "leak"),
    pytest.param("recorded by another program", f"mentions,{JUDGE}", "leak", marks=pytest.mark.slow),
    ("other privileged data", "exact", "unchecked"),
    ("other privileged data", f"exact,{JUDGE}", "leak"),
    ("nothing privileged", "exact", "clean"),
    pytest.param("nothing privileged", "mentions", "clean", marks=pytest.mark.slow),
    ("nothing privileged", JUDGE, "leak"),
]


@pytest.mark.parametrize(("kind", "detector", "state"), CHECKS, ids=lambda text: text.split(":")[0])
def test_count_table_export_and_advice_agree_on_hints_without_an_answer(
    db: Database, workspace: Workspace, tmp_path: Path, endpoint: FakeEndpoint, kind: str, detector: str, state: str
) -> None:
    number = run_on(kind, db, workspace, tmp_path)
    arguments = ["leaks", str(number), "--workspace", str(workspace.root), "--detector"]
    done = CliRunner().invoke(app, [*arguments, detector.format(url=endpoint.url)])
    assert done.exit_code == 0, done.output
    unchecked = state == "unchecked"
    counts = json.loads(next(workspace.root.glob("runs/*/rescore.json")).read_text())
    assert (counts["hints"], counts["unchecked"], counts["flagged"]) == (not unchecked, unchecked, state == "leak")
    assert ("hints cannot be checked by these" in " ".join(done.stdout.split())) == unchecked
    assert ("hints without an answer" in done.stdout) == unchecked
    settings = ExportSettings(formats=("messages",), files=["jsonl"])
    manifest = export([WorkspaceSource(db, workspace, runs.get(db, number))], settings, tmp_path / "out")
    assert manifest is not None and ("Only llm_judge can check 1" in summary(manifest)) == unchecked
    (row,) = rows_of(tmp_path / "out" / "messages.jsonl")
    assert [leak["state"] for leak in row["leaks"] if leak["state"]] == [state]


def test_a_judge_that_finds_no_leak_on_a_task_without_an_answer_has_checked_its_hint(
    db: Database, workspace: Workspace, tmp_path: Path
) -> None:
    number = run_on("recorded by another program", db, workspace, tmp_path)
    with serving(lambda n, body: Say("Verdict: no leak\nQuote: none")) as server:
        arguments = ["leaks", str(number), "--workspace", str(workspace.root), "--detector"]
        assert CliRunner().invoke(app, [*arguments, JUDGE.format(url=server.url)]).exit_code == 0
        assert "The right answer:" in str(server.requests) and "(not known)" in str(server.requests)
    settings = ExportSettings(formats=("messages",), files=["jsonl"])
    export([WorkspaceSource(db, workspace, runs.get(db, number))], settings, tmp_path / "out")
    (row,) = rows_of(tmp_path / "out" / "messages.jsonl")
    assert [leak["state"] for leak in row["leaks"] if leak["state"]] == ["clean"]


@pytest.mark.parametrize(("kind", "is_checked"), [("other privileged data", False), ("nothing privileged", True)])
def test_a_run_stores_no_report_on_a_hint_that_its_detectors_cannot_check(kind: str, is_checked: bool) -> None:
    environment, task = line_task(PRIVILEGED[kind] or {})
    guard = LeakGuard.from_config(LeaksConfig.model_validate({"detectors": ["mentions"]}), environment)
    scored = ENVIRONMENT.task("train", 0)
    request = FeedbackRequest(task, (turn(scored, 0, "<answer>0</answer>", None),), seed=1)
    (screened,) = guard.screen([request], [Feedback(HINT)], "scripted", lambda requests: [])
    assert (screened.hint.leak is not None) == is_checked and screened.hint.text == HINT
