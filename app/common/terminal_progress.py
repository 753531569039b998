"""Progress of a run in the terminal: bars, or occasional lines in redirected output."""

from __future__ import annotations

import time
from types import TracebackType

from rich import progress as bars

from app.common.console import err, model_text
from rl2f_core.run.context import Progress

LINE_INTERVAL_SECONDS = 20.0
"""Interval of progress lines if standard error is not a terminal."""


class TerminalProgress(Progress):
    """Context manager that shows a bar per stage and one for the current phase, or progress lines."""

    def __init__(self) -> None:
        console = err()
        self._bars = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("ETA"),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}", markup=False),
            console=console,
            speed_estimate_period=3600,  # a step may take longer than Rich's default of 30 s
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, bars.TaskID] = {}
        self._printed = float("-inf")

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """Update the bar of `phase`. Bars of stages remain; the next phase replaces any other."""
        if self._bars.disable:
            self._print_line(phase, done, total, note)
            return
        if phase not in self._tasks:
            for old in [name for name in self._tasks if not _is_stage(name)]:
                self._bars.remove_task(self._tasks.pop(old))
            self._tasks[phase] = self._bars.add_task(phase, total=total, note=note)
        self._bars.update(self._tasks[phase], completed=done, total=total, note=note)

    def _print_line(self, phase: str, done: float, total: float | None, note: str) -> None:
        now, has_ended = time.monotonic(), _is_stage(phase) and total is not None and done >= total
        if now - self._printed < LINE_INTERVAL_SECONDS and not has_ended:
            return
        self._printed = now
        suffix = f"/{total:g}" if total is not None else ""
        err().print(f"{phase} {done:g}{suffix} {note}".rstrip(), markup=False)

    def message(self, text: str) -> None:
        """Print a message above the bars."""
        (err() if self._bars.disable else self._bars.console).print(model_text(text))


def _is_stage(phase: str) -> bool:
    return phase.startswith("stage ")
