"""Job log of the scheduler. Logging never fails: errors of the log do not stop the scheduler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jobs.db.engine import Database
from jobs.db.queries import job_log as store
from rl2f_core.errors import RL2FError

DEDUP_WINDOW_SECONDS = 600.0
"""Time in which an equal line is logged once."""
_log = logging.getLogger(__name__)


class JobLogger:
    """Writes lines to the database and to the server's log."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock
        self._last: dict[tuple[str, str, str], float] = {}
        self._lock = threading.Lock()

    def record(self, job: str, outcome: str, detail: str = "") -> None:
        """Log a line, unless it repeats a recent one."""
        now = self.clock()
        with self._lock:
            key = (job, outcome, detail)
            if outcome != "ran" and now - self._last.get(key, float("-inf")) < DEDUP_WINDOW_SECONDS:
                return
            self._last = {k: t for k, t in self._last.items() if now - t < DEDUP_WINDOW_SECONDS} | {key: now}
        (_log.info if outcome in ("ran", "skipped") else _log.warning)("%s %s: %s", job, outcome, detail)
        try:
            store.add(self.db, job, outcome, detail, now)
        except RL2FError as error:
            _log.warning("The job log could not be written: %s", error)
