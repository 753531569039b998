"""The tables. What events carry (stage … leak report) can be rebuilt from the runs' folders and is written by the
ingester alone; what people add (labels, notes, tags, chats, schedules) is keyed by run and by the *event's* id of a
dialogue, not by row numbers, so that a rebuild leaves it in place.

Times are seconds since 1970, UTC.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, LargeBinary, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

ACTIVE = ("queued", "starting", "running", "stopping")
ENDED = ("succeeded", "failed", "stopped", "interrupted")


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def _text() -> Any:
    return Field(default="", sa_column=Column(Text, nullable=False))


def _long() -> Any:
    return Field(default=0, sa_column=Column(BigInteger, nullable=False))


class Run(SQLModel, table=True):
    """One run of any kind. Only `jobs.queue` changes `status`."""

    __table_args__ = (Index("ix_run_status_position", "status", "position"), Index("ix_run_created", "created"))
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(index=True)
    kind: str = Field(index=True)
    status: str = "queued"
    detail: str = _text()
    """Why it ended, in words."""
    config: str = _text()
    """The YAML as it lies in the run's folder."""
    folder: str = Field(unique=True)
    """Name below the studio's `runs/`."""
    origin: str = "app"
    """app, cli, example, imported, or `schedule:ID`."""
    parent: int | None = None
    """The run it was cloned from, evaluates or exports."""
    environment: str = ""
    model: str = ""
    method: str = ""
    """Of the last stage."""
    seed: int = 0
    device: str = "cpu"
    """The slot class it takes: cpu, cuda, or none for what needs no compute."""
    position: float = 0.0
    """Order in the queue, least first."""
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    pid: int | None = None
    pid_started: float | None = None
    """When the worker's process began, by the system's clock: a reused pid has another."""
    place: str = _text()
    """Where the worker is, as `jobs.executors.base.Handle.place` has it; empty on this machine."""
    sessions: int = 0
    """How often a worker was started for it."""
    phase: str = ""
    """What it does at the moment, e.g. `stage rl2f`."""
    done: float = 0.0
    total: float | None = None
    """Steps done and all steps of the whole run (stages together)."""
    eta: float | None = None
    """Seconds left, from this session's own pace."""
    reward: float | None = None
    """Newest mean reward."""
    tokens_per_second: float | None = None
    heartbeat: float | None = None
    version: int = 0
    """Grows with every change of anything that belongs to the run; pages refresh when it moved."""
    offset: int = _long()
    """Bytes of `events.jsonl` that were read."""
    bad_lines: int = 0
    """Lines of `events.jsonl` that could not be read."""


class Tag(SQLModel, table=True):
    """A word on a run."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    tag: str = Field(primary_key=True, index=True)


class Stage(SQLModel, table=True):
    """A stage of a training run, from its config and its metric events."""

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
    """Relative to the run's folder."""
    sha256: str
    time: float


class Metric(SQLModel, table=True):
    """All numbers of one step (`values`), or of one checkpoint under one control (stage `evaluation:NAME:CONTROL`)."""

    __table_args__ = (Index("ix_metric_run_number", "run_id", "number"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    stage: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    number: int = 0
    """0-based order of the steps of a run over all its stages; −1 for an evaluation, which is no step."""
    time: float
    tokens: float = 0.0
    """Sampled student tokens up to and with this step, over all stages."""
    values: dict[str, float] = _json()


class Log(SQLModel, table=True):
    """A sentence of a run for people."""

    __table_args__ = (UniqueConstraint("run_id", "event"),)
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id", index=True)
    event: str
    time: float
    level: str = "info"
    text: str = _text()


class Problem(SQLModel, table=True):
    """A task, once a run."""

    __table_args__ = (UniqueConstraint("run_id", "task"),)
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    task: str
    """The task's id, e.g. `secret_code/test/17`."""
    environment: str
    split: str
    level: str
    public: dict[str, Any] = _json()
    privileged: dict[str, Any] = _json()
    content: str = ""
    """Names the task in every run: a hash of environment and both halves (`jobs.halves`)."""


class Dialogue(SQLModel, table=True):
    """One dialogue. `run_id, event` names it for good; `id` may change with a rebuild."""

    __table_args__ = (
        UniqueConstraint("run_id", "event"),
        Index("ix_dialogue_run_step", "run_id", "step", "id"),
        Index("ix_dialogue_run_group", "run_id", "group"),
        Index("ix_dialogue_run_solved", "run_id", "solved_at", "id"),
        Index("ix_dialogue_run_reward", "run_id", "reward", "id"),
        Index("ix_dialogue_run_leak", "run_id", "leak", "id"),
        Index("ix_dialogue_run_labels", "run_id", "labels", "id"),
        Index("ix_dialogue_run_level", "run_id", "level", "id"),
        Index("ix_dialogue_run_worth", "run_id", "worth", "id"),
        Index("ix_dialogue_worth", "worth", "id"),
        Index("ix_dialogue_environment", "environment", "level", "id"),
        Index("ix_dialogue_leak", "leak", "id"),
        Index("ix_dialogue_labels", "labels", "id"),
    )
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    event: str
    """The dialogue event's id: what links and labels use."""
    key: str
    """The dialogue's own id."""
    problem_id: int = Field(foreign_key="problem.id", index=True)
    environment: str
    level: str
    phase: str
    """train, preflight, evaluation, chat, fork or distill."""
    stage: str
    step: int
    checkpoint: str | None = None
    control: str | None = None
    group: str
    index: int
    stop: str
    error: str | None = None
    policy: str
    seed: int = _long()
    solved_at: int | None = None
    """1-based turn of the right answer."""
    length: int
    """Number of turns."""
    outcomes: str
    """One character a turn: `1` right, `0` wrong, `?` unparsable."""
    reward: float
    """Sum over turns."""
    advantage: float | None = None
    """Mean over the turns that carry one."""
    leak: int = 0
    """0 unchecked, 1 checked and clean, 2 some hint leaked."""
    labels: int = 0
    """Hints of it that carry a person's label."""
    worth: float | None = None
    """The most that one of its hints was worth (see `HintWorth`); None where none was measured."""
    time: float


class Turn(SQLModel, table=True):
    """An attempt and the hint after it."""

    __table_args__ = (UniqueConstraint("dialogue_id", "index"),)
    id: int | None = Field(default=None, primary_key=True)
    dialogue_id: int = Field(foreign_key="dialogue.id")
    index: int
    attempt: str = _text()
    stop: str
    correct: bool
    parsed: str | None = None
    verdict: dict[str, Any] = _json()
    """The whole verdict (`rl2f_core.types.Verdict`)."""
    reward: float
    advantage: float | None = None
    hint: str | None = Field(default=None, sa_column=Column(Text))
    original: str | None = Field(default=None, sa_column=Column(Text))
    """What the teacher wrote, where a leak action changed it."""
    teacher: str | None = None
    source_task: str | None = None
    prompt: str | None = None
    """`name@version` of the prompt template that a model teacher was asked with."""
    asked: str | None = None
    """`name@version` of the template of the fresh prompt that asked for the attempt; None where there was none."""
    usage: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """What a model teacher's message cost (`rl2f_core.types.Usage`)."""
    hint_error: str | None = Field(default=None, sa_column=Column(Text))
    """Why the teacher had no message; the hint is then a stand-in, or empty."""
    checked: bool = False
    """A leak detector read the hint."""
    leaked: bool = False
    tokens: bytes | None = Field(default=None, sa_column=Column(LargeBinary))
    """Little-endian: uint32 count n, then n int32 token ids, then n float32 log-probabilities (none where unknown)."""


class RewardTerm(SQLModel, table=True):
    """A named term of a turn's reward."""

    __table_args__ = ({"sqlite_with_rowid": False},)
    turn_id: int = Field(foreign_key="turn.id", primary_key=True)
    name: str = Field(primary_key=True)
    score: float
    weight: float


class LeakFinding(SQLModel, table=True):
    """What a detector said of a leaking hint, at run time (`source` = run) or when asked again later."""

    turn_id: int = Field(foreign_key="turn.id", primary_key=True)
    source: str = Field(default="run", primary_key=True)
    tier: str | None = None
    start: int | None = None
    end: int | None = None
    """Character span [start, end) in the hint as the teacher wrote it."""
    share: float = 0.0
    evidence: str = _text()
    action: str | None = None


class HintWorth(SQLModel, table=True):
    """What a hint was worth, as a run of kind fork or hint_value measured it (`rl2f_core.events.HintValueEvent`).

    The hint is named by the folder and the event of the dialogue that it stands in, so that either run may be read
    first, or anew.
    """

    __table_args__ = (Index("ix_hintworth_source", "source", "event"),)
    run_id: int = Field(foreign_key="run.id", primary_key=True)
    """The run that measured it."""
    event: str = Field(primary_key=True)
    """The dialogue event's id in the source run."""
    turn: int = Field(primary_key=True)
    checkpoint: str = Field(primary_key=True)
    """Who went on from there."""
    source: str
    """Name of the source run's folder below the studio's `runs/`."""
    value: float
    low: float
    high: float
    n: int
    turns: int | None = None
    """Attempts allowed after the hint; None is what the dialogue had left."""
    arms: dict[str, float] = _json()
    """Share solved of every arm."""
    time: float


class Rescan(SQLModel, table=True):
    """What a rescoring run says of itself, whether or not the run that it read is here: `LeakScan` is made from it."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    target: str = Field(index=True)
    """Folder of the run that it read."""
    detectors: str = _text()
    checked: int = 0
    flagged: int = 0
    time: float


class RescanFinding(SQLModel, table=True):
    """A hint that a rescoring run flags, by the event's id of its dialogue: `LeakFinding` is made from it."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    event: str = Field(primary_key=True)
    turn: int = Field(primary_key=True)
    target: str
    """Folder of the run that it read."""
    tier: str | None = None
    start: int | None = None
    end: int | None = None
    share: float = 0.0
    evidence: str = _text()


class LeakLabel(SQLModel, table=True):
    """What a person said of a hint. One row a labeller and hint; a new answer replaces it, `undone` rows count not."""

    __table_args__ = (
        UniqueConstraint("run_id", "event", "turn", "labeller"),
        Index("ix_leaklabel_labeller_time", "labeller", "time"),
    )
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    event: str
    turn: int
    """0-based index of the turn whose hint it is."""
    labeller: str
    label: str
    """leak, no_leak or unsure."""
    start: int | None = None
    end: int | None = None
    note: str = _text()
    blind: bool = True
    """The detectors' finding was hidden when it was given."""
    drawn: str | None = None
    """The random draw that the hint came from (`jobs.draws.Draw`); None where it was picked by hand."""
    time: float


class LeakScan(SQLModel, table=True):
    """That a later run asked detectors about every hint of an earlier one; its findings have the run's id as source."""

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    target_run_id: int = Field(foreign_key="run.id", primary_key=True)
    detectors: str = _text()
    checked: int = 0
    flagged: int = 0
    time: float


class HintCount(SQLModel, table=True):
    """How many hints of a run are alike in all that the detector board divides them by; contentless ones are left out.

    The ingester counts them as they come, so that the board reads no turns.
    """

    run_id: int = Field(foreign_key="run.id", primary_key=True)
    environment: str = Field(primary_key=True)
    teacher: str = Field(primary_key=True)
    stage: str = Field(primary_key=True)
    bucket: int = Field(primary_key=True)
    """Ten steps of the stage: 1 for the steps 1 to 10; 0 for step 0."""
    checkpoint: str = Field(primary_key=True)
    """Of an evaluation; empty in training."""
    control: str = Field(primary_key=True)
    test: bool = Field(primary_key=True)
    """The task is in the test half."""
    checked: bool = Field(primary_key=True)
    flagged: bool = Field(primary_key=True)
    tier: str = Field(primary_key=True)
    n: int = 0


class TestOpening(SQLModel, table=True):
    """That somebody looked at a detector's figures on the test half of the tasks."""

    __test__ = False  # pytest takes classes of this name for tests
    id: int | None = Field(default=None, primary_key=True)
    time: float
    who: str
    source: str
    """Whose findings: run, or the id of the run that asked again."""
    detectors: str = _text()
    run_id: int | None = None
    """Where it looked at one run alone; that run may be gone."""
    environment: str = ""


class Note(SQLModel, table=True):
    """A remark on a run, a dialogue (`event`) or one of its turns."""

    __table_args__ = (Index("ix_note_run_event", "run_id", "event"),)
    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(foreign_key="run.id")
    event: str | None = None
    turn: int | None = None
    author: str = ""
    text: str = _text()
    time: float


class Chat(SQLModel, table=True):
    """A conversation with one base model and up to three of its adapters, or a played task."""

    id: int | None = Field(default=None, primary_key=True)
    title: str
    mode: str = "chat"
    """chat or play."""
    settings: dict[str, Any] = _json()
    """Model, speakers (`base`, `17:rl2f@20`), sampling, seed, system text; in play mode the environment's config."""
    task: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    """The played task (`rl2f_core.types.Task`), both halves."""
    created: float
    changed: float = Field(index=True)


class ChatMessage(SQLModel, table=True):
    """A message in a tree: an edit is a new child of the same parent, so the original stays."""

    __table_args__ = (Index("ix_chatmessage_chat", "chat_id", "id"),)
    id: int | None = Field(default=None, primary_key=True)
    chat_id: int = Field(foreign_key="chat.id")
    parent: int | None = None
    role: str
    """system, user, assistant or teacher (a user message that is a hint)."""
    speaker: str = ""
    """Which adapter an assistant message is from; empty for a person's."""
    content: str = _text()
    status: str = "done"
    """done, streaming, stopped or failed (then `detail.error` says why)."""
    detail: dict[str, Any] = _json()
    """Verdict, leak report, token count, seconds, error."""
    time: float


class Schedule(SQLModel, table=True):
    """When a run is to be made."""

    id: int | None = Field(default=None, primary_key=True)
    name: str
    trigger: str
    """`at` (when = ISO time), `cron` (when = five fields), or `nightly` (when = five fields): evaluates newest."""
    when: str
    timezone: str = "UTC"
    config: str = _text()
    """YAML of the run to make; for `nightly` the run id whose newest checkpoint is evaluated, or empty for any."""
    enabled: bool = True
    created: float
    last_run: float | None = None
    next_run: float | None = Field(default=None, index=True)


class JobLog(SQLModel, table=True):
    """What the scheduler did: ran, missed, failed."""

    id: int | None = Field(default=None, primary_key=True)
    time: float = Field(index=True)
    job: str
    outcome: str
    """ran, missed, failed or skipped."""
    detail: str = _text()


class Setting(SQLModel, table=True):
    """A value of the studio, e.g. `queue.paused`, `slots.cpu`."""

    name: str = Field(primary_key=True)
    value: str
