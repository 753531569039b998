"""A run in the terminal: progress bars, or a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from app.common.console import err, progress
from rl2f_core.run.progress import Progress

QUIET_SECONDS = 20.0
"""Where there is no terminal, a line this often says how far the run is."""


class TerminalProgress(Progress):
    """On a terminal a bar for each stage and one for what it does at the moment; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._bars = progress()
        self._tasks: dict[str, Any] = {}
        self._said = float("-inf")

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """Move the bar of `phase`. Bars of stages stay, any other goes when the next one comes."""
        if self._bars.disable:
            self._line(phase, done, total, note)
            return
        if phase not in self._tasks:
            for old in [name for name in self._tasks if not _lasts(name)]:
                self._bars.remove_task(self._tasks.pop(old))
            self._tasks[phase] = self._bars.add_task(phase, total=total, note=note)
        self._bars.update(self._tasks[phase], completed=done, total=total, note=note)

    def _line(self, phase: str, done: float, total: float | None, note: str) -> None:
        now, ends = time.monotonic(), _lasts(phase) and total is not None and done >= total
        if now - self._said < QUIET_SECONDS and not ends:
            return
        self._said = now
        of = f"/{total:g}" if total is not None else ""
        err().print(f"{phase} {done:g}{of} {note}".rstrip(), markup=False)

    def message(self, text: str) -> None:
        """A sentence above the bars."""
        from app.common.console import model_text

        (err() if self._bars.disable else self._bars.console).print(model_text(text))


def _lasts(phase: str) -> bool:
    return phase.startswith("stage ")
