"""Observers receive the events of a run in threads of their own: trackers and alerts.

An observer never stops or slows the run. Each has a bounded queue; events that do not fit, and events that it fails to
process, are counted as lost. The run logs the first error of each observer and the number of lost events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import Full, Queue, SimpleQueue
from typing import ClassVar

from rl2f_core.errors import RL2FError, shorten
from rl2f_core.run.events import Event, EventSink, LogEvent

QUEUE_SIZE = 1000
"""Maximum number of waiting events per observer."""
CLOSE_SECONDS = 10.0
"""Time for the waiting events of all observers at the end of the run; later ones are lost."""


class Observer(ABC):
    """Receives events of a run. All methods but `handles` are called in the observer's thread."""

    name: ClassVar[str]
    """Name in the log."""

    def handles(self, event: Event) -> bool:
        """Return whether the observer needs an event; called in the run's thread, so it must be fast."""
        return True

    def open(self) -> None:  # noqa: B027
        """Prepare for the first event; after an error, all events are lost."""

    @abstractmethod
    def observe(self, event: Event) -> None:
        """Process an event; any exception means that it is lost."""

    def close(self) -> None:  # noqa: B027
        """Release resources after the last event."""


class _Delivery:
    """The thread and the queue of one observer."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.submitted = self.delivered = 0
        self.errors: SimpleQueue[str] = SimpleQueue()
        self._failed = False
        self._queue: Queue[Event | None] = Queue(QUEUE_SIZE)
        self._thread = threading.Thread(target=self._run, name=f"observer {observer.name}", daemon=True)
        self._thread.start()

    def submit(self, event: Event) -> None:
        """Add an event to the queue, or lose it if the queue is full."""
        if self.observer.handles(event):
            self.submitted += 1
            with contextlib.suppress(Full):
                self._queue.put_nowait(event)

    def close(self, deadline: float) -> None:
        """Wait until the thread ends, at most until `deadline` of `time.monotonic`."""
        with contextlib.suppress(Full):
            self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        opened = self._try(self.observer.open)
        while (event := self._queue.get()) is not None:
            if opened and self._try(self.observer.observe, event):
                self.delivered += 1
        if opened:
            self._try(self.observer.close)

    def _try(self, call: Callable[..., None], *arguments: Event) -> bool:
        try:
            call(*arguments)
        except Exception as error:  # outer boundary: code of other packages, which may raise anything
            if not self._failed:
                self.errors.put(shorten(f"{type(error).__name__}: {error}", 500))
            self._failed = True
            return False
        return True


class ObservedSink:
    """An event sink whose events are also submitted to observers, after `start`."""

    def __init__(self, sink: EventSink, observers: Sequence[Observer]) -> None:
        self.sink = sink
        self._observers = observers
        self._deliveries: list[_Delivery] = []

    def start(self) -> None:
        """Start the observers."""
        self._deliveries = [_Delivery(observer) for observer in self._observers]

    def emit(self, events: Sequence[Event]) -> None:
        """Append events, submit them, and log errors of observers."""
        self.sink.emit(events)
        self.notify(events)
        self._log([f"{d.observer.name}: {d.errors.get()}" for d in self._deliveries if not d.errors.empty()])

    def notify(self, events: Sequence[Event]) -> None:
        """Submit events to the observers only."""
        for delivery in self._deliveries:
            for event in events:
                delivery.submit(event)

    def offset(self) -> int:
        """Return the length of the stored events."""
        return self.sink.offset()

    def reconcile(self, position: int, expected: bytes) -> None:
        """Append missing events after `position`; see `EventSink`."""
        self.sink.reconcile(position, expected)

    def close(self, *, log: bool) -> None:
        """Wait for the observers, at most `CLOSE_SECONDS`; with `log`, log errors and the number of lost events."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for delivery in self._deliveries:
            delivery.close(deadline)
        texts = []
        for d in self._deliveries:
            count = d.submitted - d.delivered
            lost = f"{count} of {d.submitted} events were lost" if count else ""
            error = "" if d.errors.empty() else d.errors.get()
            texts += [f"{d.observer.name}: {text}" for text in (error, lost) if text]
        if log:
            with contextlib.suppress(RL2FError, OSError):  # a full disk; the run has ended
                self._log(texts)

    def _log(self, texts: Sequence[str]) -> None:
        if texts:
            self.sink.emit([LogEvent(id=f"observer:{time.time_ns():x}", level="warning", text="\n".join(texts))])
