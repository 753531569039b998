"""Threads that take turns: only who holds the baton runs, and who waits for something lets the others run.

Environments, teachers, detectors and backends are written for one thread.  With a baton they may be asked from several,
one at a time, and what is won is the time that some of them spend waiting: for an endpoint, or for words that the
backend is about to sample.  The baton is handed on in the order in which it was asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any


class Ended(BaseException):
    """Nobody needs what this thread is doing any more. No `Exception`, so that no component takes it for its own."""


class Baton:
    """One baton, held by the thread that makes it; as a context manager it is given up, and its threads end."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[threading.Lock] = deque()
        self._held = True
        self._closed = False
        self._passed = threading.Event()
        self._events: list[threading.Event] = []

    def __enter__(self) -> Baton:
        self._outer = _held.set((self, False))
        return self

    def __exit__(self, *error: object) -> None:
        _held.reset(self._outer)
        with self._guard:
            self._closed = True
            for event in self._events:
                event.set()
        self._release()

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """Run something in a thread of its own, which begins when it is handed the baton."""
        threading.Thread(target=self._run, args=(work, args), daemon=True).start()

    def give_way(self, *, rest: bool = False) -> None:
        """Let all those run who want to; `rest` waits until one of them did."""
        self._passed.clear()
        self._release()
        if rest:
            self._passed.wait()
        self._acquire()

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        _held.set((self, True))
        with suppress(Ended):
            try:
                self._acquire()
                work(*args)
            finally:
                self._pass_on()

    def _pass_on(self) -> None:
        """What a thread does when it is through, or waits."""
        self._passed.set()
        self._release()

    def _acquire(self) -> None:
        with self._guard:
            if self._held:
                mine = threading.Lock()
                mine.acquire()
                self._queue.append(mine)
            else:
                self._held, mine = True, None
        if mine is not None:
            mine.acquire()
        if self._closed:
            raise Ended

    def _release(self) -> None:
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._held = False


_held: ContextVar[tuple[Baton, bool] | None] = ContextVar("held", default=None)


def aside() -> bool:
    """Whether this thread is one of those that a baton's holder has started."""
    held = _held.get()
    return held is not None and held[1]


@contextmanager
def waiting(until: threading.Event | None = None) -> Iterator[None]:
    """Let other threads run while this one only waits. `until` is set where nobody needs the result any more."""
    held = _held.get()
    if held is None or not held[1]:
        yield
        return
    baton = held[0]
    if until is not None:
        baton._events.append(until)
    baton._pass_on()
    try:
        yield
    finally:
        baton._acquire()
        if until is not None:
            baton._events.remove(until)
