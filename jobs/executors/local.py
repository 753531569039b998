"""Workers on this machine: each a process in a session of its own, with a log file and no tie to the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import psutil

from jobs.executors.base import Handle, Launch
from jobs.studio import Studio
from rl2f_core.errors import RunError

WORKER = (sys.executable, "-m", "jobs.worker")
SAME_START = 1.0
"""Seconds by which two readings of a process's start may differ: the kernel counts in ticks."""
KILL_SECONDS = 5.0
"""How long a killed process may take to be gone."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Workers that this process started: to be waited for, or they stay zombies."""


class Local:
    """Starts workers as processes.

    Args:
        studio: Named to the worker in `RL2F_STUDIO`.
        command: What is started; the run's folder is added as its last argument.
    """

    name: ClassVar[str] = "local"

    def __init__(self, studio: Studio, command: Sequence[str] = WORKER) -> None:
        self.studio, self.command = studio, tuple(command)

    def room(self) -> None:
        """The studio's slots decide."""

    def described(self) -> str:
        """Nothing to say: runs are worked on here."""
        return ""

    def start(self, launch: Launch) -> Handle:
        """Start a worker that outlives this process; raises `RunError` where it cannot be started."""
        packages = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
        own = {"RL2F_STUDIO": str(self.studio.root), "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        try:
            with open(launch.log, "ab") as log, _term_blocked():
                child = subprocess.Popen(
                    [*self.command, str(launch.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **own, **launch.environment},
                )
        except OSError as error:
            raise RunError(f"The worker cannot be started: {error}.", value=str(launch.folder)) from error
        _children[child.pid] = child
        try:
            started = psutil.Process(child.pid).create_time()
        except psutil.Error:  # it is gone already, and waits to be reaped
            started = 0.0
        return Handle(child.pid, started, str(launch.folder))

    def alive(self, handle: Handle) -> bool:
        """Whether this very worker still runs; one that has ended is reaped on the way."""
        return self._process(handle) is not None

    def stop(self, handle: Handle) -> None:
        """SIGTERM: the worker ends after its step."""
        process = self._process(handle)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)

    def kill(self, handle: Handle) -> None:
        """SIGKILL to the worker, its group, and whatever descends from it; returns when they are gone."""
        process = self._process(handle)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [process, *process.children(recursive=True)]
            _kill_group(handle.pid)
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            _reap(handle.pid, KILL_SECONDS)
            psutil.wait_procs(family, KILL_SECONDS)

    def clean(self, handle: Handle) -> None:
        """SIGKILL to what a dead worker has left in its group.

        A process id is not given away while a group still goes by it; where another has it, the group was empty.
        """
        try:
            ours = _ended(psutil.Process(handle.pid)) and _same_start(handle)
        except psutil.NoSuchProcess:
            ours = True
        if ours:
            _kill_group(handle.pid)
            _children.pop(handle.pid, None)

    def exit_code(self, handle: Handle) -> int | None:
        """The exit code of a worker that this process started, once it has ended."""
        child = _children.get(handle.pid)
        return None if child is None else child.poll()

    def _process(self, handle: Handle) -> psutil.Process | None:
        """The living process, or None where it ended, is a zombie, or has lost its id to another."""
        try:
            process = psutil.Process(handle.pid)
            same = _same_start(handle)
            if _ended(process):
                if same:
                    _reap(handle.pid)
                return None
            # The system's clock may have been set since: then the command still tells.
            return process if same or process.cmdline()[-1:] == [handle.folder] else None
        except psutil.NoSuchProcess:
            return None


def _ended(process: psutil.Process) -> bool:
    """Whether a process is a zombie without threads: until they are gone too, it holds its files and locks."""
    if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return False
    try:
        return process.num_threads() <= 1
    except psutil.ZombieProcess:
        return True


def _same_start(handle: Handle) -> bool:
    return abs(psutil.Process(handle.pid).create_time() - handle.started) <= SAME_START


@contextlib.contextmanager
def _term_blocked() -> Iterator[None]:
    """A process started meanwhile holds SIGTERM back until it says that it can take it: none is lost, none kills it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(pid: int) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _reap(pid: int, seconds: float = 0.0) -> None:
    """Take the exit code of a child of ours, so that it is no zombie; wait for it up to `seconds`."""
    child = _children.get(pid)
    if child is None:
        with contextlib.suppress(ChildProcessError):  # init's child, not ours
            os.waitpid(pid, os.WNOHANG)
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
