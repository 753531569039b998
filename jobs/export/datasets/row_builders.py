"""Pure functions from a record to the rows of each dataset type.

*messages* and *prompt_completion* contain what the student reads and writes. The other types train or judge a
**teacher**: the prompt is the teacher's view, the student has the role `user`, and the hint is the completion. `label`
is true if no leak is flagged in the hint, and no control wrote it that is false for the problem. Prompts contain
privileged data only with `privileged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from jobs.export.datasets.export_records import SYSTEM_ROLES, ExportRecord, ExportTurn, labels_json
from jobs.export.datasets.label_choice import Decision
from rl2f_core.types import JsonObject, Message

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


def _conversation(record: ExportRecord, turn: int) -> list[ExportTurn]:
    """Return the turns of `turn`'s conversation up to and including it."""
    segment = next(s for s in record.segments() if any(step.turn.index == turn for step in s))
    return [step for step in segment if step.turn.index <= turn]


def teacher_prompt(record: ExportRecord, turn: int, privileged: bool = False) -> list[Message]:
    """Return what a teacher reads before its hint on attempt `turn`: problem, attempts, hints as the student reads."""
    messages = [Message(role="system", content=TEACHER)]
    head = problem_text(record, privileged) + "\n\n"
    for step in _conversation(record, turn):
        messages.append(Message(role="user", content=head + attempt_text(step)))
        head = ""
        if step.turn.index < turn:
            messages.append(Message(role="assistant", content=step.hint or ""))
    return messages


def bare_prompt(record: ExportRecord, step: ExportTurn, privileged: bool = False) -> list[Message]:
    """Return a teacher's prompt with the problem and one attempt."""
    text = f"{problem_text(record, privileged)}\n\n{attempt_text(step)}"
    return [Message(role="system", content=TEACHER), Message(role="user", content=text)]


def attempt_text(step: ExportTurn) -> str:
    """Return an attempt as a teacher reads it, with the observation after it."""
    observed = f"\n\nObservation:\n{step.turn.verdict.observation}" if step.turn.verdict.observation else ""
    return f"Attempt:\n{step.turn.attempt}{observed}"


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
    for step, decision in zip(record.steps, decisions, strict=True):
        if decision is None or decision.leaks is None:
            continue
        yield {
            "prompt": teacher_prompt(record, step.turn.index, privileged),
            "completion": reply(step.written or ""),
            "label": decision.good,
            **origin(record),
            "turn": step.turn.index,
            "source": decision.source,
            "teacher": _hint_text(step, "teacher"),
            "planted": _hint_text(step, "planted"),
            "teacher_prompt": _hint_text(step, "prompt_template"),
            "hint_bits": step.turn.hint_bits,
            "bits_left": step.turn.bits_left,
            "determines_answer": step.turn.determines_answer,
        }


def stepwise(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `prompt, completions, labels` for each conversation with a decided hint.

    A step is an attempt with its hint, and has the hint's label. A turn with an undecided hint joins the next step, so
    that a later hint has its context; turns after the last decided hint are omitted.
    """
    for segment in record.segments():
        completions: list[str] = []
        decided: list[tuple[ExportTurn, Decision]] = []
        pending: list[str] = []
        for step in segment:
            decision = decisions[step.turn.index]
            is_decided = decision is not None and decision.leaks is not None
            text = step.written if is_decided else step.hint
            observed = step.turn.verdict.observation
            lines = {"Student": step.turn.attempt, "Environment": observed, "Teacher": text}
            pending.append("\n".join(f"{who}: {said}" for who, said in lines.items() if said or who == "Student"))
            if decision is not None and is_decided:
                completions.append("\n".join(pending))
                decided.append((step, decision))
                pending = []
        if completions:
            yield {
                "prompt": problem_text(record, True) if privileged else record.problem,
                "completions": completions,
                "labels": [decision.good for _, decision in decided],
                **origin(record),
                "turns": [step.turn.index for step, _ in decided],
                "sources": [decision.source for _, decision in decided],
                "teachers": [_hint_text(step, "teacher") for step, _ in decided],
                "planted": [_hint_text(step, "planted") for step, _ in decided],
                "determines_answer": [step.turn.determines_answer for step, _ in decided],
            }


def messages(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `messages` as the student reads and writes them, with the data of every turn, for each conversation.

    A final hint without a following attempt is in `hints` but not in `messages`.
    """
    event, dialogue = record.event, record.event.dialogue
    for number, segment in enumerate(record.segments()):
        conversation = _student_prompt(record, privileged)
        for step in segment:
            conversation.append(Message(role="assistant", content=step.turn.attempt))
            if step.reply and step is not segment[-1]:
                conversation.append(Message(role="user", content=step.reply))
        chosen = [decisions[step.turn.index] for step in segment]
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
            "turns": [step.turn.index for step in segment],
            "verdicts": [_verdict(step) for step in segment],
            "rewards": [step.reward for step in segment],
            "reward_terms": [
                {"turn": step.turn.index, "name": t.name, "score": float(t.score), "weight": float(t.weight)}
                for step in segment
                for t in sorted(step.turn.rewards, key=attrgetter("name"))
            ],
            "hints": [step.written or "" for step in segment],
            "teachers": [_hint_text(step, "teacher") for step in segment],
            "planted": [_hint_text(step, "planted") for step in segment],
            "teacher_prompts": [_hint_text(step, "prompt_template") for step in segment],
            "hint_errors": [_hint_text(step, "error") for step in segment],
            "hint_bits": [step.turn.hint_bits for step in segment],
            "bits_left": [step.turn.bits_left for step in segment],
            "determines_answer": [step.turn.determines_answer for step in segment],
            "bits_used": [step.turn.bits_used for step in segment],
            "leaks": [_leak(step) for step in segment],
            "hint_labels": ["" if d is None else d.word for d in chosen],
            "label_sources": ["" if d is None else d.source for d in chosen],
            "human_labels": [labels_json(step.human_labels) for step in segment],
        }


def prompt_completion(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield the student's `prompt, completion` for each correct attempt before a leak.

    After a hint that is decided as a leak and that the student read as it was written, a correct attempt may only copy
    the answer, so it is no row.
    """
    event = record.event
    for segment in record.segments():
        prompt = _student_prompt(record, privileged)
        unlabeled, determined = 0, False
        for step in segment:
            answer = Message(role="assistant", content=step.turn.attempt)
            if step.turn.verdict.correct:
                yield {
                    "prompt": list(prompt),
                    "completion": [answer],
                    **origin(record),
                    "turn": step.turn.index,
                    "unlabeled_hints": unlabeled,
                    "determines_answer": determined,
                    "phase": event.phase,
                    "stage": event.stage,
                }
            prompt += [answer, Message(role="user", content=step.reply)]
            decision = decisions[step.turn.index]
            if decision is not None and decision.leaks and step.written == step.hint:
                break
            unlabeled += decision is not None and decision.leaks is None
            determined |= step.turn.determines_answer


def _hint_text(step: ExportTurn, field: str) -> str:
    """Return an optional text field of the hint; empty without a hint."""
    return getattr(step.turn.hint, field, None) or ""


def _verdict(step: ExportTurn) -> JsonObject:
    verdict = step.turn.verdict
    return {
        "correct": verdict.correct,
        "score": verdict.score,
        "parsed": verdict.parsed or "",
        "parsable": None if verdict.correct is None else verdict.parsed is not None,
        "well_formed": None if verdict.correct is None else verdict.well_formed,
    }


def _leak(step: ExportTurn) -> JsonObject:
    """Return the detector finding: state `unchecked` if a detector did not check the hint, empty without a hint."""
    leak = step.turn.hint.leak if step.turn.hint else None
    if leak is None or not leak.is_complete:
        state = "" if step.written is None else "unchecked"
        return {
            "state": state, "detector": "", "leak_type": "", "start": -1, "end": -1, "answer_fraction": 0.0,
            "action": "",
        }  # fmt: skip
    start, end = leak.span or (-1, -1)
    return {
        "state": "" if step.written is None else "leak" if leak.leaked else "clean",
        "detector": leak.detector or "",
        "leak_type": leak.leak_type or "",
        "start": start,
        "end": end,
        "answer_fraction": float(leak.answer_fraction),
        "action": leak.action or "",
    }
