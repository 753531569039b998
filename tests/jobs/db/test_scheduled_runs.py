"""Schedules as rows: when they are due, what they refuse; retention and backups."""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from jobs_helpers import a_queue, open_queue, training

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import ScheduledRun
from jobs.db.queries import job_log, runs, scheduled_runs
from jobs.queue import run_dirs
from jobs.scheduler import retention
from jobs.scheduler.job_logger import JobLogger
from jobs.workspace import Workspace
from rl2f_core.errors import ConfigError

NOON = datetime(2026, 3, 27, 12, 0, tzinfo=UTC).timestamp()  # a Friday
DAY = 86400.0


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return open_queue(tmp_path / "workspace").db


def due(trigger: str, when: str, after: float = NOON, timezone: str = "UTC") -> str | None:
    row = ScheduledRun(name="s", trigger=trigger, when=when, timezone=timezone, created=after)
    found = scheduled_runs.next_time(row, after)
    return found and datetime.fromtimestamp(found, UTC).strftime("%a %d %H:%M")


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("*/15 * * * *", "Fri 27 12:15"),  # twelve is over
        ("30 2 * * *", "Sat 28 02:30"),
        ("0 9 * * 1", "Mon 30 09:00"),  # cron counts from Sunday
        ("0 9 * * 0", "Sun 29 09:00"),
        ("0 9 * * 7", "Sun 29 09:00"),
        ("0 9 * * mon-fri", "Mon 30 09:00"),
        ("0 9 * * 1-5", "Mon 30 09:00"),
        ("0 9 * * 6,3", "Sat 28 09:00"),
        ("0 9 * * 5-7", "Sat 28 09:00"),
        ("0 9 * * SUN", "Sun 29 09:00"),
        ("0 9 1 * *", "Wed 01 09:00"),
    ],
)
def test_a_cron_time_means_what_it_means_to_cron(when: str, expected: str) -> None:
    assert due("cron", when) == expected


def test_a_weekday_field_with_steps_names_every_day_it_means() -> None:
    assert scheduled_runs.weekdays("*/2") == "sun,tue,thu,sat"
    assert scheduled_runs.weekdays("1-5/2") == "mon,wed,fri"
    assert scheduled_runs.weekdays("5-1") == "fri,sat,sun,mon"
    assert scheduled_runs.weekdays("*") == "*"


def test_times_are_meant_in_the_schedules_time_zone_also_when_its_clocks_change() -> None:
    berlin = "Europe/Berlin"
    assert due("cron", "30 12 * * *", timezone=berlin) == "Sat 28 11:30"
    change = datetime(2026, 3, 28, 20, 0, tzinfo=ZoneInfo(berlin)).timestamp()  # clocks go on at two that night
    assert due("cron", "30 12 * * *", change, berlin) == "Sun 29 10:30"
    assert due("date", "2026-03-30T08:00", timezone=berlin) == "Mon 30 06:00"
    assert due("date", "2026-03-30T08:00Z", timezone=berlin) == "Mon 30 08:00"
    assert due("date", "2026-03-27T11:59") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": " "}, "name: "),
        ({"trigger": "hourly"}, "trigger: .*date, cron, nightly"),
        ({"trigger": "cron", "when": "* * * *"}, "when: .*five fields"),
        ({"trigger": "cron", "when": "61 * * * *"}, "when: "),
        ({"trigger": "cron", "when": "0 9 * * 8"}, "when: .*weekday"),
        ({"trigger": "cron", "when": "0 9 * * xyz"}, "when: .*weekday"),
        ({"trigger": "cron", "when": "0 9 31 2 *"}, "when: .*in the past or never occurs"),
        ({"when": "tomorrow"}, "when: not a time"),
        ({"when": "2026-03-27T11:00"}, "when: this time is in the past"),
        ({"timezone": "Middle/Earth"}, "timezone: "),
        ({"timezone": "../../etc/passwd"}, "timezone: "),
        ({"config": "stages: []"}, "stages"),
        ({"trigger": "nightly", "when": "0 3 * * *", "config": "x"}, "config: must be a run id or empty"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_by_its_field(
    db: Database, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    fields = {"name": "s", "trigger": "date", "when": "2026-03-28T11:00", "config": training(tmp_path), **changes}
    with pytest.raises(ConfigError, match=said):
        scheduled_runs.add(db, **fields, now=NOON)  # type: ignore[arg-type]
    assert scheduled_runs.all_schedules(db) == []


def test_a_schedule_can_be_switched_off_and_on_and_deleted(db: Database) -> None:
    before = runs.version(db)
    row = scheduled_runs.add(db, name="night", trigger="nightly", when="0 3 * * *", now=NOON)
    assert row.id is not None and row.next_run == NOON + 15 * 3600 and runs.version(db) > before
    assert scheduled_runs.enable(db, row.id, False, now=NOON).next_run is None
    assert scheduled_runs.enable(db, row.id, True, now=NOON + DAY).next_run == NOON + DAY + 15 * 3600
    scheduled_runs.remove(db, row.id)
    for act in (scheduled_runs.get, scheduled_runs.remove):
        with pytest.raises(NotFoundError, match=f"Schedule {row.id} not found"):
            act(db, row.id)


def test_a_time_that_was_dealt_with_is_not_dealt_with_again(db: Database, tmp_path: Path) -> None:
    row = scheduled_runs.add(
        db, name="once", trigger="date", when="2026-03-28T11:00", config=training(tmp_path), now=NOON
    )  # fmt: skip
    assert row.id is not None
    done = scheduled_runs.advance(db, row.id, row.next_run, NOON + DAY, ran=True)
    assert done is not None and (done.enabled, done.next_run, done.last_run) == (False, None, NOON + DAY)
    assert scheduled_runs.advance(db, row.id, row.next_run, NOON + DAY, ran=True) is None
    with pytest.raises(ConfigError, match="when: this time is in the past"):
        scheduled_runs.enable(db, row.id, True, now=NOON + DAY)


# -- job log, retention, backups -------------------------------------------------------------------------------
def test_a_job_that_fails_every_second_is_logged_once_in_ten_minutes(db: Database) -> None:
    now = [NOON]
    logger = JobLogger(db, clock=lambda: now[0])
    for _ in range(700):
        logger.record("dispatch", "failed", "StoreError: locked")
        now[0] += 1
    logger.record("dispatch", "failed", "another reason")
    assert [line.detail for line in job_log.recent(db)] == ["another reason"] + ["StoreError: locked"] * 2
    assert job_log.recent(db, job="reap") == []


def test_an_unwritable_job_log_does_not_stop_jobs(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    JobLogger(Database(str(db.url), read_only=True)).record("reap", "failed", "why")
    assert "job log could not be written" in caplog.text


def test_what_is_old_leaves_the_trash_and_what_is_new_stays(tmp_path: Path) -> None:
    with a_queue(tmp_path / "workspace") as queue:
        run = queue.add(training(tmp_path), start=False)
        queue.delete(run.id or 0)
        (queue.workspace.trash / "19991231-235959-3-old").mkdir()
        (queue.workspace.trash / "19991231-235959-3-old" / "deep").mkdir()
        outside = tmp_path / "outside"
        outside.mkdir()
        (queue.workspace.trash / "19991231-235959-4-link").symlink_to(outside)
        job_log.add(queue.db, "reap", "failed", "long ago", 1000.0)
        said = retention.retain(queue.db, queue.workspace, time.time())
        assert said == "2 from the trash, 0 backups, 1 lines of the job log, 0 entries of the audit log"
        assert [name[16:] for name in run_dirs.list_trash(queue.workspace)] == [run.folder] and outside.is_dir()
        settings.put(queue.db, "retention.trash_days", "0")
        retention.retain(queue.db, queue.workspace, time.time() + 5)
        assert run_dirs.list_trash(queue.workspace) == {}
        settings.put(queue.db, "retention.trash_days", "never")
        with pytest.raises(ConfigError, match=r"retention\.trash_days is not a whole number"):
            retention.retain(queue.db, queue.workspace, time.time())


def test_the_newest_three_backups_stay_however_old_they_are(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path).create()
    for day in range(1, 7):
        path = workspace.backups / f"rl2f-2026030{day}-030000.sqlite"
        path.write_text("x")
        os.utime(path, (NOON, NOON))
    (workspace.backups / "notes.txt").write_text("mine")
    assert len(retention.clear_backups(workspace, before=NOON + 1)) == 3
    assert [path.name[5:13] for path in retention.backups(workspace)] == ["20260304", "20260305", "20260306"]
    assert (workspace.backups / "notes.txt").exists()


def test_a_backup_is_a_whole_database_and_due_once_a_day(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "workspace")
    queue.add(training(tmp_path))
    assert retention.backup_is_due(queue.workspace, time.time())
    path = retention.backup(queue.db, queue.workspace, time.time())
    assert path is not None
    with sqlite3.connect(path) as copy:
        assert copy.execute("SELECT name FROM run").fetchall() == [("small run",)]
    assert not retention.backup_is_due(queue.workspace, time.time())
    assert retention.backup_is_due(queue.workspace, time.time() + DAY + 60)
