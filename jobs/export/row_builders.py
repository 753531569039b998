"""Pure functions from a record to the rows of each data set type.

Two views: *messages* is what the student read and wrote; every other type trains or judges a **teacher**, so its
prompt is the teacher's view, the student speaks as `user` and the hint is the completion. `label` true means a good
hint: no leak. The privileged half of a task is in no prompt unless `privileged` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jobs.export.export_records import ExportRecord, ExportTurn, labels_json
from jobs.export.label_choice import Decision
from rl2f_core.types import Message

TEACHER = (
    "You are a teacher. A student is trying to solve a problem. Read the attempt and answer with a short hint that "
    "helps the student to find the mistake. Do not give the answer away."
)
Decisions = Sequence[Decision | None]
"""One for each turn of a record; None where the turn has no hint."""


def origin(record: ExportRecord) -> dict[str, Any]:
    """The columns that say where a row comes from, the same in every type."""
    return {
        "run": record.run,
        "dialogue": record.dialogue,
        "task": record.task,
        "task_key": record.task_key,
        "split": record.split,
        "environment": record.environment,
        "level": record.level,
    }


def conversation(record: ExportRecord, turn: int) -> tuple[ExportTurn, ...]:
    """The turns of the conversation that `turn` belongs to, up to and with it."""
    for segment in record.segments():
        if any(step.index == turn for step in segment):
            return tuple(step for step in segment if step.index <= turn)
    raise KeyError(turn)


def teacher_prompt(record: ExportRecord, turn: int, privileged: bool = False) -> list[Message]:
    """What a teacher reads before it hints on attempt `turn`: problem, attempts, its hints as the student read them."""
    messages = [Message(role="system", content=TEACHER)]
    head = problem_text(record, privileged)
    for step in conversation(record, turn):
        text = f"Attempt:\n{step.attempt}"
        messages.append(Message(role="user", content=f"{head}\n\n{text}" if head else text))
        head = ""
        if step.index < turn:
            messages.append(Message(role="assistant", content=step.hint or ""))
    return messages


def bare_prompt(record: ExportRecord, step: ExportTurn | None, privileged: bool = False) -> list[Message]:
    """The problem alone, or with one attempt."""
    text = problem_text(record, privileged)
    if step is not None:
        text += f"\n\nAttempt:\n{step.attempt}"
    return [Message(role="system", content=TEACHER), Message(role="user", content=text)]


def problem_text(record: ExportRecord, privileged: bool = False) -> str:
    """The problem; with `privileged` the answer below it."""
    text = f"Problem:\n{record.problem}"
    return f"{text}\n\nAnswer, for the teacher alone:\n{record.answer}" if privileged else text


def reply(text: str) -> list[Message]:
    """A hint as a completion."""
    return [Message(role="assistant", content=text)]


def unpaired(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[dict[str, Any]]:
    """`prompt, completion, label`: one row for each decided hint."""
    for step, decision in zip(record.steps, decisions, strict=True):
        if decision is None or decision.leaks is None:
            continue
        yield {
            "prompt": teacher_prompt(record, step.index, privileged),
            "completion": reply(step.written or ""),
            "label": not decision.leaks,
            **origin(record),
            "turn": step.index,
            "source": decision.source,
            "teacher": step.teacher,
            "teacher_prompt": step.prompt_template,
        }


def stepwise(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[dict[str, Any]]:
    """`prompt, completions, labels`: one row for each conversation with a decided hint.

    A step is an attempt with the hint after it, and its label is the hint's. A turn whose hint nobody decided joins
    the next step, so that a later hint is read in its context; what comes after the last decided hint is left out.
    """
    for segment in record.segments():
        completions: list[str] = []
        labels: list[bool] = []
        turns: list[int] = []
        sources: list[str] = []
        pending: list[str] = []
        for step in segment:
            decision = decisions[step.index]
            decided = decision is not None and decision.leaks is not None
            text = step.written if decided else step.hint
            pending.append(f"Student: {step.attempt}" + (f"\nTeacher: {text}" if text else ""))
            if decision is not None and decision.leaks is not None:
                completions.append("\n".join(pending))
                labels.append(not decision.leaks)
                turns.append(step.index)
                sources.append(decision.source)
                pending = []
        if completions:
            yield {
                "prompt": problem_text(record, True) if privileged else record.problem,
                "completions": completions,
                "labels": labels,
                **origin(record),
                "turns": turns,
                "sources": sources,
            }


def messages(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[dict[str, Any]]:
    """`messages` as the student read and wrote them, with what is known of every turn beside it.

    One row for each conversation. A last hint that no attempt followed is not among the messages, but in `hints`.
    """
    for number, segment in enumerate(record.segments()):
        said = [Message(role="system", content=record.system)] if record.system else []
        problem = problem_text(record, True) if privileged else record.problem
        said.append(Message(role="user", content=problem))
        for step in segment:
            said.append(Message(role="assistant", content=step.attempt))
            if step.hint and step is not segment[-1]:
                said.append(Message(role="user", content=step.hint))
        chosen = [decisions[step.index] for step in segment]
        yield {
            "messages": said,
            **origin(record),
            "run_name": record.run_name,
            "phase": record.phase,
            "stage": record.stage,
            "step": record.step,
            "checkpoint": record.checkpoint,
            "condition": record.condition,
            "group": record.group,
            "index": record.index,
            "policy": record.policy,
            "seed": record.seed,
            "stop_reason": record.stop_reason,
            "solved_at": record.solved_at,
            "segment": number,
            "turns": [step.index for step in segment],
            "verdicts": [_verdict(step) for step in segment],
            "rewards": [float(step.reward) for step in segment],
            "reward_terms": [
                {"turn": step.index, "name": t.name, "score": float(t.score), "weight": float(t.weight)}
                for step in segment
                for t in step.terms
            ],
            "hints": [step.written or "" for step in segment],
            "teachers": [step.teacher for step in segment],
            "teacher_prompts": [step.prompt_template for step in segment],
            "hint_errors": [step.error for step in segment],
            "leaks": [_leak(step) for step in segment],
            "hint_labels": ["" if d is None else d.word for d in chosen],
            "label_sources": ["" if d is None else d.source for d in chosen],
            "human_labels": [labels_json(step.human_labels) for step in segment],
        }


def prompt_completion(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[dict[str, Any]]:
    """`prompt, completion` from the student's side: one row for each right attempt, labels or not."""
    for segment in record.segments():
        said = [Message(role="system", content=record.system)] if record.system else []
        said.append(Message(role="user", content=problem_text(record, True) if privileged else record.problem))
        for step in segment:
            answer = Message(role="assistant", content=step.attempt)
            if step.verdict.correct:
                yield {
                    "prompt": list(said),
                    "completion": [answer],
                    **origin(record),
                    "turn": step.index,
                    "policy": record.policy,
                    "phase": record.phase,
                    "stage": record.stage,
                }
            said += [answer, Message(role="user", content=step.hint or "")]


def _verdict(step: ExportTurn) -> dict[str, Any]:
    v = step.verdict
    return {
        "correct": v.correct,
        "score": float(v.score),
        "parsed": v.parsed or "",
        "parsable": v.parsed is not None,
        "well_formed": v.well_formed,
    }


def _leak(step: ExportTurn) -> dict[str, Any]:
    """The detectors' finding; a hint that none read has state `unchecked`, a turn without a hint an empty state."""
    leak = step.leak
    state = "" if step.written is None else "unchecked" if leak is None else "leak" if leak.leaked else "clean"
    start, end = leak.span if leak is not None and leak.span is not None else (-1, -1)
    return {
        "state": state,
        "detector": (leak.detector or "") if leak is not None else "",
        "start": start,
        "end": end,
        "answer_fraction": float(leak.answer_fraction) if leak is not None else 0.0,
        "action": (leak.action or "") if leak is not None else "",
    }
