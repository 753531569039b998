"""Keeps what the scheduler did. It never fails: a scheduler that cannot note something goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jobs.database import Database
from jobs.store import joblog as store
from rl2f_core.errors import RL2FError

AGAIN = 600.0
"""Seconds before the same line of the same job is kept again: a job that fails every second is told once."""
_log = logging.getLogger(__name__)


class JobLogger:
    """Writes job-log lines, to the database and to the server's log."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock
        self._last: dict[tuple[str, str, str], float] = {}
        self._lock = threading.Lock()

    def note(self, job: str, outcome: str, detail: str = "") -> None:
        """Keep a line, unless the same was kept just now."""
        now = self.clock()
        with self._lock:
            key = (job, outcome, detail)
            if outcome != "ran" and now - self._last.get(key, float("-inf")) < AGAIN:
                return
            self._last = {k: t for k, t in self._last.items() if now - t < AGAIN} | {key: now}
        (_log.info if outcome in ("ran", "skipped") else _log.warning)("%s %s: %s", job, outcome, detail)
        try:
            store.add(self.db, job, outcome, detail, now)
        except RL2FError as error:
            _log.warning("The job log could not be written: %s", error)
