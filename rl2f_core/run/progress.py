"""Interface of progress reports and of requests to stop."""

from __future__ import annotations

from collections.abc import Callable

ShouldStop = Callable[[], bool]


class Progress:
    """Receives the progress of a run; the base class ignores it."""

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """Report `done` of `total` (None if unknown) of a phase."""

    def message(self, text: str) -> None:
        """Report a message."""
