"""Cooperative threads: only the holder of the lock runs, and a thread that waits releases it.

Environments, teachers, detectors and backends are written for one thread. The lock lets several threads call them, one
at a time, and overlaps their waiting for endpoints and for generation. It is acquired in first-in, first-out order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar


class ThreadCancelled(BaseException):
    """The result of this thread is no longer needed. Not an `Exception`, so that no component catches it."""


class CooperativeLock:
    """Lock that its creator holds at first; as a context manager it cancels its threads at the end."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[threading.Lock] = deque()
        self._locked = True
        self._closed = False
        self._released = threading.Event()
        self._events: list[threading.Event] = []

    def __enter__(self) -> CooperativeLock:
        self._token = _current.set((self, False))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        with self._guard:
            self._closed = True
            for event in self._events:
                event.set()
        self._release()

    def spawn(self, work: Callable[..., None], *args: object) -> None:
        """Start a thread that runs `work` once it acquires the lock."""
        threading.Thread(target=self._run, args=(work, args), daemon=True).start()

    def yield_lock(self, *, wait: bool = False) -> None:
        """Let the waiting threads run; `wait` blocks until one of them has run."""
        self._released.clear()
        self._release()
        if wait:
            self._released.wait()
        self._acquire()

    def _run(self, work: Callable[..., None], args: tuple[object, ...]) -> None:
        _current.set((self, True))
        with suppress(ThreadCancelled):
            try:
                self._acquire()
                work(*args)
            finally:
                self._notify_and_release()

    def _notify_and_release(self) -> None:
        self._released.set()
        self._release()

    def _acquire(self) -> None:
        with self._guard:
            if self._locked:
                turn = threading.Lock()
                turn.acquire()
                self._queue.append(turn)
            else:
                self._locked, turn = True, None
        if turn is not None:
            turn.acquire()
        if self._closed:
            raise ThreadCancelled

    def _release(self) -> None:
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._locked = False


_current: ContextVar[tuple[CooperativeLock, bool] | None] = ContextVar("current", default=None)


def in_cooperative_thread() -> bool:
    """Whether a `CooperativeLock` started this thread."""
    current = _current.get()
    return current is not None and current[1]


@contextmanager
def lock_released(until: threading.Event | None = None) -> Iterator[None]:
    """Release the lock while this thread waits. `until` is set when the lock closes."""
    current = _current.get()
    if current is None or not current[1]:
        yield
        return
    lock = current[0]
    if until is not None:
        lock._events.append(until)
    lock._notify_and_release()
    try:
        yield
    finally:
        lock._acquire()
        if until is not None:
            lock._events.remove(until)
