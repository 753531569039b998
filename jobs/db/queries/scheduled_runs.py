"""Scheduled runs. The scheduler triggers them from these rows alone, so schedules survive restarts."""

from __future__ import annotations

import re
import time
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlmodel import Session, col, select

from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import Checkpoint, Run, ScheduledRun
from rl2f_core.common.text.integers import whole_number
from rl2f_core.config.loading import parse_yaml
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from apscheduler.triggers.base import BaseTrigger

TRIGGERS = ("date", "cron", "nightly")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY = re.compile(
    r"(?:(?P<all>\*)|(?P<first>\d|[a-z]{3})(?:-(?P<last>\d|[a-z]{3}))?)(?:/(?P<step>[1-9]))?", re.IGNORECASE
)


def parse_timezone(name: str) -> ZoneInfo:
    """Return a time zone, e.g. `Europe/Berlin`; raises `ConfigError` if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            "timezone: unknown time zone.", value=name, fix="Use a name such as UTC or Europe/Berlin."
        ) from error


def trigger_of(schedule: ScheduledRun, timezone: tzinfo | None = None) -> BaseTrigger:
    """Return APScheduler's trigger of a schedule; raises `ConfigError` if its time is invalid.

    Args:
        schedule: The schedule.
        timezone: Replaces the schedule's time zone.
    """
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.date import DateTrigger

    timezone = timezone or parse_timezone(schedule.timezone)
    if schedule.trigger == "date":
        try:
            at = datetime.fromisoformat(schedule.when.strip())
            if not MINYEAR < at.year < MAXYEAR:  # in another time zone it may be in a year that has no date
                raise ValueError(schedule.when)
        except ValueError as error:
            raise ConfigError("when: not a time.", value=schedule.when, fix="Write e.g. 2030-01-31T22:30.") from error
        return DateTrigger(at if at.tzinfo else at.replace(tzinfo=timezone))
    if schedule.trigger not in TRIGGERS:
        raise ConfigError("trigger: unknown.", value=schedule.trigger, known=TRIGGERS)
    fields = schedule.when.split()
    if len(fields) != 5:
        raise ConfigError(
            "when: a cron time has five fields: minute, hour, day, month, weekday.",
            value=schedule.when,
            fix="Write e.g. `30 2 * * *` for 2:30 every night.",
        )
    minute, hour, day, month, weekday = fields
    days = weekdays(weekday)
    try:
        return CronTrigger(minute=minute, hour=hour, day=day, month=month, day_of_week=days, timezone=timezone)
    except ValueError as error:
        raise ConfigError(f"when: {error}.", value=schedule.when, fix="Write e.g. `30 2 * * *`.") from error


def weekdays(field: str) -> str:
    """Convert a cron weekday field to names: cron numbers start on Sunday (0 or 7), APScheduler's on Monday."""
    if field == "*":
        return field
    days: list[str] = []
    for part in field.split(","):
        match = _DAY.fullmatch(part)
        if match is None:
            raise _unknown_weekday(part)
        first = 0 if match["all"] else _day(match["first"])
        last = 6 if match["all"] or (match["step"] and not match["last"]) else _day(match["last"] or match["first"])
        if match["last"] and last < first:  # fri-mon, or 5-7
            last += 7
        days += [_DAYS[d % 7] for d in range(first, last + 1, int(match["step"] or 1))]
    return ",".join(dict.fromkeys(days))


def _day(text: str) -> int:
    if whole_number(text, 8) <= 7:
        return int(text) % 7
    if text.lower() in _DAYS:
        return _DAYS.index(text.lower())
    raise _unknown_weekday(text)


def _unknown_weekday(text: str) -> ConfigError:
    known = (*_DAYS, "0-7", "mon-fri", "*/2")
    return ConfigError("when: unknown weekday.", value=text, known=known, fix="Write e.g. `30 2 * * mon-fri`.")


def next_time(schedule: ScheduledRun, after: float) -> float | None:
    """Return the next due time after `after`; None if there is none or the schedule is disabled.

    A cron time is due at every clock time that its fields match. When the clock is changed, a skipped time is due by
    the length of the gap later, and a repeated time at its first occurrence; a schedule of every hour at both, so that
    each elapsed hour of its days has one. Times that coincide are due once.
    """
    if not schedule.enabled:
        return None
    zone = parse_timezone(schedule.timezone)
    if schedule.trigger == "date":
        due = trigger_of(schedule).get_next_fire_time(None, datetime.fromtimestamp(after, zone))
        return None if due is None or due.timestamp() <= after else due.timestamp()
    trigger, candidates = trigger_of(schedule, UTC), list[float]()  # times of the clock, as if they were UTC
    is_hourly, clock = _is_hourly(trigger), _clock_before(after + 0.001, zone)  # after a clock time equal to `after`
    last = clock
    while (not candidates or clock <= last) and (due := trigger.get_next_fire_time(None, clock)) is not None:
        first, second = (due.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        later = [moment for moment in (first, second if is_hourly else first) if moment > after and moment >= first]
        if later and not candidates:  # when the clock is changed, a later clock time may be due before this one
            last = due + timedelta(seconds=abs(second - first))
        candidates += later
        clock = due + timedelta(seconds=1)
    return min(candidates, default=None)


def _is_hourly(trigger: Any) -> bool:
    """Whether a cron trigger is due in every hour of its days."""
    hours = next(field for field in trigger.fields if field.name == "hour")
    return all(hours.get_next_value(datetime(2000, 1, 1, hour)) == hour for hour in range(24))


def _clock_before(moment: float, zone: ZoneInfo) -> datetime:
    """Return a clock time, as UTC, at or before all clock times that are due after a moment."""
    local = datetime.fromtimestamp(moment, zone)
    offsets = [datetime.fromtimestamp(moment + days * 86_400, zone).utcoffset() or timedelta() for days in (-1, 0, 1)]
    return local.replace(tzinfo=UTC, fold=0) - (max(offsets) - min(offsets))


def add(
    db: Database,
    *,
    name: str,
    trigger: str,
    when: str,
    config: str = "",
    timezone: str = "UTC",
    enabled: bool = True,
    now: float | None = None,
) -> ScheduledRun:
    """Add a schedule.

    Args:
        db: The database.
        name: Display name.
        trigger: `date` (once), `cron`, or `nightly` (evaluates the newest checkpoint unless it is evaluated already).
        when: ISO time for `date`, five cron fields otherwise. With both a day and a weekday, both must match.
        config: YAML of the run; for `nightly` a run id, or empty for the newest checkpoint of any run.
        timezone: Time zone of `when`, unless it includes one.
        enabled: False disables the schedule.
        now: The current time.

    Raises `ConfigError` naming the field.
    """
    now = time.time() if now is None else now
    schedule = ScheduledRun(
        name=name.strip(),
        trigger=trigger,
        when=when.strip(),
        timezone=timezone,
        config=config,
        enabled=enabled,
        created=now,
    )
    _check(schedule)
    schedule.next_run = next_time(schedule, now)
    if enabled and schedule.next_run is None:
        raise ConfigError("when: this time is in the past or never occurs.", value=when, fix="Choose a future time.")
    with db.write() as session:
        session.add(schedule)
    return schedule


def _check(schedule: ScheduledRun) -> None:
    if not schedule.name:
        raise ConfigError("name: a schedule needs a name.")
    trigger_of(schedule)
    if schedule.trigger != "nightly":
        parse_yaml(schedule.config)
    elif schedule.config.strip() and whole_number(schedule.config.strip(), None) is None:
        raise ConfigError("config: must be a run id or empty.", value=schedule.config)


def get(db: Database, schedule_id: int) -> ScheduledRun:
    """Return a schedule; raises `NotFoundError` if it does not exist."""
    with db.read() as session:
        return _get_in_session(session, schedule_id)


def _get_in_session(session: Session, schedule_id: int) -> ScheduledRun:
    schedule = session.get(ScheduledRun, schedule_id)
    if schedule is None:
        raise NotFoundError(f"Schedule {schedule_id} not found.", fix="It may have been deleted; reload the list.")
    return schedule


def all_schedules(db: Database) -> list[ScheduledRun]:
    """Return all schedules by due time; those without one come last."""
    due = col(ScheduledRun.next_run)
    return db.fetch_all(select(ScheduledRun).order_by(due.is_(None), due, col(ScheduledRun.id)))


def due_schedules(db: Database, now: float) -> list[ScheduledRun]:
    """Return the enabled schedules that are due, by due time."""
    due = col(ScheduledRun.next_run)
    query = select(ScheduledRun).where(col(ScheduledRun.enabled), due <= now)
    return db.fetch_all(query.order_by(due, col(ScheduledRun.id)))


def enable(db: Database, schedule_id: int, enabled: bool, now: float | None = None) -> ScheduledRun:
    """Enable or disable a schedule; raises `ConfigError` if its time is over."""
    now = time.time() if now is None else now
    with db.write() as session:
        schedule = _get_in_session(session, schedule_id)
        schedule.enabled = enabled
        schedule.next_run = next_time(schedule, now)
        if enabled and schedule.next_run is None:
            raise ConfigError("when: this time is in the past.", value=schedule.when, fix="Add a new schedule.")
    return schedule


def remove(db: Database, schedule_id: int) -> None:
    """Delete a schedule but not its runs."""
    with db.write() as session:
        session.delete(_get_in_session(session, schedule_id))


def advance(db: Database, schedule_id: int, planned: float | None, now: float, *, ran: bool) -> ScheduledRun | None:
    """Set the next due time of a schedule that was due; None if another process has advanced it.

    Args:
        db: The database.
        schedule_id: The schedule.
        planned: Its due time, as stored.
        now: The current time.
        ran: Whether it created a run or tried to; False if it missed its time.
    """
    with db.write() as session:
        schedule = session.get(ScheduledRun, schedule_id)
        if schedule is None or schedule.next_run != planned:
            return None
        if ran:
            schedule.last_run = now
        if schedule.trigger == "date":
            schedule.enabled, schedule.next_run = False, None
        else:
            schedule.next_run = next_time(schedule, now)
    return schedule


def has_run_since(db: Database, schedule_id: int, moment: float) -> bool:
    """Whether a schedule has created a run since `moment`."""
    query = select(col(Run.id)).where(Run.origin == f"schedule:{schedule_id}", col(Run.created) >= moment)
    return bool(db.fetch_all(query.limit(1)))


def newest_checkpoint(db: Database, run_id: int | None = None) -> tuple[Run, Checkpoint] | None:
    """Return the newest checkpoint of a run or of all runs; None without checkpoints."""
    query = select(Run, Checkpoint).where(Run.id == Checkpoint.run_id, col(Run.origin) != "example")
    if run_id is not None:
        query = query.where(Run.id == run_id)
    query = query.order_by(col(Checkpoint.time).desc(), col(Checkpoint.step).desc())
    with db.read() as session:
        row = session.exec(query.limit(1)).first()
        return None if row is None else (row[0], row[1])


def evaluations_of(db: Database, run_id: int) -> list[Run]:
    """Return the evaluations of a run's checkpoints."""
    return db.fetch_all(select(Run).where(Run.parent == run_id, Run.kind == "eval"))
