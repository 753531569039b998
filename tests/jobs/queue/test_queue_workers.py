"""A worker's life as the queue sees it: started, stopped, killed, lost and found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jobs_helpers import (
    a_queue,
    counting,
    events,
    log,
    python,
    statuses,
    until,
    until_dialogues,
    until_status,
    write_events,
)
from tracking_data import webhook

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.executors.local import Local
from jobs.queue.queue import Queue
from jobs.queue.status import transition
from jobs.worker.status_files import ExitRecord
from rl2f_core.errors import RunError

pytestmark = pytest.mark.usefixtures("counts")


def test_a_run_goes_from_queued_to_succeeded_in_a_separate_process(queue: Queue) -> None:
    run = queue.add(counting(count=4, seconds=0.1))
    assert queue.dispatch() == [run.id]
    assert statuses(queue, run.id) == ["starting"]
    going = until_status(queue, run.id, "running", "succeeded")
    assert going.pid != os.getpid() and going.started is not None
    done = until_status(queue, run.id, "succeeded")
    assert (done.done, done.detail, done.pid, done.eta) == (4.0, "", None, None)
    assert done.ended is not None and done.ended >= going.started
    assert events(queue, run.id) == [f"dialogue:{i}" for i in range(4)]
    assert done.events_offset == (queue.workspace.folder(run.folder) / "events.jsonl").stat().st_size
    assert [line.text for line in runs.logs(queue.db, run.id or 0)] == ["Counted."]
    said = log(queue, done)
    assert f"workspace {queue.workspace.root} session True" in said and "input ''" in said
    record = json.loads((queue.workspace.folder(run.folder) / "exit.json").read_text())
    assert (record["status"], record["detail"], record["code"]) == ("succeeded", "", 0)
    with pytest.raises(RunError, match="cannot be resumed: it is succeeded"):
        queue.resume(run.id or 0)


@pytest.mark.slow
def test_a_failed_run_reports_the_reason_and_can_be_resumed(queue: Queue) -> None:
    run = queue.add(counting(fail_at=1, surprise_at=2))
    failed = until_status(queue, run.id, "failed")
    assert failed.detail == "The count went wrong. Got: 1. Fix: Count again."
    assert events(queue, run.id) == ["dialogue:0"] and "Traceback" not in log(queue, failed)
    config = queue.workspace.folder(run.folder) / "config.yaml"
    config.write_text(failed.config.replace("fail_at: 1", "fail_at: null"))  # whatever was wrong is mended
    queue.resume(run.id or 0)
    again = until_status(queue, run.id, "failed")
    assert again.detail == "ZeroDivisionError: nobody thought of this" and again.sessions == 2
    assert events(queue, run.id) == ["dialogue:0", "dialogue:1"] and "Traceback" in log(queue, again)


@pytest.mark.slow
def test_a_run_stops_after_its_step_and_resumes_from_there(queue: Queue) -> None:
    run = queue.add(counting(count=60, seconds=0.1))
    until_dialogues(queue, run.id, 2)
    queue.stop(run.id or 0)
    assert statuses(queue, run.id) == ["stopping"]
    stopped = until_status(queue, run.id, "stopped")
    assert "Asked to stop." in log(queue, stopped)
    before = events(queue, run.id)
    assert 2 <= len(before) < 60
    (queue.workspace.folder(run.folder) / "config.yaml").write_text(
        stopped.config.replace("seconds: 0.1", "seconds: 0.0")
    )
    queue.resume(run.id or 0)
    done = until_status(queue, run.id, "succeeded")
    assert events(queue, run.id) == [f"dialogue:{i}" for i in range(60)] and done.sessions == 2
    assert log(queue, done).count("--- session") == 2


@pytest.mark.slow
def test_a_stop_before_the_worker_handles_signals_is_not_lost(queue: Queue) -> None:
    run = queue.add(counting(count=600, seconds=0.1))
    queue.dispatch()
    queue.stop(run.id or 0)  # the interpreter has not started yet: SIGTERM would end it
    stopped = until_status(queue, run.id, "stopped")
    assert events(queue, run.id) == [] and stopped.detail == ""


@pytest.mark.slow
def test_an_abort_kills_the_worker_and_its_children(queue: Queue) -> None:
    run = queue.add(counting(count=600, seconds=0.1, child=True))
    until_dialogues(queue, run.id, 1)
    pid = runs.get(queue.db, run.id or 0).pid
    child = int((queue.workspace.folder(run.folder) / "child").read_text())
    assert pid is not None and psutil.pid_exists(child)
    aborted = queue.abort(run.id or 0)
    assert (aborted.status, aborted.detail, aborted.pid) == ("interrupted", "aborted", None)
    assert not psutil.pid_exists(pid)
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
    assert json.loads((queue.workspace.folder(run.folder) / "exit.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_a_worker_killed_in_its_work_is_interrupted_and_loses_and_doubles_nothing(queue: Queue) -> None:
    run = queue.add(counting(count=40, seconds=0.1, child=True))
    until_dialogues(queue, run.id, 3)
    os.kill(runs.get(queue.db, run.id or 0).pid or 0, signal.SIGKILL)
    interrupted = until_status(queue, run.id, "interrupted")
    assert interrupted.detail == "the worker was killed by signal 9; see the log"
    child = int((queue.workspace.folder(run.folder) / "child").read_text())  # what it had started does not stay
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
    queue.resume(run.id or 0)
    until_status(queue, run.id, "succeeded")
    assert events(queue, run.id) == [f"dialogue:{i}" for i in range(40)]


@pytest.mark.slow
def test_the_server_sends_the_alert_of_a_killed_worker_but_none_of_an_aborted_run(queue: Queue) -> None:
    with webhook() as (url, bodies):
        killed, aborted = (
            queue.add(counting(name=name, count=600, seconds=0.1, alerts={"webhook": url})) for name in ("a", "b")
        )
        until_dialogues(queue, killed.id, 1)
        os.kill(runs.get(queue.db, killed.id or 0).pid or 0, signal.SIGKILL)
        until_status(queue, killed.id, "interrupted")
        until_dialogues(queue, aborted.id, 1)
        queue.abort(aborted.id or 0)
        until(lambda: bodies)
    assert [body["text"] for body in bodies] == ["a: interrupted: the worker was killed by signal 9; see the log"]


def test_a_worker_that_ends_without_a_word_did_not_succeed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "print('hello')")
    with a_queue(tmp_path / "workspace") as queue:
        queue.workers.executor = Local(queue.workspace, command)
        run = queue.add(counting())
        queue.dispatch()
        pid = runs.get(queue.db, run.id or 0).pid or 0
        until(lambda: queue.reap() == [run.id])
        ended = runs.get(queue.db, run.id or 0)
        assert ended.status == "interrupted" and "without an exit record" in ended.detail
        assert not psutil.pid_exists(pid)  # no zombie stays
        assert "hello" in log(queue, ended)
        queue.workers.executor = Local(queue.workspace, ("/nowhere/python",))
        queue.resume(run.id or 0)
        assert queue.dispatch() == []
        failed = runs.get(queue.db, run.id or 0)
        assert failed.status == "failed" and "cannot be started" in failed.detail


def test_what_an_earlier_session_left_is_not_taken_for_this_one(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    ExitRecord(queue.workspace.folder(run.folder), session=1).write("succeeded", "", 0)
    with queue.db.write() as session:
        row = session.get(Run, run.id)
        assert row is not None
        row.status, row.sessions, row.pid, row.pid_started = "running", 2, 2**22 + 1, 1.0
    assert queue.reap() == [run.id]
    assert statuses(queue, run.id) == ["interrupted"]


def test_all_events_are_ingested_before_a_run_ends(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    write_events(queue, run)
    ExitRecord(queue.workspace.folder(run.folder), session=1).write("succeeded", "well", 0)
    with queue.db.write() as session:
        row = session.get(Run, run.id)
        assert row is not None
        row.status, row.sessions, row.pid, row.pid_started = "starting", 1, 2**22 + 1, 1.0
    assert queue.reap() == [run.id]
    ended = runs.get(queue.db, run.id or 0)
    assert (ended.status, ended.detail) == ("succeeded", "well")
    assert events(queue, run.id) == ["dialogue:0"]


def test_a_process_that_got_the_workers_number_is_not_the_worker(queue: Queue) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        run = queue.add(counting())
        began = psutil.Process(other.pid).create_time()
        with queue.db.write() as session:
            row = session.get(Run, run.id)
            assert row is not None
            transition(row, "starting", sessions=1, pid=other.pid, pid_started=began - 3600)
        assert queue.reap() == [run.id]
        assert statuses(queue, run.id) == ["interrupted"] and other.poll() is None
        with queue.db.write() as session:
            row = session.get(Run, run.id)
            assert row is not None
            transition(row, "queued")
            transition(row, "starting", sessions=2, pid=other.pid, pid_started=began - 3600)
        assert queue.abort(run.id or 0).status == "interrupted" and other.poll() is None  # nor is it killed
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_a_worker_without_a_recorded_pid_is_found_by_its_progress_file(queue: Queue) -> None:
    run = queue.add(counting(count=600, seconds=0.1))
    queue.dispatch()
    with queue.db.write() as session:  # as if the server had died between start and note
        row = session.get(Run, run.id)
        assert row is not None
        row.pid = row.pid_started = None
    found = until_status(queue, run.id, "running")
    assert found.pid is not None and "jobs.worker" in psutil.Process(found.pid).cmdline()
    assert queue.abort(run.id or 0).status == "interrupted"


def test_a_run_whose_worker_never_came_is_given_up(tmp_path: Path) -> None:
    now = [1000.0]
    with a_queue(tmp_path / "workspace", clock=lambda: now[0]) as queue:
        run = queue.add(counting())
        with queue.db.write() as session:
            row = session.get(Run, run.id)
            assert row is not None
            transition(row, "starting", sessions=1, heartbeat=1000.0)
        now[0] += 30
        assert queue.reap() == []
        now[0] += 31
        assert queue.reap() == [run.id]
        ended = runs.get(queue.db, run.id or 0)
        assert ended.status == "interrupted" and "never reported" in ended.detail


SERVER = """
import sys, time
from pathlib import Path
from jobs_helpers import counting, open_queue, tick
from jobs.db.queries import runs
queue = open_queue(Path(sys.argv[1]))
run = queue.add(counting(count=30, seconds=0.1))
while True:
    tick(queue)
    run = runs.get(queue.db, run.id)
    if run.status == "running":
        print(run.id, run.pid, flush=True)
        time.sleep(600)
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_run_continues_after_the_server_is_killed_and_is_recovered(tmp_path: Path) -> None:
    server = python(SERVER, str(tmp_path / "workspace"))
    assert server.stdout is not None
    run_id, pid = map(int, server.stdout.readline().split())
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    with a_queue(tmp_path / "workspace") as queue:
        queue.recover()
        assert runs.get(queue.db, run_id).status == "running" and runs.get(queue.db, run_id).pid == pid
        done = until_status(queue, run_id, "succeeded")
        assert events(queue, run_id) == [f"dialogue:{i}" for i in range(30)] and done.sessions == 1


@pytest.mark.slow
def test_a_run_that_ended_while_no_server_ran_has_its_true_status(tmp_path: Path) -> None:
    server = python(SERVER, str(tmp_path / "workspace"))
    assert server.stdout is not None
    run_id, pid = map(int, server.stdout.readline().split())
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    with a_queue(tmp_path / "workspace") as queue:
        assert queue.reap() == [run_id]
        assert runs.get(queue.db, run_id).status == "succeeded" and len(events(queue, run_id)) == 30
