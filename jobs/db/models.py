"""The tables.

The ingester writes what the event files contain, and `rl2f reindex` rebuilds it. What people enter (labels, notes,
tags, chats, schedules) refers to a run and a dialogue's event id, not to row ids, so that a rebuild keeps it.
Dialogues are in `dialogue_models.py`. Times are seconds since 1970, UTC.
"""

from __future__ import annotations

from typing import Literal

from sqlalchemy import JSON, Column, Index, Text, UniqueConstraint
from sqlmodel import AutoString, Field, SQLModel

from jobs.db.columns import Summary, json_column, long_column, run_column, text_column
from rl2f_core.types import JsonObject

RunStatus = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"]
ACTIVE: tuple[RunStatus, ...] = ("queued", "starting", "running", "stopping")
ENDED: tuple[RunStatus, ...] = ("succeeded", "failed", "stopped", "interrupted")


class RunRef(Summary):
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

    detail: str = text_column()
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
    """Slot class: cpu, cuda, or none for runs without compute. From the start on the slot, e.g. `cuda:1`."""
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
    config: str = text_column()
    """The YAML in the run directory."""
    position: float = 0.0
    """Queue order, ascending."""
    pid: int | None = None
    pid_started: float | None = None
    """Start time of the worker process by the system clock; tells a reused pid apart."""
    worker_location: str = text_column()
    """`jobs.executors.base.WorkerHandle.location`; empty on this machine."""
    events_offset: int = long_column()
    """Ingested bytes of `events.jsonl`."""
    group_key: str = ""
    """Equal for runs that differ only in seed and name; empty if the configuration cannot be read."""


class RunValue(SQLModel, table=True):
    """A setting or the newest value of a metric of a run."""

    __table_args__ = (Index("ix_runvalue_name", "name", "is_setting"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    name: str = Field(primary_key=True)
    number: float | None = None
    """The value if it is a number."""
    text: str = text_column()
    """The value as text; other than texts as JSON."""
    is_setting: bool = False
    """It is part of the configuration, so a rebuild keeps it."""


class Tag(SQLModel, table=True):
    """A tag of a run."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    tag: str = Field(primary_key=True, index=True)


class StageSummary(Summary):
    """A stage of a run."""

    run_id: int = Field(foreign_key="run.id", primary_key=True, exclude=True)
    name: str
    method: str
    """Its method."""
    steps: int
    """All steps."""
    done: int = 0
    """Completed steps."""
    started: float | None = None


class Stage(StageSummary, table=True):
    """A stage of a training run, from its config and metric events."""

    index: int = Field(primary_key=True)
    ended: float | None = None


class CheckpointSummary(Summary):
    """A checkpoint of a run."""

    run_id: int = Field(foreign_key="run.id", primary_key=True, exclude=True)
    name: str = Field(primary_key=True)
    """`stage@step`."""
    stage: str
    """Name of the stage."""
    step: int
    """1-based step of the stage."""
    sha256: str
    """Digest of the weights."""
    time: float


class Checkpoint(CheckpointSummary, table=True):
    """Saved weights."""

    path: str
    """Relative to the run directory."""


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
    values: dict[str, float] = json_column()


class Log(Summary, table=True):
    """A log message of a run."""

    __table_args__ = (UniqueConstraint("run_id", "event_id"),)
    id: int | None = Field(default=None, primary_key=True, exclude=True)
    run_id: int = Field(foreign_key="run.id", index=True, exclude=True)
    event_id: str = Field(exclude=True)
    time: float
    level: str = "info"
    """Level of the message, e.g. `warning`."""
    text: str = text_column()


class LabelSummary(Summary):
    """An annotator's label of a hint."""

    run_id: int = run_column()
    """Number of the run."""
    event_id: str
    """Id of the dialogue; permanent in its run."""
    turn: int
    """0-based turn of the hint."""
    annotator: str
    """Name of the annotator."""
    label: str
    """leak, no_leak or unsure."""
    start: int | None = None
    """Start of the leaking span in the teacher's message."""
    end: int | None = None
    """End of the span, exclusive."""
    note: str = text_column()
    """A note."""
    blind: bool = True
    """The annotator had not opened the findings before (`OpenedHint`)."""
    time: float
    """When it was given, in seconds since 1970, UTC."""


class LeakLabel(LabelSummary, table=True):
    """A label; at most one per annotator and hint."""

    __table_args__ = (
        UniqueConstraint("run_id", "event_id", "turn", "annotator"),
        Index("ix_leaklabel_annotator_time", "annotator", "time"),
    )
    id: int | None = Field(default=None, primary_key=True)
    sampling_frame: str | None = None
    """Text of `jobs.labels.sampling.SamplingFrame`; None if the hint was chosen by hand."""


class OpenedHint(SQLModel, table=True):
    """A hint whose findings, or the labels of others on it, an annotator has seen."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    event_id: str = Field(primary_key=True)
    turn: int = Field(primary_key=True)
    annotator: str = Field(primary_key=True)
    time: float
    """Of the first time."""


class TestSetAccess(Summary, table=True):
    """A logged access to detector figures on the test set."""

    __test__ = False  # pytest collects classes with this prefix
    id: int | None = Field(default=None, primary_key=True, exclude=True)
    time: float
    annotator: str
    source: str
    """Findings made during the runs (`run`), or by the rescore run with this id."""
    detectors: str = text_column(exclude=True)
    run_id: int | None = Field(default=None, serialization_alias="run")
    """The run, if the report covered one run; it may be deleted."""
    environment: str = ""
    """The environment, if the report covered one environment."""


class NoteSummary(Summary):
    """A note on a run, a dialogue or a turn."""

    id: int | None = Field(default=None, primary_key=True)
    """Number of the note."""
    event_id: str | None = None
    """Id of the dialogue; None for a note on the run."""
    turn: int | None = None
    """0-based turn; None for a note on the dialogue or the run."""
    author: str = ""
    """Name of the author."""
    text: str = text_column()
    """The note."""
    time: float
    """When it was written, in seconds since 1970, UTC."""


class Note(NoteSummary, table=True):
    """A note with its run."""

    __table_args__ = (Index("ix_note_run_event", "run_id", "event_id"),)
    run_id: int = Field(foreign_key="run.id")


class ChatSummary(Summary):
    """A chat without its settings."""

    id: int = Field(default=None, primary_key=True)
    title: str
    mode: str = "chat"
    """`chat`, or `play` for an interactive task."""
    created: float
    changed: float = Field(index=True)
    """When it changed last, in seconds since 1970, UTC."""


class Chat(ChatSummary, table=True):
    """A chat with one base model and up to three of its adapters, or an interactive task."""

    settings: JsonObject = json_column()
    """Model, checkpoints (`base`, `17:rl2f@20`), sampling, seed, system prompt; for a task, the environment config."""
    task: JsonObject | None = Field(default=None, sa_column=Column(JSON))
    """The interactive task (`rl2f_core.types.Task`), with privileged data."""


class MessageSummary(Summary):
    """A message of a chat; messages form a tree. An edit is a new child of the same parent, so the original remains."""

    id: int = Field(default=None, primary_key=True)
    """Number of the message."""
    chat_id: int = Field(foreign_key="chat.id")
    """Number of the chat."""
    parent: int | None = None
    """Number of the message before it."""
    role: str
    """user, assistant, or teacher (a hint)."""
    checkpoint: str = ""
    """Checkpoint of an assistant message; empty for a user message."""
    content: str = text_column()
    """The text."""
    status: str = "done"
    """done, streaming, stopped or failed (see `detail.error`)."""
    detail: JsonObject = json_column()
    """Verdict, hint, leak report, system message, token count, seconds, error."""
    time: float


class ChatMessage(MessageSummary, table=True):
    """A message with the tokens of its response in `detail`."""

    __table_args__ = (Index("ix_chatmessage_chat", "chat_id", "id"),)


class ScheduledRun(Summary, table=True):
    """When to create a run."""

    id: int = Field(default=None, primary_key=True)
    name: str
    trigger: str
    """`date` (when = ISO time), `cron` (when = five fields), or `nightly` (when = five fields)."""
    when: str
    """ISO time or five cron fields."""
    timezone: str = "UTC"
    """Time zone of `when`."""
    config: str = Field(default="", sa_column=Column(Text, nullable=False), exclude=True)
    """YAML of the run; for `nightly`, the id of the run whose newest checkpoint is evaluated, or empty for any run."""
    enabled: bool = True
    """Whether it creates runs."""
    created: float
    last_run: float | None = None
    """When it last created a run, in seconds since 1970, UTC."""
    next_run: float | None = Field(default=None, index=True)
    """When it creates the next run, in seconds since 1970, UTC."""


class JobLog(Summary, table=True):
    """An entry in the scheduler's log."""

    id: int = Field(default=None, primary_key=True)
    time: float = Field(index=True)
    job: str
    """Name of the scheduler's job."""
    outcome: str
    """ran, missed, failed or skipped."""
    detail: str = text_column()


class Setting(SQLModel, table=True):
    """A named value, e.g. `queue.paused`, `slots.cpu`."""

    name: str = Field(primary_key=True)
    value: str


class ApiToken(SQLModel, table=True):
    """What a program may do. The token itself is not stored."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    digest: str = Field(unique=True)
    """SHA-256 of the token, hexadecimal."""
    scopes: str
    """Separated by spaces, e.g. `read run`."""
    created: float
    last_used: float | None = None


class AuditRecord(Summary):
    """An action of a person or a program, also if it failed or was refused."""

    time: float = Field(index=True)
    caller: str = Field(index=True)
    """`browser`, `command line`, or `token NAME`."""
    action: str = Field(index=True)
    """Name of the endpoint, or `create_token`, `revoke_token`."""
    arguments: str = text_column()
    """Numbers, names, and words of at most 32 characters; of longer texts and configurations, only lengths and keys."""
    outcome: str
    """ok, failed or refused."""
    detail: str = text_column()
    """The new run, the undone label, or the error of a failure or refusal."""


class AuditEntry(AuditRecord, table=True):
    """An entry of the audit log."""

    id: int | None = Field(default=None, primary_key=True)
