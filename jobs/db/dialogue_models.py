"""Tables that the ingester fills from dialogue events and from the reports on their hints.

A dialogue is stored as JSON (`RecordRow`), which `rl2f_core.types.Dialogue` reads; the columns of dialogues and turns
are what a filter, an order or a statistic reads. `jobs.db.schema.EVENT_TABLES` lists the tables that are rebuilt.
"""

from __future__ import annotations

from sqlalchemy import Index, UniqueConstraint, text
from sqlmodel import Field, SQLModel

from jobs.db.columns import Summary, json_column, long_column, run_column, table_of, text_column
from rl2f_core.types import JsonObject

FULL_TEXT = "dialogue_text"
"""Table with the texts of dialogues (SQLite: full-text index); its row ids are the dialogues' ids."""
LEAKED = 2
"""`leak_state` of a dialogue with a leaking hint."""


def _planted_index() -> Index:
    """Return the index of planted hints; it has no entry for other turns."""
    where = text("planted IS NOT NULL")
    return Index("ix_turn_planted", "planted", sqlite_where=where, postgresql_where=where)


class TaskRow(SQLModel, table=True):
    """A task of a run."""

    __tablename__ = "task"
    __table_args__ = (UniqueConstraint("run_id", "task"),)
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    task: str
    """The task's id, e.g. `secret_code/test/17`."""
    environment: str
    split: str
    level: str
    public: JsonObject = json_column()
    privileged: JsonObject = json_column()
    task_hash: str = ""
    """`jobs.labels.holdout.task_hash`, equal in all runs."""


class DialogueSummary(Summary):
    """What lists show of a dialogue."""

    run_id: int = run_column()
    """Number of the run."""
    event_id: str
    """Id of the dialogue event, used by links and labels; permanent in its run."""
    dialogue_id: str
    """Id of the dialogue in its run."""
    phase: str
    """train, preflight, evaluation, chat, fork or distill."""
    stage: str
    """Stage of the run."""
    step: int
    """Training step, 1-based; 0 outside of training."""
    checkpoint: str | None = None
    """Student's checkpoint in an evaluation, fork or chat."""
    condition: str | None = None
    """Condition of an evaluation, arm of a fork or outcome of a distillation."""
    environment: str
    """Name of the environment."""
    level: str
    """Difficulty of the task."""
    group: str
    """Shared by the dialogues of a group."""
    index: int
    """0-based position in the group."""
    stop_reason: str
    """Why it ended, e.g. `solved`."""
    error: str | None = None
    """The error that ended it."""
    policy: str
    """Checkpoint that sampled the attempts, or who wrote them."""
    seed: int = long_column()
    """Seed of the sampling."""
    solved_at: int | None = None
    """1-based turn of the first correct attempt."""
    length: int
    """Number of turns."""
    outcomes: str
    """One character per turn: `1` correct, `0` incorrect, `?` unparsable, `-` no verdict."""
    reward: float | None = None
    """Sum over turns; None if it is unknown."""
    advantage: float | None = None
    """Mean over the turns that have one."""
    leak_state: int = 0
    """0 unchecked, 1 checked without leak, 2 at least one hint leaked."""
    label_count: int = 0
    """Number of labeled hints."""
    best_hint_value: float | None = None
    """Largest value of its hints; None if none was measured."""
    task: str = ""
    """Id of the task."""
    bits_used: float | None = None
    """Bits of hints of which the next, different attempts respect all; None if no hint has a known number of bits."""
    tokens: int = 0
    """Sampled tokens; 0 if they are not stored."""
    time: float
    """When it ended, in seconds since 1970, UTC."""


class DialogueRow(DialogueSummary, table=True):
    """A dialogue; `run_id, event_id` is permanent, and a rebuild may change `id`."""

    __tablename__ = "dialogue"
    __table_args__ = (
        UniqueConstraint("run_id", "event_id"),
        Index("ix_dialogue_run_step", "run_id", "step", "id"),
        Index("ix_dialogue_run_group", "run_id", "group"),
        Index("ix_dialogue_run_solved", "run_id", "solved_at", "id", "outcomes"),
        Index("ix_dialogue_run_reward", "run_id", "reward", "id"),
        Index("ix_dialogue_run_leak", "run_id", "leak_state", "id"),
        Index("ix_dialogue_run_labels", "run_id", "label_count", "id"),
        Index("ix_dialogue_run_level", "run_id", "level", "id"),
        Index("ix_dialogue_run_hint_value", "run_id", "best_hint_value", "id"),
        Index("ix_dialogue_hint_value", "best_hint_value", "id"),
        Index("ix_dialogue_reward", "reward", "id"),
        Index("ix_dialogue_environment", "environment", "level", "id"),
        Index("ix_dialogue_leak", "leak_state", "id"),
        Index("ix_dialogue_labels", "label_count", "id"),
    )
    id: int | None = Field(default=None, primary_key=True)
    task_id: int = Field(foreign_key="task.id", index=True)


HAS_VERDICT = ~table_of(DialogueRow).c.outcomes.endswith("-")
"""Condition that the last attempt was verified."""


class RecordRow(SQLModel, table=True):
    """The JSON of a dialogue (`rl2f_core.types.Dialogue`), apart from its row, so that lists read few pages."""

    __tablename__ = "record"
    dialogue_id: int = Field(primary_key=True, foreign_key="dialogue.id")
    content: str = text_column()


class TurnRow(SQLModel, table=True):
    """What labels and statistics read of a turn; the view `turns` adds texts of the record."""

    __tablename__ = "turn"
    __table_args__ = (UniqueConstraint("dialogue_id", "index"), _planted_index())
    id: int | None = Field(default=None, primary_key=True)
    dialogue_id: int = Field(foreign_key="dialogue.id")
    index: int
    correct: bool | None = None
    """None without a verdict."""
    reward: float | None = None
    """None if it is unknown."""
    teacher: str | None = None
    """None without a hint."""
    is_eligible: bool = False
    """The hint counts in queues and estimates: `jobs.labels.hint_counts.is_eligible`."""
    leak_checked: bool = False
    leak_found: bool = False
    leak_read: bool = False
    """The student read the leak."""
    detector: str | None = None
    """Detector of the leak."""
    leak_distance: float | None = None
    """Distance of the leak probability to the threshold."""
    planted: str | None = None
    """Kind of the leak that teacher `leaky` planted; private ground truth, see `rl2f_core.types.Hint`."""
    hint_bits: float | None = None
    determines_answer: bool = False


class HintValueSummary(Summary):
    """A measured value of a hint."""

    run_id: int = run_column(primary_key=True)
    """The run that measured it."""
    checkpoint: str = Field(primary_key=True)
    """Checkpoint that continued the dialogue."""
    value: float
    """p(solve | this hint) − p(solve | contentless)."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    n: int
    """Samples per arm."""
    turns: int | None = None
    """Attempts allowed after the hint; None for the dialogue's remaining turns."""
    arms: dict[str, float] = json_column()
    """Solve rate per arm."""
    time: float
    """When it was measured, in seconds since 1970, UTC."""


class HintValue(HintValueSummary, table=True):
    """The value of a hint, measured by a fork or hint_value run (`rl2f_core.run.events.HintValueEvent`).

    It refers to the source run's directory and event, so that the two runs can be ingested in any order.
    """

    __table_args__ = (Index("ix_hintvalue_source", "source", "event_id"),)
    event_id: str = Field(primary_key=True)
    """Dialogue event id in the source run."""
    turn: int = Field(primary_key=True)
    source: str
    """Name of the source run's directory below the workspace's `runs/`."""


class RescoreSummary(SQLModel, table=True):
    """The result of a rescore run, also if its target is not in the database."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    target: str = Field(index=True)
    """Run directory of the rescored run."""
    detectors: str = text_column()
    checked: int = 0
    flagged: int = 0
    time: float


class RescoredHint(SQLModel, table=True):
    """What a rescore run reports on a hint that it flags, that has a leak probability, or whose check failed.

    It refers to the target's run directory and event, so that the two runs can be ingested in any order.
    """

    __table_args__ = (Index("ix_rescoredhint_target", "target", "event_id", "turn"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    event_id: str = Field(primary_key=True)
    turn: int = Field(primary_key=True)
    target: str
    leak_found: bool
    detector: str | None = None
    leak_distance: float | None = None
    """None without a leak probability; a row without leak and distance is a failed check."""
    report: str = text_column()
    """JSON of `rl2f_core.types.LeakReport`."""


class HintCount(SQLModel, table=True):
    """Number of hints per group of the detector report, without contentless hints.

    The ingester updates the counts, so that the report reads no turns.
    """

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    environment: str = Field(primary_key=True)
    teacher: str = Field(primary_key=True)
    stage: str = Field(primary_key=True)
    bucket: int = Field(primary_key=True)
    """`jobs.labels.hint_counts.bucket` of the step."""
    checkpoint: str = Field(primary_key=True)
    """Evaluated checkpoint; empty in training."""
    condition: str = Field(primary_key=True)
    test: bool = Field(primary_key=True)
    """The task is in the test set."""
    checked: bool = Field(primary_key=True)
    flagged: bool = Field(primary_key=True)
    detector: str = Field(primary_key=True)
    n: int = 0
    known: int = 0
    """Hints with `TurnRow.hint_bits`."""
    bits: float = 0.0
    """Sum of their `TurnRow.hint_bits`."""
    determining: int = 0
    """Hints with `TurnRow.determines_answer`."""
