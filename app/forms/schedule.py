"""When a scheduled run starts: the next times that what people type comes to."""

from __future__ import annotations

import time
from datetime import datetime

from jobs.db.models import ScheduledRun
from jobs.db.queries import scheduled_runs
from rl2f_core.errors import ConfigError

SHOWN = 3
"""Next times that are shown."""


def next_times(trigger: str, when: str, timezone: str, now: float | None = None) -> list[str]:
    """The next three times as ISO text with their offset; raises `ConfigError` where there is none to come.

    Args:
        trigger: `date` or `cron`.
        when: An ISO time, or five cron fields.
        timezone: An IANA name: what `when` is meant in, and what the times are given in.
        now: Seconds since 1970; by default the present.
    """
    after = time.time() if now is None else now
    plan = ScheduledRun(name="", trigger=trigger, when=when, timezone=timezone, created=after)
    times: list[str] = []
    while len(times) < (1 if trigger == "date" else SHOWN):
        due = scheduled_runs.next_time(plan, after)
        if due is None:
            break
        times.append(datetime.fromtimestamp(due, scheduled_runs.parse_timezone(timezone)).isoformat())
        after = due
    if not times:
        raise ConfigError("This time is over, or never comes.", value=when, fix="Choose a time to come.")
    return times
