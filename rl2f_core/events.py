"""What a run says of itself: typed events, one JSON object a line, appended to `events.jsonl` in the run's folder.

An event's `id` is unique in its run and the same whenever the same step is played again, so a reader may take events
twice without counting twice.  A torn last line is tolerated by readers and completed by the writer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError

from rl2f_core.config import disk_is_full
from rl2f_core.errors import DataError, DiskFullError
from rl2f_core.types import Dialogue, LeakReport, Task, Value

Status = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"]
Phase = Literal["train", "preflight", "evaluation", "chat", "fork", "distill"]


class _Event(Value):
    id: str
    """Unique in the run, stable under replay."""
    time: float = Field(default_factory=time.time)
    """Seconds since 1970, UTC."""


class StatusEvent(_Event):
    """The run changed its state."""

    type: Literal["status"] = "status"
    status: Status
    detail: str = ""


class MetricEvent(_Event):
    """Numbers of one step."""

    type: Literal["metric"] = "metric"
    stage: str
    step: int
    """1-based count of finished steps of the stage."""
    values: dict[str, float]


class DialogueEvent(_Event):
    """One dialogue, whole."""

    type: Literal["dialogue"] = "dialogue"
    phase: Phase
    stage: str
    step: int
    checkpoint: str | None = None
    """Which checkpoint spoke, in an evaluation."""
    control: str | None = None
    """Under which control, in an evaluation; which arm, in a fork; what became of the answer, in a distillation."""
    task: Task
    dialogue: Dialogue

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
        control: str | None = None,
    ) -> DialogueEvent:
        """The event of a dialogue, named so that it is unique in the run and the same under replay."""
        where = (phase, *filter(None, (checkpoint, control)))
        return cls(
            id=":".join(("dialogue", *where, dialogue.id)),
            phase=phase,
            stage=stage,
            step=step,
            checkpoint=checkpoint,
            control=control,
            task=task,
            dialogue=dialogue,
        )


class CheckpointEvent(_Event):
    """Weights were saved under a name."""

    type: Literal["checkpoint"] = "checkpoint"
    name: str
    """`stage@step`."""
    stage: str
    step: int
    path: str
    """Relative to the run's folder."""
    sha256: str
    """Of the adapter's weights file."""


class LogEvent(_Event):
    """A sentence for people."""

    type: Literal["log"] = "log"
    level: Literal["info", "warning", "error"] = "info"
    text: str


class LeakEvent(_Event):
    """What detectors said of one hint of another run when it was read again; a clean hint has none without `nats`."""

    type: Literal["leak"] = "leak"
    run: str
    """The other run: its folder's name where both folders lie side by side, else its path."""
    dialogue: str
    """Id of the dialogue's event in the other run."""
    turn: int
    """0-based index of the turn whose hint it is."""
    report: LeakReport


class LeakScanEvent(_Event):
    """All hints of another run were read again."""

    type: Literal["leak_scan"] = "leak_scan"
    run: str
    """As in `LeakEvent`."""
    detectors: tuple[dict[str, Any], ...]
    """The configuration of each, in the order they were asked."""
    hints: int
    """Hints that were read."""
    flagged: int
    """Those of them that leak."""
    errors: int = 0
    """Those of them that some tier could not judge."""


class HintValueEvent(_Event):
    """What a hint of a stored dialogue was worth: p(solve | the hint) − p(solve | a contentless one)."""

    type: Literal["hint_value"] = "hint_value"
    source: str
    """Name of the folder of the run that the dialogue is of."""
    dialogue: str
    """Id of the dialogue's event in that run."""
    turn: int = Field(ge=0)
    """0-based; the hint stands after this attempt."""
    checkpoint: str
    """Who went on from there."""
    value: float
    low: float
    high: float
    """95 % interval."""
    n: int
    """Samples of each arm."""
    turns: int | None = None
    """Attempts allowed after the hint; None is what the dialogue had left."""
    arms: dict[str, float] = Field(default_factory=dict)
    """Share solved of every arm."""


Event = Annotated[
    StatusEvent | MetricEvent | DialogueEvent | CheckpointEvent | LogEvent | LeakEvent | LeakScanEvent | HintValueEvent,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


class EventSink(Protocol):
    """Where events go."""

    def emit(self, events: Sequence[Event]) -> None:
        """Append events."""
        ...

    def position(self) -> int:
        """How much has been appended, in the sink's own unit."""
        ...

    def complete(self, position: int, events: Sequence[Event]) -> None:
        """Make `events` be what stands after `position`: append those that are missing."""
        ...


def encode(event: Event) -> bytes:
    """One line of JSON."""
    return event.model_dump_json().encode() + b"\n"


class JsonlSink:
    """Appends to a file; every call is one write, flushed to disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def emit(self, events: Sequence[Event]) -> None:
        """Append events; on a full disk nothing of them stays."""
        self._append(b"".join(encode(event) for event in events))

    def position(self) -> int:
        """Bytes in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def complete(self, position: int, events: Sequence[Event]) -> None:
        """Append what is missing of `events` after byte `position`; raises `DataError` where something else stands."""
        wanted = b"".join(encode(event) for event in events)
        held = b""
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(position)
                held = file.read()
        if self.position() >= position and held.startswith(wanted):
            self._cut_torn_line(position + len(wanted), held[len(wanted) :])
        elif self.position() >= position and wanted.startswith(held):
            self._append(wanted[len(held) :])
        else:
            raise DataError(
                "The event file does not agree with the run's saved state.",
                value=str(self.path),
                fix="It was changed by something else; restore it, or start a new run.",
            )

    def _cut_torn_line(self, start: int, tail: bytes) -> None:
        """Remove a last line that a kill cut off: no reader has taken it, since it has no line end."""
        if tail and not tail.endswith(b"\n"):
            with open(self.path, "r+b") as file:
                file.truncate(start + tail.rfind(b"\n") + 1)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        before = self.position()
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
                    raise DiskFullError(
                        "The disk is full.", value=str(self.path), fix="Free space, then resume the run."
                    ) from error
                raise


class ListSink:
    """Keeps events in memory, for tests and dry runs."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, events: Sequence[Event]) -> None:
        """Append events."""
        self.events += events

    def position(self) -> int:
        """Number of events."""
        return len(self.events)

    def complete(self, position: int, events: Sequence[Event]) -> None:
        """Append what is missing of `events` after `position`; raises `DataError` where something else stands."""
        held, wanted = self.events[position:], list(events)
        if self.position() < position or held[: len(wanted)] != wanted[: len(held)]:
            raise DataError("The events in memory do not agree with the run's saved state.")
        self.events += wanted[len(held) :]


def read_events(path: str | Path, *, strict: bool = False, having: bytes = b"") -> Iterator[Event]:
    """The events of a file in order. A torn last line is left out; a broken line elsewhere too, unless `strict`.

    Lines without the bytes `having` are left out as well, unread, which takes far less time.

    Raises `DataError` where the file is missing, or (strict) a complete line cannot be read.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise DataError("The event file cannot be opened.", value=str(path)) from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if having not in line:
                continue
            try:
                yield _ADAPTER.validate_json(line)
            except ValidationError as error:
                if strict:
                    raise DataError(f"Line {number} of the event file is broken.", value=str(path)) from error
