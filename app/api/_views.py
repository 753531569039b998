"""Dialogues as JSON. The privileged half, and the verifier's words that may name the answer, are not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.api._problem import Shown, fresh_prompt, shown
from app.diff import changes
from jobs.store import dialogues

if TYPE_CHECKING:
    from jobs.store.dialogues import DialogueView, TurnView
    from jobs.tables import Dialogue, HintWorth, LeakFinding, LeakLabel, Note, Run, Turn

_ROW = (
    "event", "key", "phase", "stage", "step", "checkpoint", "control", "environment", "level", "group", "index",
    "stop", "error", "policy", "seed", "solved_at", "length", "outcomes", "reward", "advantage", "leak", "labels",
    "worth", "time",
)  # fmt: skip


def row_json(row: Dialogue) -> dict[str, Any]:
    """A line of the list."""
    return {"run": row.run_id, **{name: getattr(row, name) for name in _ROW}}


def dialogue_json(run: Run, view: DialogueView) -> dict[str, Any]:
    """A whole dialogue."""
    problem = shown(run, view.problem)
    before = [None, *(turn.row for turn in view.turns)]
    return {
        **row_json(view.row),
        "run_name": run.name,
        "task": view.problem.task,
        "split": view.problem.split,
        "problem": {"text": problem.text, "system": problem.system, "rendered": problem.rendered},
        "turns": [turn_json(turn, last, problem) for turn, last in zip(view.turns, before, strict=False)],
        "notes": [note_json(note) for note in view.notes],
    }


def turn_json(turn: TurnView, last: Turn | None, problem: Shown) -> dict[str, Any]:
    """A turn; `last` is the one before it."""
    row = turn.row
    return {
        "index": row.index,
        "attempt": row.attempt,
        "asked": asked(row, last, problem),
        "changes": None if last is None else changes(last.attempt, row.attempt),
        "stop": row.stop,
        "correct": row.correct,
        "parsed": row.parsed,
        "sign": "1" if row.correct else "?" if row.parsed is None else "0",
        "score": row.verdict.get("score"),
        "distance": row.verdict.get("distance"),
        "reward": row.reward,
        "terms": [{"name": t.name, "score": t.score, "weight": t.weight} for t in turn.terms],
        "advantage": row.advantage,
        "tokens": len(dialogues.tokens(row.tokens)[0]),
        "hint": hint_json(turn),
    }


def asked(row: Turn, last: Turn | None, problem: Shown) -> dict[str, Any] | None:
    """The fresh prompt that asked for an attempt: its template, and its words (null where the template is another by
    now, or is no shipped one); None where the dialogue went on."""
    if row.asked is None or last is None:
        return None
    text = fresh_prompt(row.asked, problem, last.attempt, last.hint or "")
    return {"template": row.asked, "text": text}


def hint_json(turn: TurnView) -> dict[str, Any] | None:
    """The hint after an attempt, as the teacher wrote it (`text`) and as the student read it (`read`)."""
    row = turn.row
    if row.hint is None:
        return None
    return {
        "text": row.hint if row.original is None else row.original,
        "read": row.hint,
        "teacher": row.teacher,
        "source_task": row.source_task,
        "prompt": row.prompt,
        "usage": row.usage,
        "error": row.hint_error,
        **finding_json(turn),
        "labels": [label_json(label) for label in turn.labels],
        "worth": [worth_json(measured) for measured in turn.worth],
    }


def worth_json(row: HintWorth) -> dict[str, Any]:
    """What the hint was worth, by one measurement; `run` is the one that measured it."""
    names = ("checkpoint", "value", "low", "high", "n", "turns", "arms", "time")
    return {"run": row.run_id, **{name: getattr(row, name) for name in names}}


def finding_json(turn: TurnView) -> dict[str, Any]:
    """What the detectors said."""
    return {
        "checked": turn.row.checked,
        "leaked": turn.row.leaked,
        "findings": [_one_finding(finding) for finding in turn.findings],
    }


def _one_finding(finding: LeakFinding) -> dict[str, Any]:
    names = ("source", "tier", "start", "end", "share", "evidence", "action")
    return {name: getattr(finding, name) for name in names}


def label_json(label: LeakLabel) -> dict[str, Any]:
    """An answer of a labeller."""
    return {
        name: getattr(label, name)
        for name in ("run_id", "event", "turn", "labeller", "label", "start", "end", "note", "blind", "time")
    }


def note_json(note: Note) -> dict[str, Any]:
    """A remark."""
    return {name: getattr(note, name) for name in ("id", "event", "turn", "author", "text", "time")}
