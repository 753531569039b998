"""What the queue asks of a place where runs are worked on.

An executor starts `python -m jobs.worker FOLDER` where the run's folder is in reach, and can later say of a worker,
from what stands in the database alone, whether it is alive.  The queue keeps no other tie to a worker: whatever a
worker has to say lies in the run's folder.

On this machine the studio's slots say what may run at once (`jobs.slots`).  Elsewhere the executor's `room` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from rl2f_core.errors import RunError

SESSION = "RL2F_SESSION"
"""Environment variable: how often a worker was started for the run. The worker's records carry it, so that those of
an earlier session are not taken for its own."""
PLACE = "RL2F_PLACE"
"""Environment variable: where the worker is, as in `Handle.place`."""
LEASH = "RL2F_LEASH"
"""Environment variable: the id of the process that the worker must not outlive, where there is one."""


class NoRoomError(RunError):
    """What was free a moment ago is taken: the run waits on."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start."""

    folder: Path
    """The run's folder."""
    log: Path
    """Gets standard output and standard error, appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set beside those of this process."""
    slot: str = ""
    """The slot that the run was given, by name."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A worker, by what survives the death of the server."""

    pid: int
    started: float
    """When the process began, seconds since 1970: a reused pid has another."""
    folder: str
    """The run's folder, as the worker was given it."""
    place: str = ""
    """Where it is, as `NAME:…` in the words of the executor of that name; empty on this machine."""

    @property
    def executor(self) -> str:
        """The name of the executor that started it."""
        return executor_of(self.place)


def executor_of(place: str) -> str:
    """The executor that a place, or a slot elsewhere, is of."""
    return place.partition(":")[0] or "local"


class Room(Protocol):
    """What is free elsewhere at one moment."""

    def take(self, config: str) -> tuple[str | None, str]:
        """Take what a run needs.

        Args:
            config: Its YAML.

        Returns the slot as `NAME:DEVICE` (cpu or cuda) and "", or None and the reason why the run has to wait.
        """
        ...


class Executor(Protocol):
    """A place where runs are worked on."""

    name: ClassVar[str]
    """What `rl2f serve --executor` calls it."""

    def room(self) -> Room | None:
        """What is free there; None where the studio's slots decide. Never raises: a room may have no place at all."""
        ...

    def described(self) -> str:
        """Where runs go and what is there, or why nothing can, in a sentence; empty for this machine."""
        ...

    def start(self, launch: Launch) -> Handle:
        """Start a worker; raises `RunError` where it cannot be started, `NoRoomError` where it has to wait."""
        ...

    def alive(self, handle: Handle) -> bool:
        """Whether this very worker still runs. A zombie does not."""
        ...

    def stop(self, handle: Handle) -> None:
        """Ask the worker to stop after its step; nothing happens where it is gone."""
        ...

    def kill(self, handle: Handle) -> None:
        """End the worker and all it started, at once."""
        ...

    def clean(self, handle: Handle) -> None:
        """End what a dead worker has left running."""
        ...

    def exit_code(self, handle: Handle) -> int | None:
        """The worker's exit code (negative: minus the signal), where this process started it and it has ended."""
        ...
