"""The dataset types, with their columns for Parquet and for the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

FormatName = Literal["stepwise_supervision", "unpaired_preference", "preference", "messages", "prompt_completion"]
FileType = Literal["jsonl", "parquet"]

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


@dataclass(frozen=True)
class Format:
    """One dataset type."""

    name: FormatName
    title: str
    short: str
    """Description on the form; plain text."""
    about: str
    """Description in the card; Markdown."""
    columns: dict[str, tuple[str, str]]
    """Column → (type of `_arrow`, meaning)."""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of its rows."""
        import pyarrow as pa

        return pa.schema([(name, _arrow(kind)) for name, (kind, _) in self.columns.items()])


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    plain = {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    if kind in plain:
        return plain[kind]
    if kind.startswith("list "):
        return pa.list_(_arrow(kind.removeprefix("list ")))
    return pa.struct([(name, plain[of]) for name, of in _STRUCTS[kind].items()])


_STRUCTS = {
    "message": {"role": "string", "content": "string"},
    "verdict": {"correct": "bool", "score": "float", "parsed": "string", "parsable": "bool", "well_formed": "bool"},
    "term": {"turn": "int", "name": "string", "score": "float", "weight": "float"},
    "leak": {
        "state": "string",
        "detector": "string",
        "leak_type": "string",
        "start": "int",
        "end": "int",
        "answer_fraction": "float",
        "action": "string",
    },
}

FORMATS: dict[FormatName, Format] = {
    f.name: f
    for f in (
        Format(
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
        ),
        Format(
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
        ),
        Format(
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
        ),
        Format(
            "messages",
            "Messages",
            "Conversations with verdicts, rewards, leaks and labels of each turn. For SFTTrainer.",
            "One row per conversation as the student read and wrote it, with everything known of each turn. It has "
            "incorrect attempts too. For TRL's `SFTTrainer`, which trains on all messages, hints too, unless "
            "`assistant_only_loss` is set; that option needs a chat template with generation markers. No column is "
            "called `labels`: the trainer would take it for token labels.",
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
                "segment": ("int", "0-based position in the dialogue; a conversation ends at an attempt without reply"),
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
        ),
        Format(
            "prompt_completion",
            "Prompt and completion",
            "Correct attempts before any flagged leak. For SFTTrainer and the method sft.",
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
        ),
    )
}
