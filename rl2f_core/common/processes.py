"""Signals and processes, where POSIX systems and Windows differ."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import psutil


@contextlib.contextmanager
def sigterm_blocked(block: bool = True) -> Iterator[None]:
    """Block SIGTERM in this thread, then restore its signal mask. Processes started inside inherit the block.

    Windows has no signal masks, and does nothing. With `block` False, only the mask is restored.
    """
    if sys.platform == "win32":
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if block else set())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def unblock_sigterm() -> None:
    """Unblock SIGTERM in this thread; a signal that arrived meanwhile is delivered."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group `pid`, if it exists; Windows has no groups, and does nothing."""
    if sys.platform != "win32" and pid > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def reap(pid: int) -> None:
    """Collect the exit code of a child that has ended, so that it is not a zombie. Windows has none."""
    if sys.platform != "win32":
        with contextlib.suppress(ChildProcessError):  # not a child of this process
            os.waitpid(pid, os.WNOHANG)


def peak_memory() -> int:
    """Return the largest resident memory of this process in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
