"""A run's folder, journal and signals where several processes work on it: the main one writes, all hold the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rl2f_core.events import Event, EventSink
from rl2f_core.ranks import Ranks
from rl2f_core.run import Journal, RunDir


class SharedJournal(Journal):
    """A journal that all processes keep and the main one writes. All must commit and resume together."""

    def __init__(self, run_dir: RunDir, events: EventSink, ranks: Ranks) -> None:
        super().__init__(run_dir, events)
        self.ranks = ranks

    def emit(self, events: Iterable[Event]) -> None:
        """Hold events until the next commit, in the main process."""
        if self.ranks.main:
            super().emit(events)

    def commit(self, position: dict[str, Any], save: Callable[[Path], None] | None = None) -> None:
        """As `Journal.commit`; when it returns, what was written can be read by all.

        Args:
            position: Where a resume goes on.
            save: Called by all, as sharded weights need each of their holders; only the main one's call may write.
        """
        if save is not None and not self.ranks.main:
            save(self.run_dir.state)
        self.ranks.alone(lambda: super(SharedJournal, self).commit(position, save))

    def resume(self) -> None:
        """As `Journal.resume`; all get the position that the main process finds."""

        def found() -> tuple[dict[str, Any] | None, Path | None]:
            super(SharedJournal, self).resume()
            return self.position, self.folder

        self.position, self.folder = self.ranks.from_main(found)


class SharedDir(RunDir):
    """A run's folder that one process of several speaks for."""

    def __init__(self, path: str | Path, ranks: Ranks) -> None:
        super().__init__(path)
        self.ranks = ranks

    def lock(self) -> Any:
        """Held by the main process; raises everywhere what it raises there."""
        return self.ranks.alone(super().lock) or contextlib.nullcontext()

    def last_status(self) -> str | None:
        """As the main process reads it."""
        return self.ranks.from_main(super().last_status)

    def heartbeat(self, **values: Any) -> None:
        """The main process speaks for all."""
        if self.ranks.main:
            super().heartbeat(**values)
