"""Rows of exports: the prompt is what the student, or the teacher, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from export_builders import ENVIRONMENT, answer, event, rows_of, turn, write_run, wrong

from jobs.db.engine import Database
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource, WorkspaceSource
from jobs.imports.importer import import_file
from jobs.workspace import Workspace
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Hint, LeakReport

TASK = ENVIRONMENT.task("train", 0)
RIGHT = f"<answer>{answer(TASK)}</answer>"


def exported(source: Any, out: Path, *formats: str, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    manifest = export([source], ExportSettings(formats=formats, files=["jsonl"], **settings), out)
    assert manifest is not None
    return {name: rows_of(out / f"{name}.jsonl") for name in manifest["formats"]}


def contents(messages: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


# -- an empty message does not end the conversation --------------------------------------------------------------------
QUESTION, ATTEMPT, ANSWER = ("user", "q"), ("assistant", "a1"), ("assistant", "a2")
IMPORTED = {
    "empty result of a tool": ([("tool", "")], [("user", "")]),
    "empty message of the user": ([("user", "")], [("user", "")]),
    "two attempts in a row": ([], []),
    "result of a tool": ([("tool", "x")], [("user", "x")]),
}


@pytest.mark.parametrize("between", IMPORTED)
def test_an_imported_dialogue_is_one_conversation_whatever_is_between_its_attempts(
    db: Database, workspace: Workspace, tmp_path: Path, between: str
) -> None:
    stored, read = IMPORTED[between]
    messages = [{"role": role, "content": text} for role, text in (QUESTION, ATTEMPT, *stored, ANSWER)]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages, "correct": True}))
    source = WorkspaceSource(db, workspace, import_file(db, workspace, tmp_path / "rows.jsonl"))
    rows = exported(source, tmp_path / "out", "messages", "prompt_completion")
    (whole,), (part,) = rows["messages"], rows["prompt_completion"]
    assert contents(whole["messages"]) == [QUESTION, ATTEMPT, *read, ANSWER]
    assert contents(part["prompt"]) == [QUESTION, ATTEMPT, *read] and contents(part["completion"]) == [ANSWER]


def forked() -> DialogueEvent:
    """Arm `empty` of a fork: the student continues after an empty message."""
    empty = Hint(text="", teacher="empty", leak=LeakReport(leaked=False))
    turns = [turn(TASK, 0, wrong(TASK), None).model_copy(update={"hint": empty}),
             turn(TASK, 1, wrong(TASK, 1), "Look again."), turn(TASK, 2, RIGHT, None)]  # fmt: skip
    return event(TASK, turns, name="fork", phase="fork", arm="empty")


def test_an_empty_hint_of_a_fork_is_an_empty_message_and_has_no_label(tmp_path: Path) -> None:
    source = FolderSource(write_run(tmp_path / "run", [forked()]))
    formats = ("messages", "prompt_completion", "unpaired_preference", "stepwise_supervision")
    rows = exported(source, tmp_path / "out", *formats, filter={"include_controls": True})
    (whole,), (part,), (hint,), (steps,) = (rows[name] for name in formats)
    read = [("user", ""), ("assistant", wrong(TASK, 1)), ("user", "Look again.")]
    assert contents(whole["messages"])[2:] == [("assistant", wrong(TASK)), *read, ("assistant", RIGHT)]
    assert contents(part["prompt"])[3:] == read
    assert contents(hint["completion"]) == [("assistant", "Look again.")]
    (_, seen) = contents(hint["prompt"])
    assert seen[1].endswith(f"Attempt:\n{wrong(TASK)}\n\nAttempt:\n{wrong(TASK, 1)}")
    assert len(steps["completions"]) == 1 and wrong(TASK) in steps["completions"][0]


def test_independent_attempts_of_an_evaluation_remain_separate_conversations(tmp_path: Path) -> None:
    turns = [turn(TASK, 0, wrong(TASK), None), turn(TASK, 1, RIGHT, None)]
    event_ = event(TASK, turns, name="d", phase="evaluation", step=0, checkpoint="rl@1", condition="resample")
    source = FolderSource(write_run(tmp_path / "run", [event_]))
    rows = exported(source, tmp_path / "out", "messages", "prompt_completion", filter={"include_controls": True})
    assert [len(row["messages"]) for row in rows["messages"]] == [3, 3]
    assert [message["role"] for message in rows["prompt_completion"][0]["prompt"]] == ["system", "user"]
