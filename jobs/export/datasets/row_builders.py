"""Pure functions from a record to the rows of each dataset type.

*messages* and *prompt_completion* contain what the student reads and writes. The other types train or judge a
**teacher**: the prompt is the teacher's view, the student has the role `user`, and the hint is the completion. `label`
is true if no leak is flagged in the hint, and no control wrote it that is false for the problem. Prompts contain
privileged data only with `privileged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from jobs.export.datasets.export_records import SYSTEM_ROLES, ExportRecord, labels_json, written
from jobs.export.datasets.label_choice import Decision
from rl2f_core.types import JsonObject, Message, Turn

TEACHER = (
    "You are a teacher. A student is trying to solve a problem. Read the attempt and answer with a short hint that "
    "helps the student to find the mistake. Do not give the answer away."
)
Decisions = Sequence[Decision | None]
"""One per turn of a record; None if the turn has no hint."""


def origin(record: ExportRecord) -> JsonObject:
    """Return the columns that identify the source of a row, the same in every type."""
    task = record.event.task
    return {
        "run": record.run,
        "dialogue": record.event.id,
        "task": task.id,
        "task_key": record.task_key,
        "split": task.split,
        "policy": record.event.dialogue.policy,
        "environment": task.environment,
        "level": task.level,
        "condition": record.event.setting or "",
    }


def teacher_prompt(record: ExportRecord, index: int, privileged: bool = False) -> list[Message]:
    """Return what a teacher reads before its hint on attempt `index`: problem, attempts, hints as the student reads."""
    messages = [Message(role="system", content=TEACHER)]
    head = problem_text(record, privileged) + "\n\n"
    conversation = next(segment for segment in record.segments() if segment[-1].index >= index)
    for turn in (turn for turn in conversation if turn.index <= index):
        messages.append(Message(role="user", content=head + attempt_text(turn)))
        head = ""
        if turn.index < index:
            messages.append(Message(role="assistant", content=_hint_text(turn, "text")))
    return messages


def bare_prompt(record: ExportRecord, turn: Turn, privileged: bool = False) -> list[Message]:
    """Return a teacher's prompt with the problem and one attempt."""
    text = f"{problem_text(record, privileged)}\n\n{attempt_text(turn)}"
    return [Message(role="system", content=TEACHER), Message(role="user", content=text)]


def attempt_text(turn: Turn) -> str:
    """Return an attempt as a teacher reads it, with the observation after it."""
    observed = f"\n\nObservation:\n{turn.verdict.observation}" if turn.verdict.observation else ""
    return f"Attempt:\n{turn.attempt}{observed}"


def problem_text(record: ExportRecord, privileged: bool = False) -> str:
    """Return the problem, with the answer if `privileged`."""
    text = f"Problem:\n{record.problem}"
    return f"{text}\n\nAnswer, for the teacher alone:\n{record.answer}" if privileged else text


def _student_prompt(record: ExportRecord, privileged: bool) -> list[Message]:
    if not privileged:
        return list(record.prompt)
    system = [message for message in record.prompt if message["role"] in SYSTEM_ROLES]
    return [*system, Message(role="user", content=problem_text(record, True))]


def reply(text: str) -> list[Message]:
    """Return a hint as a completion."""
    return [Message(role="assistant", content=text)]


def unpaired(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `prompt, completion, label` for each decided hint."""
    for turn, decision in zip(record.turns, decisions, strict=True):
        if decision is None or decision.leaks is None:
            continue
        yield {
            "prompt": teacher_prompt(record, turn.index, privileged),
            "completion": reply(written(turn) or ""),
            "label": decision.good,
            **origin(record),
            "turn": turn.index,
            "source": decision.source,
            "teacher": _hint_text(turn, "teacher"),
            "planted": _hint_text(turn, "planted"),
            "teacher_prompt": _hint_text(turn, "prompt_template"),
            "hint_bits": turn.hint_bits,
            "bits_left": turn.bits_left,
            "determines_answer": turn.determines_answer,
        }


def stepwise(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `prompt, completions, labels` for each conversation with a decided hint.

    A step is an attempt with its hint, and has the hint's label. A turn with an undecided hint joins the next step, so
    that a later hint has its context; turns after the last decided hint are omitted.
    """
    for segment in record.segments():
        completions: list[str] = []
        decided: list[tuple[Turn, Decision]] = []
        pending: list[str] = []
        for turn in segment:
            decision = decisions[turn.index]
            is_decided = decision is not None and decision.leaks is not None
            text = written(turn) if is_decided else _hint_text(turn, "text")
            observed = turn.verdict.observation
            lines = {"Student": turn.attempt, "Environment": observed, "Teacher": text}
            pending.append("\n".join(f"{who}: {said}" for who, said in lines.items() if said or who == "Student"))
            if decision is not None and is_decided:
                completions.append("\n".join(pending))
                decided.append((turn, decision))
                pending = []
        if completions:
            yield {
                "prompt": problem_text(record, True) if privileged else record.problem,
                "completions": completions,
                "labels": [decision.good for _, decision in decided],
                **origin(record),
                "turns": [turn.index for turn, _ in decided],
                "sources": [decision.source for _, decision in decided],
                "teachers": [_hint_text(turn, "teacher") for turn, _ in decided],
                "planted": [_hint_text(turn, "planted") for turn, _ in decided],
                "determines_answer": [turn.determines_answer for turn, _ in decided],
            }


def messages(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `messages` as the student reads and writes them, with the data of every turn, for each conversation.

    A final hint without a following attempt is in `hints` but not in `messages`.
    """
    event, dialogue = record.event, record.event.dialogue
    for number, segment in enumerate(record.segments()):
        conversation = _student_prompt(record, privileged)
        for turn in segment:
            conversation.append(Message(role="assistant", content=turn.attempt))
            if turn.reply and turn is not segment[-1]:
                conversation.append(Message(role="user", content=turn.reply))
        chosen = [decisions[turn.index] for turn in segment]
        yield {
            "messages": conversation,
            **origin(record),
            "run_name": record.run_name,
            "phase": event.phase,
            "stage": event.stage,
            "step": event.step,
            "checkpoint": event.checkpoint or "",
            "group": dialogue.group,
            "index": dialogue.index,
            "seed": dialogue.seed,
            "stop_reason": dialogue.stop_reason.value,
            "solved_at": record.solved_at,
            "segment": number,
            "turns": [turn.index for turn in segment],
            "verdicts": [_verdict(turn) for turn in segment],
            "rewards": [turn.known_reward for turn in segment],
            "reward_terms": [
                {"turn": turn.index, "name": t.name, "score": float(t.score), "weight": float(t.weight)}
                for turn in segment
                for t in sorted(turn.rewards, key=attrgetter("name"))
            ],
            "hints": [written(turn) or "" for turn in segment],
            "teachers": [_hint_text(turn, "teacher") for turn in segment],
            "planted": [_hint_text(turn, "planted") for turn in segment],
            "teacher_prompts": [_hint_text(turn, "prompt_template") for turn in segment],
            "hint_errors": [_hint_text(turn, "error") for turn in segment],
            "hint_bits": [turn.hint_bits for turn in segment],
            "bits_left": [turn.bits_left for turn in segment],
            "determines_answer": [turn.determines_answer for turn in segment],
            "bits_used": [turn.bits_used for turn in segment],
            "leaks": [_leak(turn) for turn in segment],
            "hint_labels": ["" if d is None else d.word for d in chosen],
            "label_sources": ["" if d is None else d.source for d in chosen],
            "human_labels": [labels_json(record.labels.get(turn.index, ())) for turn in segment],
        }


def prompt_completion(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield the student's `prompt, completion` for each correct attempt before a leak.

    After a hint that is decided as a leak and that the student read as it was written, a correct attempt may only copy
    the answer, so it is not a row.
    """
    event = record.event
    for segment in record.segments():
        prompt = _student_prompt(record, privileged)
        unlabeled, determined = 0, False
        for turn in segment:
            answer = Message(role="assistant", content=turn.attempt)
            if turn.verdict.correct:
                yield {
                    "prompt": list(prompt),
                    "completion": [answer],
                    **origin(record),
                    "turn": turn.index,
                    "unlabeled_hints": unlabeled,
                    "determines_answer": determined,
                    "phase": event.phase,
                    "stage": event.stage,
                }
            prompt += [answer, Message(role="user", content=turn.reply)]
            decision = decisions[turn.index]
            if decision is not None and decision.leaks and turn.hint is not None and not turn.hint.is_replaced:
                break
            unlabeled += decision is not None and decision.leaks is None
            determined |= turn.determines_answer


def _hint_text(turn: Turn, field: str) -> str:
    """Return an optional text field of the hint; empty without a hint."""
    return getattr(turn.hint, field, None) or ""


def _verdict(turn: Turn) -> JsonObject:
    verdict = turn.verdict
    return {
        "correct": verdict.correct,
        "score": verdict.score,
        "parsed": verdict.parsed or "",
        "parsable": None if verdict.correct is None else verdict.parsed is not None,
        "well_formed": None if verdict.correct is None else verdict.well_formed,
    }


def _leak(turn: Turn) -> JsonObject:
    """Return the detector finding: state `unchecked` if a detector did not check the hint, empty without a hint."""
    leak = turn.hint.leak if turn.hint else None
    if leak is None or not leak.is_complete:
        state = "" if written(turn) is None else "unchecked"
        return {
            "state": state, "detector": "", "leak_type": "", "start": -1, "end": -1, "answer_fraction": 0.0,
            "action": "",
        }  # fmt: skip
    start, end = leak.span or (-1, -1)
    return {
        "state": "" if written(turn) is None else "leak" if leak.leaked else "clean",
        "detector": leak.detector or "",
        "leak_type": leak.leak_type or "",
        "start": start,
        "end": end,
        "answer_fraction": float(leak.answer_fraction),
        "action": leak.action or "",
    }
