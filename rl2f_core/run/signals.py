"""Stop a run by signal: Ctrl-C or SIGTERM stops after the step, a second Ctrl-C stops immediately."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class InterruptHandler:
    """Context manager that counts stop signals, and a `ShouldStop`.

    The first Ctrl-C or any SIGTERM requests a stop. The second Ctrl-C raises `KeyboardInterrupt`, so that the run can
    record its status; the third ends the process.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __call__(self) -> bool:
        """Whether the run should stop."""
        return self.requests > 0

    def __enter__(self) -> InterruptHandler:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.requests = max(self.requests, 1)
            return
        self.requests += 1
        if self.requests == 1:
            os.write(2, b"\nStopping after this step and saving; press Ctrl-C again to stop immediately.\n")
        elif self.requests == 2:
            raise KeyboardInterrupt
        else:
            os._exit(130)
