"""The dataset types: columns, and pure functions from a record to the rows.

*messages* and *prompt_completion* contain what the student reads and writes. The other types train or judge a
**teacher**: the prompt is the teacher's view, the student has the role `user`, and the hint is the completion. `label`
is true if no leak is flagged in the hint, and no control wrote it that is false for the problem. Prompts contain
privileged data only with `privileged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from jobs.export.datasets.export_records import SYSTEM_ROLES, ExportRecord, labels_json, written
from jobs.export.datasets.formats import FORMATS, Decisions, Format, dataset_type
from jobs.export.datasets.label_choice import Decision
from rl2f_core.dialogue.rollout.enumeration import written_label
from rl2f_core.types import Hint, JsonObject, Message, Turn

TEACHER = (
    "You are a teacher. A student is trying to solve a problem. Read the attempt and answer with a short hint that "
    "helps the student to find the mistake. Do not give the answer away."
)
LABEL = (
    "true: no leak is flagged in {}, and no control wrote it that is false for the problem; it can still determine the "
    "answer, see `determines_answer`, and need not help"
)
_DETERMINES = (
    "true: {} reduces the candidates to the answer, which it need not state; false: it does not, an earlier hint did, "
    "or the candidates were not counted"
)
_ORIGIN = {
    "run": ("string", "the run's number, or its folder's name"),
    "dialogue": ("string", "the dialogue event's id in that run"),
    "task": ("string", "the task's id"),
    "task_key": ("string", "the same for the same problem in every run"),
    "split": ("string", "the task's split: train, validation or test"),
    "policy": (
        "string",
        "who wrote the attempts: stage@step, the untrained `base`, `demonstration`, `person`, or the name of a model",
    ),
    "environment": ("string", "name of the environment"),
    "level": ("string", "difficulty in the environment's words"),
    "condition": (
        "string",
        "condition of an evaluation, arm of a fork or outcome of a distillation; empty in training",
    ),
}
_PLANTED = "kind of the leak that teacher `leaky` planted; empty: the teacher's own hint"
HINT_COLUMNS = {
    "run": ("string", "run of {}"),
    "dialogue": ("string", "dialogue of {}"),
    "turn": ("int", "0-based turn of {}"),
    "source": ("string", "whose label {} has"),
    "teacher": ("string", "teacher of {}"),
    "condition": ("string", "condition of {}; empty in training"),
    "policy": ("string", "who wrote the attempts of {}'s dialogue"),
    "determines_answer": ("bool", _DETERMINES),
}
"""Columns of both hints of a pair; `{}` is the hint."""
_PAIR = {k: _ORIGIN[k] for k in ("task", "task_key", "split", "environment", "level")}


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
    unread = [problem_text(record, privileged)]
    conversation = next(segment for segment in record.segments() if segment[-1].index >= index)
    for turn in (turn for turn in conversation if turn.index <= index):
        unread.append(attempt_text(turn))
        hint = _hint_text(turn, "text")
        if turn.index == index or hint:
            messages.append(Message(role="user", content="\n\n".join(unread)))
            unread = []
        if turn.index < index and hint:
            messages.append(Message(role="assistant", content=hint))
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
    return _with_answer(text, record) if privileged else text


def _with_answer(text: str, record: ExportRecord) -> str:
    return f"{text}\n\nAnswer, for the teacher alone:\n{record.answer}"


def _student_prompt(record: ExportRecord, first: Turn, privileged: bool) -> list[Message]:
    """Return what the student reads before the first attempt of a conversation."""
    new = record.new_prompts.get(first.index)
    prompt = list(new or record.prompt)
    if not privileged:
        return prompt
    system = [message for message in prompt if message["role"] in SYSTEM_ROLES]
    text = problem_text(record, True) if new is None else _with_answer(new[-1]["content"], record)
    return [*system, Message(role="user", content=text)]


def reply(text: str) -> list[Message]:
    """Return a hint as a completion."""
    return [Message(role="assistant", content=text)]


@dataset_type(
    "stepwise_supervision",
    "Stepwise supervision",
    "One row per conversation, one label per hint. No trainer of TRL 1.16 reads it.",
    "One row per conversation; a step is an attempt with the hint after it and has the hint's label. A turn "
    "whose hint has no label joins the next step. No trainer of TRL 1.16 reads this type.",
    {
        "prompt": ("string", "the problem"),
        "completions": ("list string", "the steps"),
        "labels": ("list bool", LABEL.format("the step's hint")),
        **_ORIGIN,
        "turns": ("list int", "0-based turn of each step's hint"),
        "sources": ("list string", "whose label it is: human, detector or planted"),
        "teachers": ("list string", "registered name of the teacher"),
        "planted": ("list string", _PLANTED),
        "determines_answer": ("list bool", _DETERMINES.format("the step's hint")),
    },
)
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


@dataset_type(
    "unpaired_preference",
    "Unpaired preference",
    "One row per hint, with or without a leak. For KTOTrainer.",
    "One row per labeled hint, from the teacher's side: the prompt ends with the attempt, the completion is "
    "the hint as the teacher wrote it. For TRL's `KTOTrainer`.",
    {
        "prompt": ("list message", "what a teacher reads"),
        "completion": ("list message", "the hint"),
        "label": ("bool", LABEL.format("the hint")),
        **_ORIGIN,
        "turn": ("int", "0-based turn"),
        "source": ("string", "whose label it is: human, detector or planted"),
        "teacher": ("string", "registered name of the teacher"),
        "planted": ("string", _PLANTED),
        "teacher_prompt": ("string", "name@version of a model teacher's prompt template; empty: no model"),
        "hint_bits": ("float", "information in the hint, in bits; null: unknown"),
        "bits_left": ("float", "log2 of the candidates after the hint; 0: one is left; null: unknown"),
        "determines_answer": ("bool", _DETERMINES.format("the hint")),
    },
)
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


FORMATS["preference"] = Format(
    "preference",
    "Preference",
    "Two hints on one task, without and with a leak. For RewardTrainer and DPOTrainer.",
    "One row per pair of hints on the same task: a teacher's own hint without a flagged leak (chosen) against "
    "a leaking one (rejected). No hint of a control is chosen. The prompt ends with the attempt that the "
    "chosen hint answers, see `match`. For TRL's `RewardTrainer` and `DPOTrainer`.",
    {
        "prompt": ("list message", "what a teacher reads before the chosen hint"),
        "chosen": ("list message", "the hint without a leak; it can still determine the answer"),
        "rejected": ("list message", "the leaking hint"),
        **_PAIR,
        "match": (
            "string",
            "what the two share: history, attempt, or only the task; the leaking hint then answered another "
            "attempt than that of the prompt",
        ),
        **{
            f"{side}_{name}": (kind, meaning.format(f"the {side} hint"))
            for side in ("chosen", "rejected")
            for name, (kind, meaning) in HINT_COLUMNS.items()
        },
        "rejected_planted": ("string", _PLANTED),
    },
)


@dataset_type(
    "messages",
    "Messages",
    "Whole conversations, incorrect attempts included, with verdicts, rewards, leaks and labels. To analyze.",
    "One row per conversation as the student read and wrote it, with verdict, rewards, hint, findings and labels of "
    "each turn; the run's `events.jsonl` has all its fields. It has incorrect attempts too. For TRL's `SFTTrainer`, "
    "which trains on all messages, hints too, unless `assistant_only_loss` is set; that option needs a chat template "
    "with generation markers. No column is called `labels`: the trainer would take it for token labels.",
    {
        "messages": ("list message", "system, problem, attempts and hints"),
        **_ORIGIN,
        "run_name": ("string", "the run's name"),
        "phase": ("string", "train, preflight, evaluation, chat, fork or distill"),
        "stage": ("string", "stage of the run"),
        "step": ("int", "training step, 1-based; 0 outside training"),
        "checkpoint": ("string", "the student's checkpoint in an evaluation, fork or chat; otherwise empty"),
        "group": ("string", "shared by dialogues with one baseline"),
        "index": ("int", "position in the group"),
        "seed": ("int", "seed of the sampling"),
        "stop_reason": ("string", "why the dialogue ended"),
        "solved_at": ("int", "1-based turn of the correct attempt; 0: none"),
        "segment": (
            "int",
            "0-based position in the dialogue, which has several with independent attempts or new prompts",
        ),
        "turns": ("list int", "0-based turns; the lists below, except `reward_terms`, have an entry for each"),
        "verdicts": ("list verdict", "the verifier's result for each attempt"),
        "rewards": ("list float", "sum of the reward terms of each turn"),
        "reward_terms": ("list term", "all reward terms, each with its turn"),
        "hints": ("list string", "each hint as the teacher wrote it; empty: none"),
        "teachers": ("list string", "registered name of the teacher"),
        "planted": ("list string", _PLANTED),
        "teacher_prompts": ("list string", "name@version of a model teacher's prompt template"),
        "hint_errors": ("list string", "why the teacher had no hint; the student then read a contentless one"),
        "hint_bits": ("list float", "information in each hint, in bits; null: unknown"),
        "bits_left": ("list float", "log2 of the candidates after each hint; 0: one is left; null: unknown"),
        "determines_answer": ("list bool", _DETERMINES.format("the hint")),
        "bits_used": ("list float", "bits of the hint before the attempt that it agrees with; null: unknown"),
        "leaks": ("list leak", "the detectors' finding; start and end are −1 without a span"),
        "hint_labels": ("list string", "leak, no_leak (no leak is flagged), or empty: undecided"),
        "label_sources": (
            "list string",
            "human, detector or planted; for no label why: unsure, disputed or unlabeled",
        ),
        "human_labels": ("list string", "all human labels as JSON: annotator, label, span, note, blind"),
    },
)
def messages(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield `messages` as the student reads and writes them, with the data of every turn, for each conversation.

    A final hint without a following attempt is in `hints` but not in `messages`.
    """
    event, dialogue = record.event, record.event.dialogue
    for number, segment in enumerate(record.conversations()):
        conversation = _student_prompt(record, segment[0], privileged)
        for turn in segment:
            conversation.append(Message(role="assistant", content=written_label(turn)))
            if turn is not segment[-1]:
                conversation += _read_after(turn)
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


@dataset_type(
    "prompt_completion",
    "Prompt and completion",
    "Correct attempts alone, before any flagged leak. For supervised fine-tuning: SFTTrainer, the method sft.",
    "One row per correct attempt: what the student read before it, and the attempt. An attempt after a hint "
    "that is flagged as a leak is left out, because it may only copy the answer; a hint without a label is not "
    "known to be free of leaks, and one without a leak can still determine the answer. For TRL's `SFTTrainer`, "
    "which then trains on the completion alone, and for this project's `sft` with `dataset`.",
    {
        "prompt": ("list message", "system, problem, and earlier attempts and hints"),
        "completion": ("list message", "the correct attempt"),
        **_ORIGIN,
        "turn": ("int", "0-based turn of the attempt"),
        "unlabeled_hints": ("int", "number of hints without a label in the prompt"),
        "determines_answer": ("bool", _DETERMINES.format("a hint in the prompt")),
        "phase": ("string", "train, preflight, evaluation, chat, fork or distill"),
        "stage": ("string", "stage of the run"),
    },
)
def prompt_completion(record: ExportRecord, decisions: Decisions, privileged: bool = False) -> Iterator[JsonObject]:
    """Yield the student's `prompt, completion` for each correct attempt before a leak.

    After a hint that is decided as a leak and that the student read as it was written, a correct attempt may only copy
    the answer, so it is not a row.
    """
    event = record.event
    for conversation in record.conversations():
        first = conversation[0]
        prompt = _student_prompt(record, first, privileged)
        read = [record.turns[first.index - 1]] if first.index and first.index in record.new_prompts else []
        for turn in conversation:
            answer = Message(role="assistant", content=written_label(turn))
            if turn.verdict.correct:
                yield {
                    "prompt": list(prompt),
                    "completion": [answer],
                    **origin(record),
                    "turn": turn.index,
                    "unlabeled_hints": sum(
                        d is not None and d.leaks is None for d in (decisions[t.index] for t in read)
                    ),
                    "determines_answer": any(earlier.determines_answer for earlier in read),
                    "phase": event.phase,
                    "stage": event.stage,
                }
            prompt += [answer, *_read_after(turn)]
            if turn.hint is not None and not turn.hint.is_replaced and _may_leak(turn.hint, decisions[turn.index]):
                return
            read.append(turn)


def _may_leak(hint: Hint, decision: Decision | None) -> bool:
    """Return whether a hint leaks by its label, or without a label by what else is known of it."""
    if decision is not None and decision.leaks is not None:
        return decision.leaks
    return hint.planted is not None or (hint.leak is not None and hint.leak.leaked)


def _read_after(turn: Turn) -> list[Message]:
    """Return the message that follows an attempt, also an empty one; none between attempts without hint or result."""
    is_answered = turn.hint is not None or turn.verdict.observation is not None
    return [Message(role="user", content=turn.reply)] if is_answered else []


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


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]
