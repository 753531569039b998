"""Journal and run directory of a multi-process run: only the main process writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from rl2f_core.distributed.process_group import ProcessGroup
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, EventSink
from rl2f_core.run.journal import Journal
from rl2f_core.types import JsonObject


class DistributedJournal(Journal):
    """Journal of all processes, written by the main one. All processes must commit and resume together."""

    def __init__(self, run_dir: RunDir, events: EventSink, ranks: ProcessGroup) -> None:
        super().__init__(run_dir, events)
        self.ranks = ranks

    def emit(self, events: Iterable[Event]) -> None:
        """Add events to the next commit in the main process."""
        if self.ranks.is_main_process:
            super().emit(events)

    def commit(self, position: JsonObject, save: Callable[[Path], None] | None = None) -> None:
        """Commit in the main process; afterwards all processes can read the files.

        Args:
            position: Resume state.
            save: Called in all processes, which sharded weights need; only the main process may write.
        """
        if save is not None and not self.ranks.is_main_process:
            save(self.run_dir.state)
        self.ranks.run_on_main(lambda: super(DistributedJournal, self).commit(position, save))

    def resume(self) -> None:
        """Resume in the main process and broadcast the resume state."""

        def resume() -> tuple[JsonObject | None, Path | None]:
            super(DistributedJournal, self).resume()
            return self.resume_state, self.state_dir

        self.resume_state, self.state_dir = self.ranks.broadcast_from_main(resume)


class DistributedRunDir(RunDir):
    """Run directory that only the main process writes."""

    def __init__(self, path: str | Path, ranks: ProcessGroup) -> None:
        super().__init__(path)
        self.ranks = ranks

    def lock(self) -> AbstractContextManager[object]:
        """Lock the run in the main process; all processes raise its error."""
        return self.ranks.run_on_main(super().lock) or contextlib.nullcontext()

    def last_status(self) -> str | None:
        """Return the status that the main process reads."""
        return self.ranks.broadcast_from_main(super().last_status)

    def heartbeat(self, **values: object) -> None:
        """Write the heartbeat of the main process."""
        if self.ranks.is_main_process:
            super().heartbeat(**values)
