"""Dialogues as JSON, without privileged data and without verifier details that may contain the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.api._problem import Shown, reprompt_template, shown
from app.common.diff import changes
from jobs.db.queries import dialogues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.db.models import Dialogue, HintValue, LeakFinding, LeakLabel, Note, Run, Turn
    from jobs.db.queries.dialogues import DialogueView, TurnView

_ROW = {
    "event": "event_id", "key": "dialogue_id", "phase": "phase", "stage": "stage", "step": "step",
    "checkpoint": "checkpoint", "control": "condition", "environment": "environment", "level": "level",
    "group": "group", "index": "index", "stop": "stop_reason", "error": "error", "policy": "policy", "seed": "seed",
    "solved_at": "solved_at", "length": "length", "outcomes": "outcomes", "reward": "reward",
    "advantage": "advantage", "leak": "leak_state", "labels": "label_count", "worth": "best_hint_value",
    "time": "time",
}  # fmt: skip
"""JSON key → column, as in the mappings below."""
_HINT_VALUE = {
    "run": "run_id", "checkpoint": "checkpoint", "value": "value", "low": "low", "high": "high", "n": "n",
    "turns": "turns", "arms": "arms", "time": "time",
}  # fmt: skip
_FINDING = {
    "source": "source", "tier": "detector", "start": "start", "end": "end", "share": "answer_fraction",
    "evidence": "evidence", "action": "action",
}  # fmt: skip
_LABEL = {
    "run_id": "run_id", "event": "event_id", "turn": "turn", "labeller": "annotator", "label": "label",
    "start": "start", "end": "end", "note": "note", "blind": "blind", "time": "time",
}  # fmt: skip
_NOTE = {"id": "id", "event": "event_id", "turn": "turn", "author": "author", "text": "text", "time": "time"}


def _json(row: object, keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: getattr(row, column) for key, column in keys.items()}


def row_json(row: Dialogue) -> dict[str, Any]:
    """Return a dialogue as a list row."""
    return {"run": row.run_id, **_json(row, _ROW)}


def dialogue_json(run: Run, view: DialogueView) -> dict[str, Any]:
    """Return a whole dialogue."""
    problem = shown(run, view.task)
    before = [None, *(turn.row for turn in view.turns)]
    return {
        **row_json(view.row),
        "run_name": run.name,
        "task": view.task.task,
        "split": view.task.split,
        "problem": {"text": problem.text, "system": problem.system, "rendered": problem.rendered},
        "turns": [turn_json(turn, last, problem) for turn, last in zip(view.turns, before, strict=False)],
        "notes": [note_json(note) for note in view.notes],
    }


def turn_json(turn: TurnView, last: Turn | None, problem: Shown) -> dict[str, Any]:
    """Return a turn; `last` is the previous one."""
    row = turn.row
    return {
        "index": row.index,
        "attempt": row.attempt,
        "asked": reprompt_json(row, last, problem),
        "changes": None if last is None else changes(last.attempt, row.attempt),
        "stop": row.finish_reason,
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


def reprompt_json(row: Turn, last: Turn | None, problem: Shown) -> dict[str, Any] | None:
    """Return template and text of the attempt's reprompt; None if the dialogue was continued.

    The text is None if the template is unknown or has another version.
    """
    if row.prompt_template is None or last is None:
        return None
    text = reprompt_template(row.prompt_template, problem, last.attempt, last.hint or "")
    return {"template": row.prompt_template, "text": text}


def hint_json(turn: TurnView) -> dict[str, Any] | None:
    """Return the hint: the teacher's feedback (`text`) and the student's version (`read`)."""
    row = turn.row
    if row.hint is None:
        return None
    return {
        "text": row.hint if row.feedback is None else row.feedback,
        "read": row.hint,
        "teacher": row.teacher,
        "source_task": row.source_task,
        "prompt": row.hint_prompt_template,
        "usage": row.usage,
        "error": row.hint_error,
        **finding_json(turn),
        "labels": [label_json(label) for label in turn.labels],
        "worth": [hint_value_json(measured) for measured in turn.hint_values],
    }


def hint_value_json(row: HintValue) -> dict[str, Any]:
    """Return a measured hint value; `run` is the run that measured it."""
    return _json(row, _HINT_VALUE)


def finding_json(turn: TurnView) -> dict[str, Any]:
    """Return the detector findings."""
    findings: list[LeakFinding] = turn.findings
    return {
        "checked": turn.row.leak_checked,
        "leaked": turn.row.leak_found,
        "findings": [_json(finding, _FINDING) for finding in findings],
    }


def label_json(label: LeakLabel) -> dict[str, Any]:
    """Return a label."""
    return _json(label, _LABEL)


def note_json(note: Note) -> dict[str, Any]:
    """Return a note."""
    return _json(note, _NOTE)
