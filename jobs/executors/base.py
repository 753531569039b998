"""Contract between the queue and the executors.

An executor starts `python -m jobs.worker FOLDER` on a machine that can access the run directory. Later it tells from a
`WorkerHandle`, which the database stores, whether that worker is alive. All other communication uses files in the run
directory (`jobs.worker.status_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Parameters of a worker's start."""

    folder: Path
    """Run directory."""
    log: Path
    """File to which standard output and standard error are appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of this process."""
    slot: str = ""
    """Name of the run's slot."""


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """Identity of a worker that outlives the server."""

    pid: int
    """0 if the executor does not know it yet; then the worker's progress file has it."""
    started: float
    """Start time of the process, seconds since 1970; tells a reused pid apart."""
    folder: str
    """Run directory as passed to the worker."""
    location: str = ""
    """`EXECUTOR:…` in that executor's format; empty on this machine."""

    @property
    def executor(self) -> str:
        """Name of the executor that started the worker."""
        return executor_of(self.location)


def executor_of(location: str) -> str:
    """Return the executor's name of a location or of a remote slot."""
    return location.partition(":")[0] or "local"


class Capacity(Protocol):
    """Free resources of an executor at one moment."""

    def reserve(self, config: str) -> tuple[str | None, str]:
        """Reserve the resources of a run.

        Args:
            config: Its YAML.

        Returns the slot as `NAME:DEVICE` (cpu or cuda) and "", or None and the reason why the run has to wait.
        """
        ...


class Executor(Protocol):
    """Starts and ends workers at one location."""

    name: ClassVar[str]
    """Value of `rl2f serve --executor`."""

    def capacity(self) -> Capacity | None:
        """Return the free resources; None if `jobs.queue.slots` limits the runs. Never raises."""
        ...

    def describe(self) -> str:
        """Describe the location, or why nothing can start there; empty for this machine."""
        ...

    def start(self, launch: LaunchSpec) -> WorkerHandle:
        """Start a worker; raises `RunError` if it cannot be started."""
        ...

    def alive(self, handle: WorkerHandle) -> bool:
        """Return whether this worker is running. A zombie is not."""
        ...

    def stop(self, handle: WorkerHandle) -> None:
        """Ask the worker to stop after its step; does nothing if it is dead."""
        ...

    def kill(self, handle: WorkerHandle) -> None:
        """End the worker and its child processes immediately."""
        ...

    def clean(self, handle: WorkerHandle) -> None:
        """End the remaining processes of a dead worker."""
        ...

    def exit_code(self, handle: WorkerHandle) -> int | None:
        """Return the exit code (negative: minus the signal) of an ended worker that this process started."""
        ...
