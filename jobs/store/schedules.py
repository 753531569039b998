"""When runs are to be made. The scheduler builds its jobs from these rows alone, so a schedule survives any restart."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sqlmodel import col, select

from jobs.database import Database
from jobs.errors import NotFound
from jobs.tables import Checkpoint, Run, Schedule
from rl2f_core.errors import ConfigError

TRIGGERS = ("at", "cron", "nightly")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY = re.compile(r"(?:(?P<all>\*)|(?P<first>\d|[a-z]{3})(?:-(?P<last>\d|[a-z]{3}))?)(?:/(?P<step>\d))?", re.IGNORECASE)


def zone(name: str) -> ZoneInfo:
    """A time zone by its name, e.g. `Europe/Berlin`; raises `ConfigError` where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            "timezone: unknown time zone.", value=name, fix="Name one such as UTC or Europe/Berlin."
        ) from error


def trigger_of(schedule: Schedule) -> Any:
    """APScheduler's trigger for a schedule; raises `ConfigError` where its time cannot be read."""
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.date import DateTrigger

    where = zone(schedule.timezone)
    if schedule.trigger == "at":
        try:
            at = datetime.fromisoformat(schedule.when.strip())
        except ValueError as error:
            raise ConfigError("when: not a time.", value=schedule.when, fix="Write e.g. 2030-01-31T22:30.") from error
        return DateTrigger(at if at.tzinfo else at.replace(tzinfo=where))
    if schedule.trigger not in TRIGGERS:
        raise ConfigError("trigger: unknown.", value=schedule.trigger, known=TRIGGERS)
    fields = schedule.when.split()
    if len(fields) != 5:
        raise ConfigError("when: a cron time has five fields: minute, hour, day, month, weekday.", value=schedule.when,
                          fix="Write e.g. `30 2 * * *` for half past two every night.")  # fmt: skip
    minute, hour, day, month, weekday = fields
    try:
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=weekdays(weekday), timezone=where
        )
    except ValueError as error:
        raise ConfigError(f"when: {error}.", value=schedule.when, fix="Write e.g. `30 2 * * *`.") from error


def weekdays(field: str) -> str:
    """A cron field of weekdays as names: cron counts from Sunday (0 or 7), APScheduler's numbers from Monday."""
    if field == "*":
        return field
    chosen: list[str] = []
    for part in field.split(","):
        match = _DAY.fullmatch(part)
        if match is None:
            raise ConfigError("when: no such weekday.", value=part, known=(*_DAYS, "0-7", "mon-fri", "*/2"))
        first = 0 if match["all"] else _day(match["first"])
        last = 6 if match["all"] or (match["step"] and not match["last"]) else _day(match["last"] or match["first"])
        if match["last"] and last < first:  # fri-mon, or 5-7
            last += 7
        chosen += [_DAYS[d % 7] for d in range(first, last + 1, max(1, int(match["step"] or 1)))]
    return ",".join(dict.fromkeys(chosen))


def _day(text: str) -> int:
    if text.isdigit() and int(text) <= 7:
        return int(text) % 7
    if text.lower() in _DAYS:
        return _DAYS.index(text.lower())
    raise ConfigError("when: no such weekday.", value=text, known=(*_DAYS, "0-7"))


def next_time(schedule: Schedule, after: float) -> float | None:
    """When a schedule is due next after a moment, seconds since 1970; None where never, or where it is off."""
    if not schedule.enabled:
        return None
    moment = datetime.fromtimestamp(after + 0.001, UTC)  # a cron time that is just now is over
    found = trigger_of(schedule).get_next_fire_time(None, moment.astimezone(zone(schedule.timezone)))
    return None if found is None or found.timestamp() <= after else found.timestamp()


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
) -> Schedule:
    """Keep a schedule.

    Args:
        name: For people.
        trigger: `at` (once), `cron`, or `nightly` (evaluates the newest checkpoint, where it was not evaluated yet).
        when: ISO time for `at`, five cron fields for the others. A cron time that names day and weekday needs both.
        config: YAML of the run to make; for `nightly` a run's number, or empty for the newest checkpoint of any run.
        timezone: What `when` is meant in, where it does not say.
        enabled: False keeps it without effect.
        now: The moment to reckon from; by default the present.

    Raises `ConfigError` naming the field.
    """
    now = time.time() if now is None else now
    made = Schedule(
        name=name.strip(), trigger=trigger, when=when.strip(), timezone=timezone, config=config, enabled=enabled,
        created=now,
    )  # fmt: skip
    _check(made)
    made.next_run = next_time(made, now)
    if enabled and made.next_run is None:
        raise ConfigError("when: this time is over, or never comes.", value=when, fix="Choose a time to come.")
    with db.write() as session:
        session.add(made)
    return made


def _check(schedule: Schedule) -> None:
    if not schedule.name:
        raise ConfigError("name: a schedule needs a name.")
    trigger_of(schedule)
    if schedule.trigger == "nightly":
        if schedule.config.strip() and not schedule.config.strip().isdigit():
            raise ConfigError("config: the number of a run, or nothing.", value=schedule.config)
    else:
        from jobs.queue import parse_yaml

        parse_yaml(schedule.config)


def get(db: Database, schedule_id: int) -> Schedule:
    """A schedule; raises `NotFound` where there is none."""
    with db.read() as session:
        return _one(session, schedule_id)


def _one(session: Any, schedule_id: int) -> Schedule:
    found = session.get(Schedule, schedule_id)
    if found is None:
        raise NotFound(f"There is no schedule {schedule_id}.", fix="It may have been deleted; look at the list again.")
    return found


def all_schedules(db: Database) -> list[Schedule]:
    """Every schedule, the next due first, those that are over last."""
    with db.read() as session:
        query = select(Schedule).order_by(col(Schedule.next_run).is_(None), col(Schedule.next_run), col(Schedule.id))
        return list(session.exec(query))


def enable(db: Database, schedule_id: int, enabled: bool, now: float | None = None) -> Schedule:
    """Switch a schedule on or off; raises `ConfigError` where it would never be due again."""
    now = time.time() if now is None else now
    with db.write() as session:
        held = _one(session, schedule_id)
        held.enabled = enabled
        held.next_run = next_time(held, now)
        if enabled and held.next_run is None:
            raise ConfigError("when: this time is over.", value=held.when, fix="Make a new schedule.")
    return held


def remove(db: Database, schedule_id: int) -> None:
    """Delete a schedule. Runs that it made stay."""
    with db.write() as session:
        session.delete(_one(session, schedule_id))


def advance(db: Database, schedule_id: int, planned: float | None, now: float, *, ran: bool) -> Schedule | None:
    """Set when a schedule is due next, after it was due at `planned`; None where something else did so meanwhile.

    Args:
        planned: When it was due, as its row says.
        now: The present.
        ran: It made a run, or tried to; False where its time was missed.
    """
    with db.write() as session:
        held = session.get(Schedule, schedule_id)
        if held is None or held.next_run != planned:
            return None
        if ran:
            held.last_run = now
        if held.trigger == "at":
            held.enabled, held.next_run = False, None
        else:
            held.next_run = next_time(held, now)
    return held


def made_since(db: Database, schedule_id: int, moment: float) -> bool:
    """Whether a schedule has made a run since a moment."""
    with db.read() as session:
        query = select(Run.id).where(Run.origin == f"schedule:{schedule_id}", col(Run.created) >= moment)
        return session.exec(query.limit(1)).first() is not None


def newest_checkpoint(db: Database, run_id: int | None = None) -> tuple[Run, Checkpoint] | None:
    """The checkpoint that was saved last, of one run or of any; None where there is none."""
    query = select(Run, Checkpoint).where(Run.id == Checkpoint.run_id, col(Run.origin) != "example")
    if run_id is not None:
        query = query.where(Run.id == run_id)
    query = query.order_by(col(Checkpoint.time).desc(), col(Checkpoint.step).desc())
    with db.read() as session:
        found = session.exec(query.limit(1)).first()
        return None if found is None else (found[0], found[1])


def evaluations_of(db: Database, run_id: int) -> list[Run]:
    """The evaluations that were made of a run's checkpoints."""
    with db.read() as session:
        return list(session.exec(select(Run).where(Run.parent == run_id, Run.kind == "eval")))
