"""The scheduler with real time and real processes: what is due, what was missed, and who may schedule."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from jobs_helpers import a_queue, counting, events, open_queue, python, training, until

from jobs.db import settings
from jobs.db.errors import StoreError
from jobs.db.models import JobLog, Run, ScheduledRun
from jobs.db.queries import job_log, runs, scheduled_runs
from jobs.ingest.ingester import ingest
from jobs.queue.queue import Queue
from jobs.scheduler.scheduler import DAILY_JOBS, RUN_MISSED, Scheduler, SchedulerLockedError
from rl2f_core.run.events import CheckpointEvent, JsonlSink

pytestmark = pytest.mark.usefixtures("counts")


@pytest.fixture
def scheduler(queue: Queue) -> Iterator[Scheduler]:
    """Not started; it is stopped at the end."""
    made = Scheduler(queue.db, queue.workspace, queue)
    yield made
    made.stop()


def lines(queue: Queue, job: str) -> list[JobLog]:
    return job_log.recent(queue.db, job=job)


def made_by(queue: Queue, row: ScheduledRun) -> list[Run]:
    return [run for run in runs.page(queue.db).rows if run.origin == f"schedule:{row.id}"]


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# -- real time -------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_run_is_made_at_its_time_worked_on_and_ended_without_anyone_asking(
    queue: Queue, scheduler: Scheduler
) -> None:
    scheduler.start()
    row = scheduled_runs.add(queue.db, name="soon", trigger="date", when=iso(time.time() + 3), config=counting(count=2))
    (run,) = until(lambda: made_by(queue, row))
    assert row.next_run is not None and run.created >= row.next_run
    until(lambda: runs.get(queue.db, run.id or 0).status == "succeeded")
    assert events(queue, run.id) == ["dialogue:0", "dialogue:1"]
    (line,) = until(lambda: lines(queue, f"schedule:{row.id}"))
    assert (line.outcome, line.detail) == ("ran", f"soon: added run {run.id}")
    over = scheduled_runs.get(queue.db, row.id or 0)
    assert (over.enabled, over.next_run) == (False, None) and over.last_run is not None
    assert until(lambda: lines(queue, "backup"))[0].outcome == "ran"  # there was none yet
    assert len(list(queue.workspace.backups.glob("*.sqlite"))) == 1


@pytest.mark.slow
def test_a_cron_schedule_makes_a_run_each_time_and_shows_when_it_is_due_next(
    queue: Queue, scheduler: Scheduler
) -> None:
    queue.pause()
    row = scheduled_runs.add(queue.db, name="often", trigger="cron", when="* * * * *", config=counting())
    scheduler.start()
    for number in (1, 2):  # its minute is over
        with queue.db.write() as session:
            held = session.get(ScheduledRun, row.id)
            assert held is not None
            held.next_run = time.time()
        until(lambda number=number: len(made_by(queue, row)) == number)
        until(lambda: (scheduled_runs.get(queue.db, row.id or 0).next_run or 0) > time.time())
    due = scheduled_runs.get(queue.db, row.id or 0).next_run
    assert due is not None and due % 60 == 0 and due - time.time() <= 60
    scheduled_runs.remove(queue.db, row.id or 0)
    time.sleep(2.5)
    assert len(made_by(queue, row)) == 2


@pytest.mark.slow
def test_a_restarted_scheduler_triggers_a_schedule_once(queue: Queue, scheduler: Scheduler) -> None:
    queue.pause()
    scheduler.start()
    until(lambda: lines(queue, "backup"))
    scheduler.stop()
    row = scheduled_runs.add(queue.db, name="soon", trigger="date", when=iso(time.time() + 2), config=counting())
    time.sleep(3.5)
    assert made_by(queue, row) == []  # stopped
    scheduler.start()
    until(lambda: made_by(queue, row))
    time.sleep(2.5)
    assert len(made_by(queue, row)) == 1


def test_daily_jobs_are_scheduled_at_their_time(queue: Queue, scheduler: Scheduler) -> None:
    scheduler.start()
    assert scheduler._time is not None
    for id, time_of_day in DAILY_JOBS.items():
        due = scheduler._time.get_job(id).next_run_time
        assert due > datetime.now(UTC) and (due.hour, due.minute) == time_of_day


def test_a_failing_job_is_logged_and_repeated(queue: Queue, scheduler: Scheduler) -> None:
    settings.put(queue.db, "slots.cpu", "many")
    with queue.db.write() as session:
        session.add(Run(name="r", kind="count", folder="1-r", status="queued"))
    scheduler.start()
    (line,) = until(lambda: lines(queue, "dispatch"))
    assert line.outcome == "failed" and "slots.cpu is not a whole number" in line.detail
    settings.put(queue.db, "slots.cpu", "1")
    until(lambda: runs.get(queue.db, 1).status == "failed")  # dispatched, and its folder is not there
    assert "could not be started" in runs.get(queue.db, 1).detail
    assert len(lines(queue, "dispatch")) == 1


# -- missed ----------------------------------------------------------------------------------------------------
def overdue(queue: Queue, trigger: str, when: str) -> ScheduledRun:
    """A schedule that was due an hour ago, made two hours ago."""
    return scheduled_runs.add(
        queue.db, name="late", trigger=trigger, when=when, config=counting(), now=time.time() - 7200
    )  # fmt: skip


@pytest.mark.slow
def test_an_at_that_passed_while_no_server_ran_is_logged_as_missed_and_run_once(
    queue: Queue, scheduler: Scheduler
) -> None:
    queue.pause()
    row = overdue(queue, "date", iso(time.time() - 3600))
    scheduler.start()
    until(lambda: len(lines(queue, f"schedule:{row.id}")) == 2)
    assert [line.outcome for line in lines(queue, f"schedule:{row.id}")] == ["ran", "missed"]
    scheduler.stop()
    scheduler.start()
    scheduler.trigger_schedules()
    time.sleep(2.5)
    assert len(made_by(queue, row)) == 1 and len(lines(queue, f"schedule:{row.id}")) == 2


def test_a_missed_one_time_run_is_only_logged_if_the_setting_says_so(queue: Queue, scheduler: Scheduler) -> None:
    settings.put(queue.db, RUN_MISSED, "0")
    row = overdue(queue, "date", iso(time.time() - 3600))
    scheduler.start()
    (line,) = until(lambda: lines(queue, f"schedule:{row.id}"))
    assert line.outcome == "missed" and "it is not run" in line.detail
    until(lambda: scheduled_runs.get(queue.db, row.id or 0).next_run is None)
    assert made_by(queue, row) == [] and scheduled_runs.get(queue.db, row.id or 0).last_run is None


def test_a_cron_time_that_was_missed_is_logged_and_the_next_one_is_due(queue: Queue, scheduler: Scheduler) -> None:
    cron = f"0 {(time.gmtime().tm_hour - 1) % 24} * * *"  # not due during the test
    row = overdue(queue, "cron", cron)
    scheduler.start()
    (line,) = until(lambda: lines(queue, f"schedule:{row.id}"))
    assert line.outcome == "missed"
    due = until(lambda: scheduled_runs.get(queue.db, row.id or 0).next_run)
    until(lambda: (scheduled_runs.get(queue.db, row.id or 0).next_run or 0) > time.time())
    assert made_by(queue, row) == [] and due is not None


def test_a_server_that_died_after_it_made_the_run_makes_no_second_one(queue: Queue, scheduler: Scheduler) -> None:
    queue.pause()
    row = overdue(queue, "date", iso(time.time() - 3600))
    queue.add(counting(), origin=f"schedule:{row.id}")  # and died before it could note that
    scheduler.trigger_schedule(row.id or 0)
    assert len(made_by(queue, row)) == 1 and scheduled_runs.get(queue.db, row.id or 0).next_run is None


def test_a_schedule_whose_run_cannot_be_added_is_logged_as_failed(queue: Queue, scheduler: Scheduler) -> None:
    row = overdue(queue, "date", iso(time.time() - 10))
    with queue.db.write() as session:
        held = session.get(ScheduledRun, row.id)
        assert held is not None
        held.config = counting(count="many")  # as if a field had changed since
    scheduler.trigger_schedule(row.id or 0)
    (line,) = lines(queue, f"schedule:{row.id}")
    assert line.outcome == "failed" and "count" in line.detail
    assert not scheduled_runs.get(queue.db, row.id or 0).enabled


def test_a_disabled_or_future_schedule_is_not_triggered(queue: Queue, scheduler: Scheduler) -> None:
    disabled = overdue(queue, "date", iso(time.time() - 10))
    scheduled_runs.enable(queue.db, disabled.id or 0, False)
    future = scheduled_runs.add(queue.db, name="later", trigger="date", when=iso(time.time() + 60), config=counting())
    scheduler.trigger_schedules()
    assert made_by(queue, disabled) == [] and made_by(queue, future) == []


@pytest.mark.parametrize("kind", ["invalid_time", "error"])
def test_a_schedule_that_fails_is_logged_and_others_are_triggered(
    queue: Queue, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue.pause()
    invalid, valid = overdue(queue, "date", iso(time.time() - 20)), overdue(queue, "date", iso(time.time() - 10))
    if kind == "invalid_time":
        with queue.db.write() as session:
            row = session.get(ScheduledRun, invalid.id)
            assert row is not None
            row.when = "tomorrow"
    else:
        add_run = Scheduler._add_run

        def fail(self: Scheduler, row: ScheduledRun) -> tuple[str, str]:
            if row.id == invalid.id:
                raise StoreError("The database is locked.")
            return add_run(self, row)

        monkeypatch.setattr(Scheduler, "_add_run", fail)
    for _ in range(2):  # it is retried, and logged once
        scheduler.trigger_schedules()
    (line,) = lines(queue, f"schedule:{invalid.id}")
    assert line.outcome == "failed"
    reason = "when: not a time." if kind == "invalid_time" else "StoreError: The database is locked."
    assert line.detail.startswith(reason)
    assert scheduled_runs.get(queue.db, invalid.id or 0).next_run == invalid.next_run
    assert len(made_by(queue, valid)) == 1 and made_by(queue, invalid) == []


# -- nightly ---------------------------------------------------------------------------------------------------
def with_checkpoint(queue: Queue, model: Path, step: int) -> Run:
    """A run that has ended with a checkpoint, by its events."""
    run = queue.add(training(model), start=False)
    folder = queue.workspace.folder(run.folder)
    weights = folder / "checkpoints" / f"warm@{step}" / "adapter_model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    event = CheckpointEvent(
        id=f"checkpoint:warm@{step}", name=f"warm@{step}", stage="warm", step=step, path=f"checkpoints/warm@{step}",
        sha256="0",
    )  # fmt: skip
    JsonlSink(folder / "events.jsonl").emit([event])
    assert ingest(queue.db, queue.workspace, run) == 1
    return run


def test_the_newest_checkpoint_is_evaluated_at_night_and_not_twice(
    queue: Queue, scheduler: Scheduler, tmp_path: Path
) -> None:
    row = scheduled_runs.add(queue.db, name="night", trigger="nightly", when="0 3 * * *")

    def night() -> str:
        with queue.db.write() as session:
            held = session.get(ScheduledRun, row.id)
            assert held is not None
            held.next_run = time.time()
        scheduler.trigger_schedule(row.id or 0)
        return lines(queue, f"schedule:{row.id}")[0].detail

    assert night() == "night: there is no checkpoint yet"
    older, newer = with_checkpoint(queue, tmp_path, 2), with_checkpoint(queue, tmp_path, 3)
    assert night() == f"night: added run 3, which evaluates warm@3 of run {newer.id}"
    made = runs.get(queue.db, 3)
    assert (made.kind, made.parent, made.status) == ("eval", newer.id, "queued")
    assert str(queue.workspace.folder(newer.folder) / "checkpoints" / "warm@3") in made.config
    assert night() == f"night: warm@3 of run {newer.id} has an evaluation: run 3"
    queue.stop(3)  # it never ran: the next night tries again
    assert night() == f"night: added run 4, which evaluates warm@3 of run {newer.id}"
    with queue.db.write() as session:
        held = session.get(ScheduledRun, row.id)
        assert held is not None
        held.config = str(older.id)
    assert night() == f"night: added run 5, which evaluates warm@2 of run {older.id}"
    assert (scheduled_runs.get(queue.db, row.id or 0).next_run or 0) > time.time()


# -- one scheduler a workspace ------------------------------------------------------------------------------------
SERVER = """
import sys, time
from pathlib import Path
from jobs.scheduler.scheduler import Scheduler
from jobs.db.queries import runs
from jobs_helpers import counting, open_queue
queue = open_queue(Path(sys.argv[1]))
scheduler = Scheduler(queue.db, queue.workspace, queue, address="http://127.0.0.1:7860")
scheduler.start()
run = queue.add(counting(count=60, seconds=0.1))
while runs.get(queue.db, run.id).status != "running":
    time.sleep(0.05)
print(run.id, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_server_gets_the_owner_of_the_lock_and_a_killed_server_releases_it(tmp_path: Path) -> None:
    server = python(SERVER, str(tmp_path / "workspace"))
    assert server.stdout is not None
    try:
        run_id = int(server.stdout.readline())
        with a_queue(tmp_path / "workspace") as queue:
            second = Scheduler(queue.db, queue.workspace, queue)
            with pytest.raises(SchedulerLockedError, match=f"process {server.pid} on .*http://127.0.0.1:7860"):
                second.start()
            second.stop()  # does no harm
            os.kill(server.pid, signal.SIGKILL)
            server.communicate()
            pid = runs.get(queue.db, run_id).pid
            assert pid is not None and psutil.pid_exists(pid)  # the worker lives, and does not hold the lock
            second.start()
            try:
                until(lambda: runs.get(queue.db, run_id).status == "succeeded")
            finally:
                second.stop()
            assert events(queue, run_id) == [f"dialogue:{i}" for i in range(60)]
            assert runs.get(queue.db, run_id).sessions == 1
    finally:
        server.kill()
        server.communicate()


def test_two_schedulers_of_one_process_do_not_share_a_workspace(queue: Queue, scheduler: Scheduler) -> None:
    scheduler.start()
    other = open_queue(queue.workspace.root)
    with pytest.raises(SchedulerLockedError, match=f"process {os.getpid()} "):
        Scheduler(other.db, other.workspace, other).start()
    settings.put(queue.db, RUN_MISSED, "0")
    row = overdue(queue, "date", iso(time.time() - 3600))
    until(lambda: lines(queue, f"schedule:{row.id}"))  # the first is not disturbed
    scheduler.stop()
    third = Scheduler(other.db, other.workspace, other)
    third.start()
    third.stop()
