"""What a run kind works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LogEvent
from rl2f_core.run.journal import Journal

ShouldStop = Callable[[], bool]


class Progress:
    """Receives the progress of a run; the base class ignores it."""

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """Report `done` of `total` (None if unknown) of a phase."""

    def message(self, text: str) -> None:
        """Report a message."""


@dataclass(frozen=True)
class RunContext:
    """Journal, stop request and progress of one execution."""

    journal: Journal
    """Receives events and commits; its `resume_state` is where a resumed run continues."""
    stop: ShouldStop = lambda: False
    """Checked between steps."""
    progress: Progress = field(default_factory=Progress)
    """Receives phase, count and messages."""

    @property
    def run_dir(self) -> RunDir:
        """The run directory."""
        return self.journal.run_dir

    def log(self, id: str, text: str) -> None:
        """Log a message as an event with this id and report it as progress; ignore an empty text."""
        if text:
            self.journal.emit([LogEvent(id=id, text=text)])
            self.progress.message(text)
