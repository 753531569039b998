"""The next times of a scheduled run."""

from __future__ import annotations

import time
from datetime import datetime

from jobs.db.models import ScheduledRun
from jobs.db.queries import scheduled_runs
from rl2f_core.errors import ConfigError

TIMES_SHOWN = 3


def next_times(trigger: str, when: str, timezone: str, now: float | None = None) -> list[str]:
    """Return the next times as ISO text with their offset; raises `ConfigError` if there is none.

    Args:
        trigger: `date` or `cron`.
        when: An ISO time, or five cron fields.
        timezone: IANA name of the time zone of `when` and of the result.
        now: Seconds since 1970; by default the current time.
    """
    after = time.time() if now is None else now
    plan = ScheduledRun(name="", trigger=trigger, when=when, timezone=timezone, created=after)
    times: list[str] = []
    while len(times) < (1 if trigger == "date" else TIMES_SHOWN):
        due = scheduled_runs.next_time(plan, after)
        if due is None:
            break
        times.append(datetime.fromtimestamp(due, scheduled_runs.parse_timezone(timezone)).isoformat())
        after = due
    if not times:
        raise ConfigError("This time is past or never occurs.", value=when, fix="Choose a future time.")
    return times
