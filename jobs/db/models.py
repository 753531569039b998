"""The tables.

The ingester writes what the event files contain, and `rl2f reindex` rebuilds it. What people enter (labels, notes,
tags, chats, schedules) refers to a run and a dialogue's event id, not to row ids, so that a rebuild keeps it.
A dialogue is stored as JSON (`RecordRow`), which `rl2f_core.types.Dialogue` reads; the columns of dialogues and turns
are what a filter, an order or a statistic reads. Times are seconds since 1970, UTC.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from sqlalchemy import JSON, BigInteger, Column, Index, Table, Text, UniqueConstraint, text
from sqlmodel import AutoString, Field, SQLModel

from rl2f_core.types import JsonObject

RunStatus = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"]
ACTIVE: tuple[RunStatus, ...] = ("queued", "starting", "running", "stopping")
ENDED: tuple[RunStatus, ...] = ("succeeded", "failed", "stopped", "interrupted")
FULL_TEXT = "dialogue_text"
"""Table with the texts of dialogues (SQLite: full-text index); its row ids are the dialogues' ids."""


def table_of(model: type[SQLModel]) -> Table:
    """Return the table of a model."""
    return SQLModel.metadata.tables[str(model.__tablename__)]


class Documented(SQLModel):
    """Base of rows that endpoints return: the docstring of a column is its description in their schemas.

    A column with `exclude` is not part of the JSON of a row.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)  # type: ignore[assignment]  # a configuration of pydantic


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def _text() -> Any:
    return Field(default="", sa_column=Column(Text, nullable=False))


def _long() -> Any:
    return Field(default=0, sa_column=Column(BigInteger, nullable=False))


def _planted_index() -> Index:
    """Return the index of planted hints; it has no entry for other turns."""
    where = text("planted IS NOT NULL")
    return Index("ix_turn_planted", "planted", sqlite_where=where, postgresql_where=where)


class RunRef(Documented):
    """What lists of runs show of a run."""

    id: int = Field(default=None, primary_key=True)
    name: str = Field(index=True)
    kind: str = Field(index=True)
    """Kind of the run, e.g. `train`."""
    status: RunStatus = Field(default="queued", sa_type=AutoString)
    environment: str = ""
    method: str = ""
    """Method of the last stage."""
    created: float = 0.0


class RunSummary(RunRef):
    """A run without its configuration and its worker."""

    detail: str = _text()
    folder: str = Field(unique=True)
    """Name of the run directory below the workspace's `runs/`."""
    origin: str = "app"
    """app, cli, example, imported, or `schedule:ID`."""
    parent: int | None = None
    """Number of the run that it clones, evaluates or exports."""
    model: str = ""
    """Name of the base model."""
    seed: int = 0
    device: str = "cpu"
    """Slot class: cpu, cuda, or none for runs without compute."""
    started: float | None = None
    """When its first worker started, in seconds since 1970, UTC."""
    ended: float | None = None
    sessions: int = 0
    """Number of worker starts."""
    phase: str = ""
    """Current activity, e.g. `stage rl2f`."""
    done: float = 0.0
    """Completed steps, over all stages."""
    total: float | None = None
    """All steps, over all stages."""
    eta: float | None = None
    """Estimated seconds left, from the pace of this worker."""
    reward: float | None = None
    """Latest mean reward."""
    tokens_per_second: float | None = None
    """Sampled tokens per second."""
    heartbeat: float | None = None
    """Newest sign of life of the worker, in seconds since 1970, UTC."""
    version: int = 0
    """Increases with every change of the run's data; pages refresh when it changes."""
    invalid_lines: int = 0
    """Invalid lines of `events.jsonl`."""


class Run(RunSummary, table=True):
    """One run of any kind. Only `jobs.queue` changes `status`."""

    __table_args__ = (Index("ix_run_status_position", "status", "position"), Index("ix_run_created", "created"))
    config: str = _text()
    """The YAML in the run directory."""
    position: float = 0.0
    """Queue order, ascending."""
    pid: int | None = None
    pid_started: float | None = None
    """Start time of the worker process by the system clock; tells a reused pid apart."""
    worker_location: str = _text()
    """`jobs.executors.base.WorkerHandle.location`; empty on this machine."""
    events_offset: int = _long()
    """Ingested bytes of `events.jsonl`."""


class Tag(SQLModel, table=True):
    """A tag of a run."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    tag: str = Field(primary_key=True, index=True)


class Stage(SQLModel, table=True):
    """A stage of a training run, from its config and metric events."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    index: int = Field(primary_key=True)
    name: str
    method: str
    steps: int
    done: int = 0
    started: float | None = None
    ended: float | None = None


class Checkpoint(SQLModel, table=True):
    """Saved weights."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    name: str = Field(primary_key=True)
    """`stage@step`."""
    stage: str
    step: int
    path: str
    """Relative to the run directory."""
    sha256: str
    time: float


class Metric(SQLModel, table=True):
    """The metrics of one step, or of one evaluated checkpoint (stage `evaluation:NAME:CONDITION`)."""

    __table_args__ = (Index("ix_metric_run_number", "run_id", "number"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    stage: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    number: int = 0
    """0-based step number over all stages; −1 for an evaluation."""
    time: float
    tokens: float = 0.0
    """Student tokens sampled up to and including this step, over all stages."""
    values: dict[str, float] = _json()


class Log(Documented, table=True):
    """A log message of a run."""

    __table_args__ = (UniqueConstraint("run_id", "event_id"),)
    id: int | None = Field(default=None, primary_key=True, exclude=True)
    run_id: int = Field(foreign_key="run.id", index=True, exclude=True)
    event_id: str = Field(exclude=True)
    time: float
    level: str = "info"
    """Level of the message, e.g. `warning`."""
    text: str = _text()


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
    public: JsonObject = _json()
    privileged: JsonObject = _json()
    task_hash: str = ""
    """`jobs.labels.holdout.task_hash`, equal in all runs."""


class DialogueRow(SQLModel, table=True):
    """What lists of dialogues filter, sort and show. `run_id, event_id` is permanent; a rebuild may change `id`."""

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
    run_id: int = Field(foreign_key="run.id")
    event_id: str
    """Id of the dialogue event, used by links and labels."""
    dialogue_id: str
    """Id of the dialogue in its run."""
    task_id: int = Field(foreign_key="task.id", index=True)
    environment: str
    level: str
    phase: str
    """train, preflight, evaluation, chat, fork or distill."""
    stage: str
    step: int
    checkpoint: str | None = None
    condition: str | None = None
    """`rl2f_core.run.events.DialogueEvent.setting`."""
    group: str
    index: int
    stop_reason: str
    error: str | None = None
    policy: str
    seed: int = _long()
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
    """Largest value of its hints (`HintValue`); None if none was measured."""
    time: float


class RecordRow(SQLModel, table=True):
    """The JSON of a dialogue (`rl2f_core.types.Dialogue`), apart from its row, so that lists read few pages."""

    __tablename__ = "record"
    dialogue_id: int = Field(primary_key=True, foreign_key="dialogue.id")
    content: str = _text()


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


class HintValue(SQLModel, table=True):
    """The value of a hint, measured by a fork or hint_value run (`rl2f_core.run.events.HintValueEvent`).

    It refers to the source run's directory and event, so that the two runs can be ingested in any order.
    """

    __table_args__ = (Index("ix_hintvalue_source", "source", "event_id"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    """The run that measured it."""
    event_id: str = Field(primary_key=True)
    """Dialogue event id in the source run."""
    turn: int = Field(primary_key=True)
    checkpoint: str = Field(primary_key=True)
    """Checkpoint that continued the dialogue."""
    source: str
    """Name of the source run's directory below the workspace's `runs/`."""
    value: float
    low: float
    high: float
    n: int
    turns: int | None = None
    """Attempts allowed after the hint; None for the dialogue's remaining turns."""
    arms: dict[str, float] = _json()
    """Solve rate per arm."""
    time: float


class RescoreSummary(SQLModel, table=True):
    """The result of a rescore run, also if its target is not in the database."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    target: str = Field(index=True)
    """Run directory of the rescored run."""
    detectors: str = _text()
    checked: int = 0
    flagged: int = 0
    time: float


class RescoredHint(SQLModel, table=True):
    """What a rescore run reports on a hint that it flags, or that has a leak probability.

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
    report: str = _text()
    """JSON of `rl2f_core.types.LeakReport`."""


class LeakLabel(SQLModel, table=True):
    """An annotator's label of a hint; at most one per annotator and hint."""

    __table_args__ = (
        UniqueConstraint("run_id", "event_id", "turn", "annotator"),
        Index("ix_leaklabel_annotator_time", "annotator", "time"),
    )
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    event_id: str
    turn: int
    """0-based index of the hint's turn."""
    annotator: str
    label: str
    """leak, no_leak or unsure."""
    start: int | None = None
    end: int | None = None
    note: str = _text()
    blind: bool = True
    """The annotator had not opened the findings before (`OpenedHint`)."""
    sampling_frame: str | None = None
    """Text of `jobs.labels.sampling.SamplingFrame`; None if the hint was chosen by hand."""
    time: float


class Note(Documented, table=True):
    """A note on a run, a dialogue (`event_id`) or one of its turns."""

    __table_args__ = (Index("ix_note_run_event", "run_id", "event_id"),)
    id: int = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", exclude=True)
    event_id: str | None = None
    """The dialogue; None for a note on the run."""
    turn: int | None = None
    """0-based turn; None for a note on the whole dialogue or run."""
    author: str = ""
    """Name of the author."""
    text: str = _text()
    time: float


class Chat(SQLModel, table=True):
    """A chat with one base model and up to three of its adapters, or an interactive task."""

    id: int | None = Field(default=None, primary_key=True)
    title: str
    mode: str = "chat"
    """chat or play."""
    settings: JsonObject = _json()
    """Model, checkpoints (`base`, `17:rl2f@20`), sampling, seed, system prompt; for a task, the environment config."""
    task: JsonObject | None = Field(default=None, sa_column=Column(JSON))
    """The interactive task (`rl2f_core.types.Task`), with privileged data."""
    created: float
    changed: float = Field(index=True)


class ChatMessage(SQLModel, table=True):
    """A message in a tree. An edit is a new child of the same parent, so the original remains."""

    __table_args__ = (Index("ix_chatmessage_chat", "chat_id", "id"),)
    id: int | None = Field(default=None, primary_key=True)
    chat_id: int = Field(foreign_key="chat.id")
    parent: int | None = None
    role: str
    """system, user, assistant or teacher (a user message that is a hint)."""
    checkpoint: str = ""
    """Checkpoint of an assistant message; empty for a user message."""
    content: str = _text()
    status: str = "done"
    """done, streaming, stopped or failed (see `detail.error`)."""
    detail: JsonObject = _json()
    """Verdict, leak report, token count, seconds, error."""
    time: float
