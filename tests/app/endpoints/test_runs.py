"""The list of runs: filters, queue, schedules, deletion, and changes from several tabs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from json_endpoints import JsonEndpoints

from app.common.context import Context
from app.endpoints.endpoint import ArgumentError, endpoints_of
from app.endpoints.run import RunEndpoints
from app.endpoints.runs import RunListEndpoints
from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, StoreReadOnlyError, UnknownRunError
from jobs.db.models import ENDED, JobLog, Run
from jobs.db.queries import job_log, notes, runs, scheduled_runs
from jobs.queue.queue import Queue
from rl2f_core.errors import ConfigError, DataError, RunError


@pytest.fixture
def listing(context: Context) -> Any:
    return JsonEndpoints(RunListEndpoints(context))


@pytest.fixture
def single(context: Context) -> Any:
    return JsonEndpoints(RunEndpoints(context))


def add(context: Context, name: str, status: str = "failed", **columns: object) -> int:
    run = Run.model_validate({"name": name, "kind": "eval", "status": status, "folder": f"1-{name}", **columns})
    return runs.add(context.db, run).id or 0


def listed(listing: RunListEndpoints, **filter: object) -> list[str]:
    return [row["name"] for row in listing.list_runs(**filter)["rows"]]  # type: ignore[arg-type]


# -- lists ---------------------------------------------------------------------------------------------------------
def test_names_of_endpoints_are_unique(listing: RunListEndpoints, single: RunEndpoints) -> None:
    names = [name for group in (listing, single) for name, _, _ in endpoints_of(group.group)]
    assert len(set(names)) == len(names) > 25


def test_runs_are_filtered_by_status_kind_and_order(context: Context, listing: RunListEndpoints) -> None:
    for name, status, reward in (("a", "failed", 0.5), ("b", "queued", None), ("c", "succeeded", 0.9)):
        add(context, name, status, reward=reward, kind="eval" if name != "c" else "export")
    assert listed(listing, sort="name") == ["a", "b", "c"]
    assert listed(listing, sort="-reward") == ["c", "a", "b"]
    assert listed(listing, status=list(ENDED), sort="name") == ["a", "c"]
    assert listed(listing, kind="export") == ["c"]
    assert listing.run_facets()["statuses"] == ["failed", "queued", "succeeded"]
    assert listing.run_facets()["kinds"] == ["eval", "export"]


def test_pages_follow_each_other_by_their_cursors(context: Context, listing: RunListEndpoints) -> None:
    for i in range(5):
        add(context, f"r{i}")
    first = listing.list_runs(sort="name", limit=2)
    assert (first["total"], first["first"], first["before"]) == (5, 1, None)
    second = listing.list_runs(sort="name", limit=2, cursor=first["after"])
    assert [row["name"] for row in second["rows"]] == ["r2", "r3"] and second["first"] == 3
    back = listing.list_runs(sort="name", limit=2, cursor=second["before"])
    assert [row["name"] for row in back["rows"]] == ["r0", "r1"]


@pytest.mark.parametrize("filter", [{"sort": "color"}, {"status": ["finished"]}, {"limit": 0}, {"limit": 1000}])
def test_an_unknown_filter_value_is_refused(listing: RunListEndpoints, filter: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="list_runs: argument"):
        listing.list_runs(**filter)  # type: ignore[arg-type]


def test_an_invalid_cursor_is_refused(listing: RunListEndpoints) -> None:
    with pytest.raises(DataError, match="cursor"):
        listing.list_runs(cursor="rubbish")


def test_the_version_changes_with_the_list(context: Context, listing: RunListEndpoints) -> None:
    add(context, "a")
    before = listing.runs_version()
    assert listing.runs_version() == before
    add(context, "b", "queued")
    assert listing.runs_version() > before
    active = listing.list_active_runs()
    assert [row["name"] for row in active["queued"]] == ["b"] and active["queued_total"] == 1 and not active["active"]


def test_tags_and_notes_are_kept_and_searched(
    context: Context, listing: RunListEndpoints, single: RunEndpoints
) -> None:
    run = add(context, "a")
    add(context, "b")
    assert single.tag_run(run, [" keep ", "keep", ""]) == ["keep"]
    note = single.add_note(run, "a remarkable run", author="Ada")
    assert note["author"] == "Ada" and single.list_notes(run) == [note]
    for found in (listing.list_runs(tag="keep"), listing.list_runs(search="remarkable")):
        rows = [(row["name"], row["tags"], row["note_count"], row["latest_note"]) for row in found["rows"]]
        assert rows == [("a", ["keep"], 1, "a remarkable run")]
    assert listing.run_facets()["tags"] == ["keep"]
    single.delete_note(run, note["id"])
    assert listed(listing, search="remarkable") == []


# -- settings ------------------------------------------------------------------------------------------------------
def test_settings_are_listed_changed_and_checked(listing: RunListEndpoints) -> None:
    assert listing.list_settings()["slots.cpu"] == "1" and listing.queue_status()["cpu_slots"] == 1
    assert listing.change_setting("slots.cpu", "3")["slots.cpu"] == "3" and listing.queue_status()["cpu_slots"] == 3
    assert listing.change_setting("slots.cuda", "0,1")["slots.cuda"] == "0,1"
    for name, value, said in (("slots.gpu", "1", "Unknown setting"), ("slots.cpu", "two", "a whole number"),
                              ("slots.cuda", "all", "device numbers")):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            listing.change_setting(name, value)


# -- queue ---------------------------------------------------------------------------------------------------------
def test_the_queue_is_reordered_paused_and_emptied(
    context: Context, listing: RunListEndpoints, single: RunEndpoints
) -> None:
    a, _, c = (add(context, name, "queued", position=i) for i, name in enumerate("abc"))
    assert listing.move_run(c, before=a)["name"] == "c"
    assert [row["name"] for row in listing.list_active_runs()["queued"]] == ["c", "a", "b"]
    assert listing.pause_queue()["paused"] is True
    assert single.stop_run(c)["status"] == "stopped"
    status = listing.queue_status()
    assert (status["paused"], status["active"], status["queued"]) == (True, 0, 2)
    listing.move_run(a)
    assert [row["name"] for row in listing.list_active_runs()["queued"]] == ["b", "a"]
    assert listing.resume_queue()["paused"] is False
    with pytest.raises(RunError, match="cannot be moved: it is stopped"):
        listing.move_run(c)


def test_an_invalid_slot_setting_is_reported_with_the_queue(context: Context, listing: RunListEndpoints) -> None:
    assert listing.queue_status()["cpu_slots"] == 1 and listing.queue_status()["error"] is None
    settings.put(context.db, "slots.cpu", "many")
    status = listing.queue_status()
    assert status["cpu_slots"] is None and "slots.cpu" in (status["error"] or "")


def test_a_second_tab_cannot_stop_a_stopped_run(context: Context, single: RunEndpoints) -> None:
    run = add(context, "a", "queued")
    assert single.stop_run(run)["status"] == "stopped"
    with pytest.raises(RunError, match="cannot be stopped: it is stopped"):
        single.stop_run(run)


def test_runs_are_deleted_and_those_that_cannot_be_are_kept_with_a_reason(
    context: Context, listing: RunListEndpoints, single: RunEndpoints
) -> None:
    failed, queued = add(context, "a"), add(context, "b", "queued")
    result = listing.delete_runs([failed, queued, 99])
    assert result["deleted"] == [failed]
    assert [kept["run"] for kept in result["kept"]] == [queued, 99]
    assert "it is queued" in result["kept"][0]["reason"] and "There is no run 99." in result["kept"][1]["reason"]
    with pytest.raises(UnknownRunError):
        single.list_notes(failed)
    with pytest.raises(ArgumentError, match="runs"):
        listing.delete_runs([])


def test_a_read_only_server_lists_runs_and_changes_nothing(context: Context) -> None:
    run = add(context, "seen")
    db = Database(context.workspace.database_url(), read_only=True)
    reader = Context(context.workspace, db, Queue(db, context.workspace), read_only=True)
    listing = JsonEndpoints(RunListEndpoints(reader))
    assert listed(listing) == ["seen"] and listing.queue_status()["read_only"]
    for change in (listing.pause_queue, lambda: listing.delete_runs([run])):
        with pytest.raises(StoreReadOnlyError, match="Read-only server"):
            change()
    assert not context.queue.paused and runs.get(context.db, run).name == "seen"
    db.close()


# -- scheduler -----------------------------------------------------------------------------------------------------
def test_schedules_are_disabled_and_deleted(context: Context, listing: RunListEndpoints) -> None:
    made = scheduled_runs.add(context.db, name="nightly look", trigger="nightly", when="30 2 * * *").id or 0
    (schedule,) = listing.list_schedules()
    assert (schedule["name"], schedule["trigger"], schedule["enabled"]) == ("nightly look", "nightly", True)
    assert (schedule["next_run"] or 0) > time.time()
    off = listing.enable_schedule(made, False)
    assert off["enabled"] is False and off["next_run"] is None
    assert listing.enable_schedule(made)["next_run"] == schedule["next_run"]
    listing.delete_schedule(made)
    with pytest.raises(NotFoundError):
        listing.delete_schedule(made)


def test_missed_and_failed_jobs_are_listed_newest_first(context: Context, listing: RunListEndpoints) -> None:
    for outcome in ("ran", "missed", "failed", "skipped"):
        job_log.add(context.db, "dispatch", outcome, f"it {outcome}", time.time())
    with context.db.write() as session:
        session.add_all(JobLog(time=0.0, job="dispatch", outcome="ran") for _ in range(300))
    assert [problem["outcome"] for problem in listing.job_problems()] == ["failed", "missed"]


def test_a_row_counts_only_the_notes_on_the_run(context: Context, listing: RunListEndpoints) -> None:
    run = add(context, "a")
    for text in ("first", "second " + "x" * 500):
        notes.add(context.db, run, text)
    (row,) = listing.list_runs()["rows"]
    assert row["note_count"] == 2 and row["latest_note"].startswith("second") and len(row["latest_note"]) == 300
