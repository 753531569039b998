"""Time: what is started later, again and again, or every second. One scheduler a studio, under a file lock.

Its jobs are built from code and from our own table of schedules; nothing is pickled, and a restart knows all of it.
When a schedule is due next stands in its row, so a time that passed while no server ran is found, and logged as missed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from jobs import retention
from jobs.database import Database
from jobs.errors import NotFound, StoreError
from jobs.joblog import JobLogger
from jobs.queue import Queue
from jobs.store import schedules, settings
from jobs.studio import Studio
from jobs.tables import ACTIVE, Run, Schedule
from rl2f_core.errors import RL2FError, RunError

LATE = 60.0
"""Seconds by which a schedule may be late before its time counts as missed."""
RUN_MISSED = "schedules.run_missed"
"""Setting: `1` (default) runs an `at` that was missed once at the next start, `0` only logs it."""
EVERY = {
    "dispatch": (1, "Start what waits"),
    "follow": (1, "Read what runs report"),
    "reap": (1, "Notice what ended"),
    "sync": (2, "Look for changed schedules"),
}
"""Seconds between two rounds."""
DAILY = {"backup": ((3, 30), "Copy the database"), "retain": ((4, 10), "Throw away what is old")}
"""Hour and minute, UTC."""
_schedulers: dict[str, Scheduler] = {}
"""By lock file: jobs name the scheduler they belong to by text."""


class SchedulerHeld(RL2FError):
    """Another server schedules the studio."""


class Job(NamedTuple):
    """A job of the scheduler."""

    id: str
    name: str
    next_run_time: float | None
    """Seconds since 1970."""


def perform(scheduler: str, task: str, *arguments: Any) -> None:
    """What every job does: a task of a scheduler, both named by text."""
    held = _schedulers.get(scheduler)
    if held is not None:  # else it was stopped just now
        held.tasks[task](*arguments)


class Scheduler:
    """The one scheduler of a studio.

    Args:
        db: The studio's database.
        studio: Its folders.
        queue: Gets the runs that are due, and is looked after every second.
        clock: Seconds since 1970.
        address: Where this server answers, told to a second one.
    """

    def __init__(
        self, db: Database, studio: Studio, queue: Queue, clock: Callable[[], float] = time.time, address: str = ""
    ) -> None:
        self.db, self.studio, self.queue, self.clock, self.address = db, studio, queue, clock, address
        self.log = JobLogger(db, clock)
        self.tasks: dict[str, Callable[..., Any]] = {
            "dispatch": queue.dispatch,
            "follow": queue.follow,
            "reap": queue.reap,
            "sync": self.sync,
            "backup": self.backup,
            "retain": self.retain,
            "fire": self.fire,
        }
        self._key = str(studio.lock)
        self._lock: IO[str] | None = None
        self._known: dict[str, tuple[object, ...]] = {}
        self._time: BackgroundScheduler | None = None

    def start(self) -> None:
        """Take the studio and begin; raises `SchedulerHeld` where another server has it."""
        self._lock = self._take()
        try:
            self.queue.recover()
            self._begin()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End, after what it does at the moment, and let the studio go. Workers go on."""
        if self._time is not None and self._time.running:
            self._time.shutdown()
        self._time = None
        if self._lock is not None:
            _schedulers.pop(self._key, None)
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def jobs(self) -> list[Job]:
        """All jobs, the next first."""
        found = self._time.get_jobs() if self._time is not None else []
        return [Job(job.id, job.name, job.next_run_time and job.next_run_time.timestamp()) for job in found]

    # -- the lock ----------------------------------------------------------------------------------------------
    def _take(self) -> IO[str]:
        self.studio.root.mkdir(parents=True, exist_ok=True)
        file = open(self.studio.lock, "a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = _holder(file.read())
            file.close()
            raise SchedulerHeld(
                f"Another server has this studio: {holder}.",
                value=str(self.studio.root),
                fix="Use that one, or stop it; this one can only show.",
            ) from error
        file.truncate(0)
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "address": self.address}
        file.write(json.dumps(own))
        file.flush()
        return file

    # -- jobs --------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # the job log tells, and does not repeat itself
        _schedulers[self._key] = self
        self._known = {}
        self._time = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(8)},
            job_defaults={"misfire_grace_time": 30, "coalesce": True, "max_instances": 1},
        )
        self._time.add_listener(self._heard, EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        for task, (seconds, name) in EVERY.items():
            self._add(task, name, task, trigger="interval", seconds=seconds)
        for task, ((hour, minute), name) in DAILY.items():
            self._add(task, name, task, trigger="cron", hour=hour, minute=minute, misfire_grace_time=3600)
        if retention.backup_is_due(self.studio, self.clock()):
            self._add("backup:missed", "Copy the database, which is overdue", "backup", trigger="date")
        self.sync()
        self._time.start()

    def _add(self, id: str, name: str, task: str, *arguments: Any, **options: Any) -> None:
        assert self._time is not None
        self._time.add_job(
            f"{__name__}:perform",
            args=[self._key, task, *arguments],
            id=id,
            name=name,
            replace_existing=True,
            **options,
        )

    def _heard(self, event: JobExecutionEvent) -> None:
        if event.code == EVENT_JOB_MISSED:
            self.log.note(event.job_id, "missed", f"due at {_moment(event.scheduled_run_time.timestamp())}")
        else:
            self.log.note(event.job_id, "failed", f"{type(event.exception).__name__}: {event.exception}")

    def sync(self) -> None:
        """Make the jobs agree with the table of schedules."""
        if self._time is None:
            return
        wanted: dict[str, tuple[object, ...]] = {}
        for row in schedules.all_schedules(self.db):
            if not row.enabled or row.next_run is None:
                continue
            id, what = f"schedule:{row.id}", (row.name, row.trigger, row.when, row.timezone, row.next_run)
            wanted[id] = what
            if self._known.get(id) == what and row.next_run > self.clock():  # one that is overdue is tried again
                continue
            try:
                trigger = schedules.trigger_of(row)
            except RL2FError as error:
                self.log.note(id, "failed", str(error))
                continue
            due = datetime.fromtimestamp(row.next_run, UTC)
            # However late it is, it is called: it knows by how much, and logs it.
            self._add(id, row.name, "fire", row.id, trigger=trigger, next_run_time=due, misfire_grace_time=None)
        for id in self._known.keys() - wanted.keys():
            with contextlib.suppress(JobLookupError):
                self._time.remove_job(id)
        self._known = wanted

    # -- tasks -------------------------------------------------------------------------------------------------
    def fire(self, schedule_id: int) -> None:
        """Make the run of a schedule that is due: once for each time, also when a server died in between."""
        try:
            row = schedules.get(self.db, schedule_id)
        except NotFound:
            return
        now, job = self.clock(), f"schedule:{schedule_id}"
        if not row.enabled or row.next_run is None or row.next_run > now + 1:  # it was changed meanwhile
            return
        if schedules.made_since(self.db, schedule_id, row.next_run):
            schedules.advance(self.db, schedule_id, row.next_run, now, ran=True)
            return
        if now - row.next_run > LATE:
            again = row.trigger == "at" and settings.get(self.db, RUN_MISSED, "1") == "1"
            what = "it is run now" if again else "it is not run"
            self.log.note(job, "missed", f"{row.name}: due at {_moment(row.next_run)}, no server ran; {what}")
            if not again:
                schedules.advance(self.db, schedule_id, row.next_run, now, ran=False)
                return
        try:
            outcome, detail = self._make(row)
        except StoreError:  # it is tried again
            raise
        except RL2FError as error:
            outcome, detail = "failed", str(error)
        schedules.advance(self.db, schedule_id, row.next_run, now, ran=True)
        self.log.note(job, outcome, f"{row.name}: {detail}")

    def _make(self, row: Schedule) -> tuple[str, str]:
        """Add the run of a schedule to the queue; returns the outcome and, in words, what was made."""
        origin = f"schedule:{row.id}"
        if row.trigger != "nightly":
            return "ran", f"made run {self.queue.add(row.config, origin=origin).id}"
        from rl2f_core.kinds.eval import eval_config

        wanted = int(row.config) if row.config.strip() else None
        found = schedules.newest_checkpoint(self.db, wanted)
        if found is None:
            return "skipped", "there is no checkpoint yet"
        run, checkpoint = found
        if run.id is None:
            raise RunError("The checkpoint belongs to no run.", value=checkpoint.name)
        config = eval_config([(self.studio.folder(run.folder), checkpoint.name)])
        path = config.adapters[checkpoint.name]
        for done in schedules.evaluations_of(self.db, run.id):
            if done.status in (*ACTIVE, "succeeded") and path is not None and _evaluates(done, path):
                return "skipped", f"{checkpoint.name} of run {run.id} has an evaluation: run {done.id}"
        made = self.queue.add(config, origin=origin, parent=run.id)
        return "ran", f"made run {made.id}, which evaluates {checkpoint.name} of run {run.id}"

    def backup(self) -> None:
        """Copy the database into the studio's `backups/`."""
        path = retention.backup(self.db, self.studio, self.clock())
        if path is None:
            self.log.note("backup", "skipped", "the database is no file: its own tools copy it")
        else:
            self.log.note("backup", "ran", path.name)

    def retain(self) -> None:
        """Throw away what is older than the settings allow."""
        self.log.note("retain", "ran", retention.retain(self.db, self.studio, self.clock()))


def _evaluates(run: Run, path: str) -> bool:
    import yaml

    try:
        return path in yaml.safe_load(run.config)["adapters"].values()
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return False


def _holder(text: str) -> str:
    try:
        held = json.loads(text)
        where = f", {held['address']}" if held.get("address") else ""
        return f"process {int(held['pid'])} on {held['host']} since {_moment(float(held['since']))}{where}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "one that did not say who it is"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
