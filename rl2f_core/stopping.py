"""How a process is asked to end its run: Ctrl-C (or SIGTERM) to stop after the step, Ctrl-C twice to end at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """While it is entered: the first Ctrl-C (or SIGTERM) asks the run to stop, the second Ctrl-C ends it at once.

    The second raises `KeyboardInterrupt`, so that the run can still say how it ended; a third does not wait for that.
    SIGTERM may come any number of times and never ends the process at once.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether the run should stop."""
        return self.asked > 0

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.asked = max(self.asked, 1)
            return
        self.asked += 1
        if self.asked == 1:
            os.write(2, b"\nStopping after this step and saving; Ctrl-C again ends at once.\n")
        elif self.asked == 2:
            raise KeyboardInterrupt
        else:
            os._exit(130)
