"""Typed events of a run: one JSON object per line in `events.jsonl`.

The `id` of an event is unique in its run and stable if a step is repeated, so readers can drop duplicates. Readers
ignore an incomplete last line, and the writer completes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from rl2f_core.common.file_io import disk_full_error, disk_is_full
from rl2f_core.errors import DataError
from rl2f_core.types import Dialogue, FrozenModel, JsonObject, LeakReport, Task

Status = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"]
Phase = Literal["train", "preflight", "evaluation", "chat", "fork", "distill"]
Text = Annotated[str, Field(max_length=1000)]
"""A value by which dialogues are filtered."""
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A number that the database stores."""

OWN_CONDITIONS = ("", "hints", "kept")
"""Settings of a dialogue (`DialogueEvent.setting`) whose hints are the teacher's own; all others are controls."""

CONTROL_TEACHERS = ("contentless", "neutral_text", "misleading", "shuffled")
"""Teachers whose hints are empty, or false for the problem."""


class _Event(FrozenModel):
    id: str
    """Unique in the run, stable if a step is repeated."""
    time: float = Field(default_factory=time.time)
    """Seconds since 1970, UTC."""


class StatusEvent(_Event):
    """Change of the run's status."""

    type: Literal["status"] = "status"
    status: Status
    detail: str = ""
    cpu_seconds: float | None = None
    """CPU time of the main process and its ended children since the session began; None in older runs."""


class MetricEvent(_Event):
    """Metrics of one step."""

    type: Literal["metric"] = "metric"
    stage: Text
    step: Number
    """1-based step of the stage."""
    values: dict[str, float]

    @property
    def is_evaluation(self) -> bool:
        """Whether they are of an evaluation: stage `evaluation:CHECKPOINT:CONDITION`; other stages have no colon."""
        return self.stage.startswith("evaluation:")

    @field_validator("values", mode="before")
    @classmethod
    def _drop_null(cls, values: object) -> object:
        """Drop what JSON stores for a number that is not finite."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


class DialogueEvent(_Event):
    """One dialogue with its task."""

    type: Literal["dialogue"] = "dialogue"
    phase: Phase
    stage: Text
    step: Number
    checkpoint: Text | None = None
    """Student's checkpoint, in an evaluation."""
    condition: Text | None = None
    """`hints` or a control, in an evaluation."""
    arm: Text | None = None
    """Arm of a fork."""
    outcome: Text | None = None
    """Outcome of the sample, in a distillation."""
    task: Task
    dialogue: Dialogue

    @property
    def setting(self) -> str | None:
        """The condition, arm or outcome; at most one is set."""
        return self.condition or self.arm or self.outcome

    @classmethod
    def of(
        cls,
        phase: Phase,
        stage: str,
        step: int,
        task: Task,
        dialogue: Dialogue,
        *,
        checkpoint: str | None = None,
        **setting: str | None,
    ) -> DialogueEvent:
        """Create the event of a dialogue; `setting` is its `condition`, `arm` or `outcome`, if any."""
        path = (phase, *filter(None, (checkpoint, *setting.values())))
        return cls(
            id=":".join(("dialogue", *path, dialogue.id)),
            phase=phase,
            stage=stage,
            step=step,
            checkpoint=checkpoint,
            task=task,
            dialogue=dialogue,
            **setting,
        )


class CheckpointEvent(_Event):
    """A saved checkpoint."""

    type: Literal["checkpoint"] = "checkpoint"
    name: str
    """`stage@step`."""
    stage: Text
    step: Number
    path: str
    """Path relative to the run directory."""
    sha256: str
    """Digest of the adapter's weights file."""


class LogEvent(_Event):
    """A log message."""

    type: Literal["log"] = "log"
    level: Literal["info", "warning", "error"] = "info"
    text: str


class LeakEvent(_Event):
    """Rescored leak report on one hint of another run; none for a checked hint without a leak, score or evidence."""

    type: Literal["leak"] = "leak"
    run: str
    """The other run: the folder name if both are in the same folder, otherwise its path."""
    dialogue: str
    """Id of the dialogue event in the other run."""
    turn: Number
    """0-based turn of the hint."""
    report: LeakReport


class LeakRescoreEvent(_Event):
    """Summary of rescoring all hints of another run."""

    type: Literal["leak_rescore"] = "leak_rescore"
    run: str
    """As in `LeakEvent`."""
    detectors: tuple[JsonObject, ...]
    """Configurations of the detectors in order."""
    hints: int
    """Number of rescored hints."""
    flagged: int
    """Number of flagged hints."""
    errors: int = 0
    """Number of hints on which a detector failed."""


class HintValueEvent(_Event):
    """Hint value of a stored dialogue: p(solve | hint) − p(solve | contentless hint)."""

    type: Literal["hint_value"] = "hint_value"
    source: str
    """Folder name of the dialogue's run."""
    dialogue: str
    """Id of the dialogue event in that run."""
    turn: Number
    """0-based turn of the hint."""
    checkpoint: str
    """Checkpoint that continued the dialogue."""
    value: float
    low: float
    high: float
    """Bounds of the 95 % interval."""
    n: Number
    """Samples per arm."""
    turns: int | None = None
    """Maximum attempts after the hint; None is the rest of the dialogue."""
    arms: dict[str, float] = Field(default_factory=dict)
    """Solve rate of each arm."""


Event = Annotated[
    StatusEvent
    | MetricEvent
    | DialogueEvent
    | CheckpointEvent
    | LogEvent
    | LeakEvent
    | LeakRescoreEvent
    | HintValueEvent,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
_log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Destination of events."""

    def emit(self, events: Sequence[Event]) -> None:
        """Append events."""

    def offset(self) -> int:
        """Return the length of the stored events, in the sink's unit."""

    def reconcile(self, position: int, expected: bytes) -> None:
        """Append the part of the encoded events `expected` that is missing after `position`."""


def encode(event: Event) -> bytes:
    """Encode an event as one line of JSON."""
    return event.model_dump_json().encode() + b"\n"


class JsonlSink:
    """Appends to a file; each call writes once and flushes to disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def emit(self, events: Sequence[Event]) -> None:
        """Append events; nothing is appended if the disk is full."""
        self._append(b"".join(encode(event) for event in events))

    def offset(self) -> int:
        """Return the size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def reconcile(self, position: int, expected: bytes) -> None:
        """Append missing events after byte `position`. Raises `DataError` if other events are there.

        `expected` are the bytes as they were written: another version may encode the same events otherwise.
        """
        stored = b""
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(position)
                stored = file.read()
        if self.offset() >= position and stored.startswith(expected):
            self._truncate_incomplete_line(position + len(expected), stored[len(expected) :])
        elif self.offset() >= position and expected.startswith(stored):
            self._append(expected[len(stored) :])
        else:
            raise DataError(
                "The event file does not agree with the run's saved state.",
                value=str(self.path),
                fix="Another program changed it; restore it, or start a new run.",
            )

    def _truncate_incomplete_line(self, start: int, tail: bytes) -> None:
        """Remove a last line without a line end, which readers have ignored."""
        if tail and not tail.endswith(b"\n"):
            with open(self.path, "r+b") as file:
                file.truncate(start + tail.rfind(b"\n") + 1)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        before = self.offset()
        with open(self.path, "ab", buffering=0) as file:
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                if disk_is_full(error):
                    raise disk_full_error(self.path) from error
                raise


def read_events(path: str | Path, *, strict: bool = False, having: bytes = b"") -> Iterator[Event]:
    """Read the events of a file in order, without an incomplete last line; log how many lines are invalid.

    Args:
        path: The event file.
        strict: Raise for an invalid line instead of skipping it.
        having: Skip lines without these bytes; they are not parsed, which is much faster.

    Raises `DataError` if the file cannot be opened.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise DataError("The event file cannot be opened.", value=str(path)) from error
    invalid: list[str] = []
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            if having not in line:
                continue
            try:
                yield _ADAPTER.validate_json(line)
            except ValidationError as error:
                if strict:
                    raise DataError(f"Line {number} of the event file is invalid.", value=str(path)) from error
                invalid.append(f"line {number}: {error.errors(include_url=False, include_input=False)[0]['msg']}")
    if invalid:
        text = "%d lines of %s are damaged, or were written by another version, and are left out. The first is %s."
        _log.warning(text, len(invalid), path, invalid[0])


def read_dialogues(path: str | Path, *, having: bytes = b'"dialogue"') -> Iterator[DialogueEvent]:
    """Read the dialogue events of a file; see `read_events`."""
    return (event for event in read_events(path, having=having) if isinstance(event, DialogueEvent))
