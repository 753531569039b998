"""What the queue asks of a place where runs are worked on.

An executor starts `python -m jobs.worker FOLDER` where the run's folder is in reach, and can later say of a worker,
from what stands in the database alone, whether it is alive.  The queue keeps no other tie to a worker: whatever a
worker has to say lies in the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SESSION = "RL2F_SESSION"
"""Environment variable: how often a worker was started for the run. The worker's records carry it, so that those of
an earlier session are not taken for its own."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start."""

    folder: Path
    """The run's folder."""
    log: Path
    """Gets standard output and standard error, appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set beside those of this process."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A worker, by what survives the death of the server."""

    pid: int
    started: float
    """When the process began, seconds since 1970: a reused pid has another."""
    folder: str
    """The run's folder, as the worker was given it."""


class Executor(Protocol):
    """A place where runs are worked on."""

    def start(self, launch: Launch) -> Handle:
        """Start a worker; raises `RunError` where it cannot be started."""
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
