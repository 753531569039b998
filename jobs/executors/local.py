"""Workers on this machine: each is a process in its own session, with a log file, independent of the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

import psutil

from jobs.executors.base import LaunchSpec, WorkerHandle
from jobs.workspace import Workspace
from rl2f_core.common.paths import ROOT
from rl2f_core.common.processes import kill_group, reap, sigterm_blocked
from rl2f_core.errors import RunError

WORKER = (sys.executable, "-m", "jobs.worker")
START_TOLERANCE_SECONDS = 1.0
"""Tolerance of two readings of a process's start time: the kernel counts in ticks."""
KILL_TIMEOUT_SECONDS = 5.0
"""Maximum wait for a killed process."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Workers that this process started; unless it waits for them they remain zombies."""


class Local:
    """Start workers as processes.

    Args:
        workspace: Passed to the worker in `RL2F_WORKSPACE`.
        command: Command to start; the run directory is appended.
    """

    name: ClassVar[str] = "local"

    def __init__(self, workspace: Workspace, command: Sequence[str] = WORKER) -> None:
        self.workspace, self.command = workspace, tuple(command)

    def capacity(self) -> None:
        """Leave the limit to the workspace's slots."""

    def describe(self) -> str:
        """Return an empty description."""
        return ""

    def start(self, launch: LaunchSpec) -> WorkerHandle:
        """Start a worker that outlives this process; raises `RunError` if that fails."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = {"RL2F_WORKSPACE": str(self.workspace.root), "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        try:
            with open(launch.log, "ab") as log, sigterm_blocked():  # until the worker handles it
                child = subprocess.Popen(
                    [*self.command, str(launch.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **variables, **launch.environment},
                )
        except OSError as error:
            raise RunError(f"The worker cannot be started: {error}.", value=str(launch.folder)) from error
        _children[child.pid] = child
        try:
            started = psutil.Process(child.pid).create_time()
        except psutil.Error:  # it has ended already
            started = 0.0
        return WorkerHandle(child.pid, started, str(launch.folder))

    def alive(self, handle: WorkerHandle) -> bool:
        """Return whether this worker is running; reaps it if it has ended."""
        return self._process(handle) is not None

    def stop(self, handle: WorkerHandle) -> None:
        """Send SIGTERM: the worker ends after its step."""
        process = self._process(handle)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)

    def kill(self, handle: WorkerHandle) -> None:
        """Send SIGKILL to the worker, its group and its descendants, and wait for their end."""
        process = self._process(handle)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [process, *process.children(recursive=True)]
            kill_group(handle.pid)
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            _reap(handle.pid, KILL_TIMEOUT_SECONDS)
            psutil.wait_procs(family, KILL_TIMEOUT_SECONDS)

    def clean(self, handle: WorkerHandle) -> None:
        """Send SIGKILL to the remaining group of a dead worker.

        The kernel does not reuse a process id while its group exists: if another process has it, the group is empty.
        """
        try:
            is_same = _has_ended(psutil.Process(handle.pid)) and _has_same_start(handle)
        except psutil.NoSuchProcess:
            is_same = True
        if is_same:
            kill_group(handle.pid)
            _children.pop(handle.pid, None)

    def exit_code(self, handle: WorkerHandle) -> int | None:
        """Return the exit code of an ended worker that this process started."""
        child = _children.get(handle.pid)
        return None if child is None else child.poll()

    def _process(self, handle: WorkerHandle) -> psutil.Process | None:
        """Return the living process; None if it ended, is a zombie, or another process has its id."""
        try:
            process = psutil.Process(handle.pid)
            is_same = _has_same_start(handle)
            if _has_ended(process):
                if is_same:
                    _reap(handle.pid)
                return None
            # After a change of the system clock the start times differ, but the command identifies the worker.
            return process if is_same or process.cmdline()[-1:] == [handle.folder] else None
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # a process of another user is none of our workers
            return None


def _has_ended(process: psutil.Process) -> bool:
    """Return whether a process is a zombie without threads: remaining threads hold its files and locks."""
    if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return False
    try:
        return process.num_threads() <= 1
    except psutil.ZombieProcess:
        return True


def _has_same_start(handle: WorkerHandle) -> bool:
    return abs(psutil.Process(handle.pid).create_time() - handle.started) <= START_TOLERANCE_SECONDS


def _reap(pid: int, seconds: float = 0.0) -> None:
    """Collect the exit code of a child, waiting at most `seconds`."""
    child = _children.get(pid)
    if child is None:
        reap(pid)
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
