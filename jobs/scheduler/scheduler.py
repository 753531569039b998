"""The scheduler: dispatches the queue, triggers scheduled runs, and performs daily maintenance.

One server per workspace schedules; it holds a file lock. The jobs are built from code, so nothing is pickled. The next
due time of a scheduled run is stored in its row, so that a time that passed without a server is detected and logged as
missed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from datetime import UTC, datetime

import psutil
import yaml
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from filelock import FileLock, Timeout

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, StoreError
from jobs.db.models import ACTIVE, Run, ScheduledRun
from jobs.db.queries import scheduled_runs
from jobs.queue.queue import Queue
from jobs.scheduler import retention
from jobs.scheduler.job_logger import JobLogger
from jobs.workspace import Workspace
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.errors import RL2FError, RunError
from rl2f_core.models.device import trim_memory

MISFIRE_GRACE_SECONDS = 60.0
"""Delay after which a scheduled run counts as missed."""
RUN_MISSED = "schedules.run_missed"
"""Setting: `1` (default) executes a missed one-time run at the next start, `0` only logs it."""
DAILY_JOBS = {"backup": (3, 30), "apply_retention": (4, 10)}
"""Hour and minute (UTC)."""


class SchedulerLockedError(RL2FError):
    """Another server schedules the workspace."""


class Scheduler:
    """The scheduler of a workspace.

    Args:
        db: The workspace's database.
        workspace: Its directories.
        queue: Dispatched every second; receives the scheduled runs.
        address: URL of this server, shown by servers that find the workspace locked.
    """

    def __init__(
        self,
        db: Database,
        workspace: Workspace,
        queue: Queue,
        address: str = "",
    ) -> None:
        self.db, self.workspace, self.queue, self.address = db, workspace, queue, address
        self.log = JobLogger(db)
        self._lock: FileLock | None = None
        self._time: BackgroundScheduler | None = None

    def start(self) -> None:
        """Lock the workspace and start; raises `SchedulerLockedError` if another server has the lock."""
        self._lock = self._acquire_lock()
        try:
            self.queue.recover()
            self._start_jobs()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop after the current jobs, and unlock the workspace. Workers continue."""
        if self._time is not None and self._time.running:
            self._time.shutdown()
        self._time = None
        if self._lock is not None:
            self.workspace.lock.write_text("")
            self._lock.release()
            self._lock = None

    def _acquire_lock(self) -> FileLock:
        self.workspace.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.workspace.lock, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise SchedulerLockedError(
                f"Another server has this workspace: {_describe_owner(self.workspace.lock.read_text('utf-8'))}.",
                value=str(self.workspace.root),
                fix="Use that server or stop it; this one is read-only.",
            ) from error
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "address": self.address}
        self.workspace.lock.write_text(json.dumps(owner), encoding="utf-8")
        return lock

    # -- jobs --------------------------------------------------------------------------------------------------
    def _start_jobs(self) -> None:
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # the job log has these, without repetitions
        self._time = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(8)},
            job_defaults={"misfire_grace_time": 30, "coalesce": True, "max_instances": 1},
        )
        self._time.add_listener(self._on_job_event, EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        tasks = (self.queue.dispatch, self.queue.sync_workers, self.queue.reap, self.trigger_schedules)
        for task in tasks:
            self._time.add_job(task, "interval", id=task.__name__, seconds=1)
        self._time.add_job(trim_memory, "interval", [1.0], id="trim_memory", minutes=1)
        for id, (hour, minute) in DAILY_JOBS.items():
            task = getattr(self, id)
            self._time.add_job(task, "cron", id=id, hour=hour, minute=minute, misfire_grace_time=3600)
        if retention.backup_is_due(self.workspace, time.time()):
            self._time.add_job(self.backup, "date", id="backup:missed")
        self._time.modify_job("apply_retention", next_run_time=datetime.now(UTC))  # the server may be down at 4:10
        self._time.start()

    def _on_job_event(self, event: JobExecutionEvent) -> None:
        if event.code == EVENT_JOB_MISSED:
            self.log.record(event.job_id, "missed", f"due at {_format_time(event.scheduled_run_time.timestamp())}")
        else:
            self.log.record(event.job_id, "failed", f"{type(event.exception).__name__}: {event.exception}")

    def trigger_schedules(self) -> None:
        """Trigger the schedules that are due; an error of one is logged, and the others are triggered nevertheless."""
        for row in scheduled_runs.due_schedules(self.db, time.time()):
            job = f"schedule:{row.id}"
            try:
                scheduled_runs.trigger_of(row)
            except RL2FError as error:
                self.log.record(job, "failed", str(error))
                continue
            try:
                self.trigger_schedule(row.id or 0)
            except Exception as error:
                self.log.record(job, "failed", f"{type(error).__name__}: {error}")

    def trigger_schedule(self, schedule_id: int) -> None:
        """Add the run of a schedule that is due: once per time, even if a server died meanwhile."""
        try:
            row = scheduled_runs.get(self.db, schedule_id)
        except NotFoundError:
            return
        now, job = time.time(), f"schedule:{schedule_id}"
        if not row.enabled or row.next_run is None or row.next_run > now + 1:  # changed meanwhile
            return
        if scheduled_runs.has_run_since(self.db, schedule_id, row.next_run):
            scheduled_runs.advance(self.db, schedule_id, row.next_run, now, ran=True)
            return
        if now - row.next_run > MISFIRE_GRACE_SECONDS:
            run_now = row.trigger == "date" and settings.get(self.db, RUN_MISSED) == "1"
            action = "it is run now" if run_now else "it is not run"
            due = _format_time(row.next_run)
            self.log.record(job, "missed", f"{row.name}: due at {due}, no server was running; {action}")
            if not run_now:
                scheduled_runs.advance(self.db, schedule_id, row.next_run, now, ran=False)
                return
        try:
            outcome, detail = self._add_run(row)
        except StoreError:  # retried
            raise
        except RL2FError as error:
            outcome, detail = "failed", str(error)
        scheduled_runs.advance(self.db, schedule_id, row.next_run, now, ran=True)
        self.log.record(job, outcome, f"{row.name}: {detail}")

    def _add_run(self, row: ScheduledRun) -> tuple[str, str]:
        """Add the run of a schedule to the queue; returns outcome and detail for the log."""
        origin = f"schedule:{row.id}"
        if row.trigger != "nightly":
            return "ran", f"added run {self.queue.add(row.config, origin=origin).id}"
        from rl2f_core.run.kinds.eval import eval_config

        newest = scheduled_runs.newest_checkpoint(self.db, int(row.config) if row.config.strip() else None)
        if newest is None:
            return "skipped", "there is no checkpoint yet"
        run, checkpoint = newest
        if run.id is None:
            raise RunError("The checkpoint belongs to no run.", value=checkpoint.name)
        config = eval_config([(self.workspace.folder(run.folder), checkpoint.name)])
        path = config.adapters[checkpoint.name]
        for evaluation in scheduled_runs.evaluations_of(self.db, run.id):
            if evaluation.status in (*ACTIVE, "succeeded") and path is not None and _evaluates(evaluation, path):
                return "skipped", f"{checkpoint.name} of run {run.id} has an evaluation: run {evaluation.id}"
        added = self.queue.add(config, origin=origin, parent=run.id)
        return "ran", f"added run {added.id}, which evaluates {checkpoint.name} of run {run.id}"

    def backup(self) -> None:
        """Copy the database into the workspace's `backups/`."""
        path = retention.backup(self.db, self.workspace, time.time())
        if path is None:
            self.log.record("backup", "skipped", "the database is not a file: use its backup tools")
        else:
            self.log.record("backup", "ran", path.name)

    def apply_retention(self) -> None:
        """Remove what is older than the settings allow."""
        self.log.record("apply_retention", "ran", retention.retain(self.db, self.workspace, time.time()))


def _evaluates(run: Run, path: str) -> bool:
    try:
        return path in load_yaml(run.config)["adapters"].values()
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return False


def server_address(workspace: Workspace) -> str | None:
    """Return the URL of the server that schedules a workspace; None without one."""
    try:
        owner = json.loads(workspace.lock.read_text("utf-8"))
        has_ended = owner["host"] == socket.gethostname() and not psutil.pid_exists(owner["pid"])
        return None if has_ended else owner["address"] or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _describe_owner(text: str) -> str:
    try:
        owner = json.loads(text)
        address = f", {owner['address']}" if owner.get("address") else ""
        return f"process {int(owner['pid'])} on {owner['host']} since {_format_time(float(owner['since']))}{address}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "an unknown process"


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
