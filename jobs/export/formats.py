"""The dataset types, with their columns for Parquet and for the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

FormatName = Literal["stepwise_supervision", "unpaired_preference", "preference", "messages", "prompt_completion"]
FileType = Literal["jsonl", "parquet"]

_ORIGIN = {
    "run": ("string", "the run's number, or its folder's name"),
    "dialogue": ("string", "the dialogue event's id in that run"),
    "task": ("string", "the task's id"),
    "task_key": ("string", "the same for the same problem in every run"),
    "split": ("string", "the split the task belongs to"),
    "environment": ("string", "name of the environment"),
    "level": ("string", "difficulty in the environment's words"),
    "condition": (
        "string",
        "condition of an evaluation, arm of a fork or outcome of a distillation; empty in training",
    ),
}
_PLANTED = "kind of the leak that teacher `leaky` planted; empty: the teacher's own hint"
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
            "One row a conversation, one label a hint.",
            "One row a conversation; a step is an attempt with the hint after it, its label says whether the hint is "
            "good (no leak, and not false). A turn whose hint has no label joins the next step.",
            {
                "prompt": ("string", "the problem"),
                "completions": ("list string", "the steps"),
                "labels": ("list bool", "true: the step's hint gives nothing away and is not false"),
                **_ORIGIN,
                "turns": ("list int", "0-based turn of each step's hint"),
                "sources": ("list string", "whose label it is: human, detector or planted"),
                "teachers": ("list string", "registered name of the teacher"),
                "planted": ("list string", _PLANTED),
            },
        ),
        Format(
            "unpaired_preference",
            "Unpaired preference",
            "One row a hint, good or leaking. For KTOTrainer.",
            "One row a labeled hint, from the teacher's side: the prompt ends with the attempt, the completion is the "
            "hint as the teacher wrote it. For TRL's `KTOTrainer`.",
            {
                "prompt": ("list message", "what a teacher reads"),
                "completion": ("list message", "the hint"),
                "label": ("bool", "true: the hint gives nothing away and is not false"),
                **_ORIGIN,
                "turn": ("int", "0-based turn"),
                "source": ("string", "whose label it is: human, detector or planted"),
                "teacher": ("string", "registered name of the teacher"),
                "planted": ("string", _PLANTED),
                "teacher_prompt": ("string", "name@version of a model teacher's prompt template; empty: no model"),
                "hint_bits": ("float", "information in the hint, in bits; null: unknown"),
                "bits_left": ("float", "log2 of the answers left after the hint; null: unknown"),
                "determines_answer": ("bool", "the hint leaves the answer as the only candidate"),
            },
        ),
        Format(
            "preference",
            "Preference",
            "A leak-free against a leaking hint of the same task. For RewardTrainer and DPOTrainer.",
            "One row a pair of hints on the same task: one that is leak-free and not false (chosen) against a leaking "
            "one (rejected). The "
            "prompt shows what both answer, see `match`. For TRL's `RewardTrainer` and `DPOTrainer`.",
            {
                "prompt": ("list message", "what both hints answer"),
                "chosen": ("list message", "the leak-free hint"),
                "rejected": ("list message", "the leaking hint"),
                **_PAIR,
                "match": ("string", "what the two share: history, attempt or task"),
                "chosen_run": ("string", "run of the chosen hint"),
                "chosen_dialogue": ("string", "dialogue of the chosen hint"),
                "chosen_turn": ("int", "0-based turn of the chosen hint"),
                "chosen_source": ("string", "whose label the chosen hint has"),
                "chosen_teacher": ("string", "teacher of the chosen hint"),
                "chosen_condition": ("string", "condition of the chosen hint; empty in training"),
                "rejected_run": ("string", "run of the rejected hint"),
                "rejected_dialogue": ("string", "dialogue of the rejected hint"),
                "rejected_turn": ("int", "0-based turn of the rejected hint"),
                "rejected_source": ("string", "whose label the rejected hint has"),
                "rejected_teacher": ("string", "teacher of the rejected hint"),
                "rejected_condition": ("string", "condition of the rejected hint; empty in training"),
                "rejected_planted": ("string", _PLANTED),
            },
        ),
        Format(
            "messages",
            "Messages",
            "Whole dialogues, with verdicts, rewards, leaks and labels beside them. For SFTTrainer.",
            "One row a conversation as the student read and wrote it, with everything known of each turn beside it. "
            "For TRL's `SFTTrainer`. No column is called `labels`: the trainer would take it for token labels.",
            {
                "messages": ("list message", "system, problem, attempts and hints"),
                **_ORIGIN,
                "run_name": ("string", "the run's name"),
                "phase": ("string", "train, preflight, evaluation, chat, fork or distill"),
                "stage": ("string", "stage of the run"),
                "step": ("int", "training step, 1-based; 0 outside training"),
                "checkpoint": ("string", "which checkpoint spoke, in an evaluation"),
                "group": ("string", "dialogues that compete on one task"),
                "index": ("int", "position in the group"),
                "policy": ("string", "name and version of the student's weights"),
                "seed": ("int", "of the sampling"),
                "stop_reason": ("string", "why the dialogue ended"),
                "solved_at": ("int", "1-based turn of the right answer; 0: never"),
                "segment": ("int", "0 but where the student began afresh after each attempt"),
                "turns": ("list int", "0-based turns; the lists below have an entry for each"),
                "verdicts": ("list verdict", "the verifier's word on each attempt"),
                "rewards": ("list float", "sum of the named terms"),
                "reward_terms": ("list term", "the named terms, each with its turn"),
                "hints": ("list string", "each hint as the teacher wrote it; empty: none"),
                "teachers": ("list string", "registered name of the teacher"),
                "planted": ("list string", _PLANTED),
                "teacher_prompts": ("list string", "name@version of a model teacher's prompt template"),
                "hint_errors": ("list string", "why the teacher had no hint; the student then read a contentless one"),
                "hint_bits": ("list float", "information in each hint, in bits; null: unknown"),
                "bits_left": ("list float", "log2 of the answers left after each hint; null: unknown"),
                "determines_answer": ("list bool", "the hint leaves the answer as the only candidate"),
                "bits_used": ("list float", "bits of the hint before the attempt that it agrees with; null: unknown"),
                "leaks": ("list leak", "the detectors' finding; start and end are −1 where there is no span"),
                "hint_labels": ("list string", "leak, no_leak, or empty: nobody decided"),
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
            "Right answers of the student before any leak, with what it read. For SFTTrainer and the method sft.",
            "One row a right attempt: what the student read up to it, and the attempt. An attempt after a leaking hint "
            "that the student read is no row, because it may only copy the answer. For TRL's `SFTTrainer`, which "
            "then trains on the completion alone, and for this project's `sft` with `data`.",
            {
                "prompt": ("list message", "system, problem, and earlier attempts and hints"),
                "completion": ("list message", "the right attempt"),
                **_ORIGIN,
                "turn": ("int", "0-based turn of the attempt"),
                "policy": ("string", "who wrote it: name and version of the weights, or a model's name"),
                "phase": ("string", "train, preflight, evaluation, chat, fork or distill"),
                "stage": ("string", "stage of the run"),
            },
        ),
    )
}
