"""The worker's process, its records, how far it says it is; and training runs end to end through the queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs_helpers import (
    ROOT,
    counting,
    events,
    log,
    tick,
    training,
    until,
    until_dialogues,
    until_status,
)

from jobs import run_kinds
from jobs.db.queries import metrics, runs
from jobs.executors.base import LaunchSpec, WorkerHandle
from jobs.executors.local import Local
from jobs.queue.queue import Queue
from jobs.worker.progress import EtaEstimator, FileProgress, OverallProgress
from jobs.worker.status_files import SESSION, ExitRecord, read_exit, read_progress, request_stop
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.config.loading import parse_yaml
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, StatusEvent, read_events

pytestmark = pytest.mark.usefixtures("counts")


def work(folder: Path, session: int = 1) -> subprocess.Popen[str]:
    """A worker that nobody looks after."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.worker", str(folder)],
        cwd=ROOT,
        env={**os.environ, SESSION: str(session), "RL2F_WORKSPACE": str(folder.parent.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def a_run(folder: Path, **changes: Any) -> RunDir:
    return RunDir.create(folder, parse_yaml(counting(**changes)))


# -- records ---------------------------------------------------------------------------------------------------
def test_an_exit_record_is_there_whole_or_not_at_all_and_belongs_to_its_session(tmp_path: Path) -> None:
    record = ExitRecord(tmp_path, session=3)
    assert read_exit(tmp_path, 3) is None and not record.path.exists()
    (kept,) = tmp_path.iterdir()
    room = kept.stat()
    assert room.st_size == 8192
    record.write("failed", "é" * 5000, 1)
    read = read_exit(tmp_path, 3)
    assert read is not None and (read.status, read.code, len(read.detail)) == ("failed", 1, 1500)
    assert record.path.stat().st_ino == room.st_ino  # written into the room that was kept for it
    assert read_exit(tmp_path, 4) is None
    ExitRecord(tmp_path, session=4)  # the next worker takes it away
    assert read_exit(tmp_path, 3) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": 1}', '{"session": 1, "status": "running", "detail": ""}'])
def test_an_unreadable_record_is_ignored(tmp_path: Path, text: str) -> None:
    for name in ("exit.json", "progress.json"):
        (tmp_path / name).write_text(text)
    assert read_exit(tmp_path, 1) is None and read_progress(tmp_path, 1) is None


@pytest.mark.slow
def test_a_worker_writes_its_records_even_where_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    a_run(tmp_path / "run", count=2)
    worker = work(tmp_path / "run", session=5)
    said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0 and "--- session 5" in said and "--- succeeded" in said
    read = read_exit(tmp_path / "run", 5)
    assert read is not None and (read.status, read.code) == ("succeeded", 0)
    progress = read_progress(tmp_path / "run", 5)
    assert progress is not None and (progress.phase, progress.done, progress.total) == ("counting", 2, 2)
    data = json.loads((tmp_path / "run" / "progress.json").read_text())
    assert {"phase", "done", "total", "note", "time"} <= data.keys()


@pytest.mark.slow
def test_a_worker_that_died_after_the_runs_last_word_is_resumed_to_success(tmp_path: Path) -> None:
    run_dir = a_run(tmp_path / "run", count=2)
    assert work(run_dir.path, 1).wait(60) == 0
    (run_dir.path / "exit.json").unlink()  # as if it had been killed just before this
    before = run_dir.events_path.read_bytes()
    assert work(run_dir.path, 2).wait(60) == 0
    read = read_exit(run_dir.path, 2)
    assert read is not None and read.status == "succeeded" and run_dir.events_path.read_bytes() == before


@pytest.mark.slow
def test_a_second_worker_on_the_same_run_touches_nothing(tmp_path: Path) -> None:
    run_dir = a_run(tmp_path / "run", count=600, seconds=0.1)
    first = work(run_dir.path, 1)
    until(lambda: read_progress(run_dir.path, 1))
    second = work(run_dir.path, 2)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 2 and "Another worker is on this run" in said and "Traceback" not in said
    assert read_progress(run_dir.path, 1) is not None and read_exit(run_dir.path, 2) is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    read = read_exit(run_dir.path, 1)
    assert read is not None and read.status == "stopped"


@pytest.mark.slow
def test_a_stop_request_in_the_folder_stops_the_worker_of_its_session_after_its_step(tmp_path: Path) -> None:
    run_dir = a_run(tmp_path / "r", count=1000, seconds=0.05)
    request_stop(run_dir.path, 1)  # of the session before
    worker = work(run_dir.path, session=2)
    until(lambda: (progress := read_progress(run_dir.path, 2)) is not None and progress.done >= 1)
    request_stop(run_dir.path, 2)
    said, _ = worker.communicate(timeout=30)
    record = read_exit(run_dir.path, 2)
    assert record is not None and record.status == "stopped" and "Asked to stop." in said


def test_every_module_among_the_kinds_is_loaded_and_the_export_needs_no_device(queue: Queue) -> None:
    run_kinds.load()
    assert getattr(registry.get("run_kind", "export"), "light", False) is True
    run = queue.add("kind: export\nruns: [1]")
    assert (run.kind, run.device) == ("export", "none")


# -- progress --------------------------------------------------------------------------------------------------
def test_the_eta_uses_only_steps_of_this_session() -> None:
    pace = EtaEstimator()
    pace.record("stage a", 40, now=1000.0)  # 40 steps of an earlier session: they took no time of this one
    assert pace.eta(60) is None
    pace.record("stage a", 42, now=1010.0)
    assert pace.eta(58) == pytest.approx(290.0)  # 5 s a step
    pace.record("stage b", 1, now=1100.0)  # another stage has another pace
    assert pace.eta(9) is None
    pace.record("stage b", 2, now=1101.0)
    assert pace.eta(8) == pytest.approx(8.0)
    for step in range(3, 60):
        pace.record("stage b", step, now=1101.0 + 10 * (step - 2))
    assert pace.eta(1) == pytest.approx(10.0)  # the newest steps count


def test_the_eta_of_a_fork_is_right_after_its_first_dialogues_although_a_batch_ends_together() -> None:
    """Three batches of 30 dialogues, 60 s each, which end in the last 3 s of their batch: 120 s are left after one."""
    fork, windowed = EtaEstimator(None), EtaEstimator()
    for pace in (fork, windowed):
        pace.record("fork", 0, now=0.0)
        for done in range(1, 31):
            pace.record("fork", done, now=57.0 + done / 10)
    assert fork.eta(60) == pytest.approx(120.0, rel=0.05)
    assert windowed.eta(60) == pytest.approx(6.0), "the newest dialogues alone would say twenty times less"


def test_the_steps_of_all_stages_are_one_course(tmp_path: Path) -> None:
    stage = {"method": "sft", "tasks_per_step": 2, "group_size": 2}
    stages = [{"name": "one", "steps": 10, **stage}, {"name": "two", "steps": 30, **stage}]
    course = OverallProgress(parse_yaml(training(tmp_path, stages=stages)))
    assert (course.done, course.total, course.eta) == (0.0, 40.0, None)
    course.update("stage one", 10, 10, now=0.0)
    course.update("two preflight", 3, 8, now=50.0)
    assert course.done == 10.0
    course.update("stage two", 1, 30, now=100.0)
    course.update("two step 2 rollout", 3, 8, now=101.0)
    course.update("stage two", 3, 30, now=104.0)
    assert (course.done, course.total) == (13.0, 40.0) and course.eta == pytest.approx(27 * 2.0)
    course.update("stage two", 30, 30, now=158.0)
    course.update("evaluation", 0, 6, now=200.0)
    course.update("evaluation", 2, 6, now=230.0)
    assert course.done == 40.0 and course.eta == pytest.approx(60.0)
    other = OverallProgress(parse_yaml(counting()))
    other.update("counting", 1, 5, now=0.0)
    assert (other.done, other.total) == (1.0, 5.0)


def test_progress_is_written_at_most_once_a_second_and_beats_when_nothing_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, seen = tmp_path / "progress.json", set()
    with FileProgress(tmp_path, parse_yaml(counting()), session=1) as progress:
        assert path.exists()
        start = time.monotonic()
        while time.monotonic() - start < 2.5:
            progress.update("counting", time.monotonic() - start, 10)
            seen.add(path.stat().st_ino)
            time.sleep(0.001)
        assert 2 <= len(seen) <= 4
    last = read_progress(tmp_path, 1)
    assert last is not None and last.done > 2.4 and last.pid == os.getpid()
    assert len(capsys.readouterr().out.splitlines()) == 1  # the log is for people


def test_a_progress_that_cannot_be_written_ends_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with FileProgress(tmp_path / "nowhere", parse_yaml(counting()), session=1) as progress:
        progress.update("counting", 1, 10)
        progress._write()
    assert capfd.readouterr().err.count("progress.json cannot be written") == 1


# -- the executor ----------------------------------------------------------------------------------------------
def test_a_local_worker_has_its_own_session_and_log_file(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal; print(os.getsid(0) == os.getpid(), sys.stdin.read(), os.environ['RL2F_WORKSPACE'], "
        "os.environ['A'], signal.SIGTERM in signal.pthread_sigmask(0, []), sys.argv[1]); print('!', file=sys.stderr)"
    )
    executor = Local(Workspace(tmp_path), (sys.executable, "-c", code))
    (tmp_path / "log").write_text("before\n")
    handle = executor.start(LaunchSpec(tmp_path, tmp_path / "log", {"A": "1"}))
    until(lambda: not executor.alive(handle))
    assert executor.exit_code(handle) == 0
    assert (tmp_path / "log").read_text() == f"before\nTrue  {tmp_path} 1 True {tmp_path}\n!\n"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # held back in the worker alone


def test_a_worker_is_identified_by_pid_and_start_time(tmp_path: Path) -> None:
    executor = Local(Workspace(tmp_path), (sys.executable, "-c", "import time; time.sleep(60)"))
    handle = executor.start(LaunchSpec(tmp_path, tmp_path / "log"))
    until(lambda: psutil.Process(handle.pid).cmdline())  # it has none for a moment, between its fork and its start
    try:
        assert executor.alive(handle)
        assert executor.alive(WorkerHandle(handle.pid, handle.started + 3600, handle.folder))  # the clock was set
        stranger = WorkerHandle(handle.pid, handle.started + 3600, "/another/folder")
        assert not executor.alive(stranger)
        for act in (executor.stop, executor.kill, executor.clean):
            act(stranger)
        assert executor.alive(handle) and executor.exit_code(handle) is None
        assert not executor.alive(WorkerHandle(2**22 + 1, 1.0, handle.folder))
    finally:
        executor.kill(handle)
    assert not executor.alive(handle) and not psutil.pid_exists(handle.pid)


def test_a_worker_whose_threads_still_run_is_not_dead(tmp_path: Path) -> None:
    code = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)  # the first thread ends: the process shows as a zombie, and is none yet
"""
    executor = Local(Workspace(tmp_path), (sys.executable, "-c", code))
    handle = executor.start(LaunchSpec(tmp_path, tmp_path / "log"))
    try:
        until(lambda: psutil.Process(handle.pid).status() == psutil.STATUS_ZOMBIE)
        assert executor.alive(handle)
    finally:
        executor.kill(handle)
    until(lambda: not executor.alive(handle))
    assert not psutil.pid_exists(handle.pid)


# -- real training ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_training_run_trains_in_its_worker_and_ends_with_its_checkpoint(queue: Queue, tiny: Path) -> None:
    run = queue.add(training(tiny))
    done = until_status(queue, run.id, "succeeded", seconds=240)
    assert (done.done, done.total) == (3.0, 3.0) and done.tokens_per_second is not None
    assert done.reward is None  # it learned from demonstrations alone
    assert [(c.name, c.step) for c in runs.checkpoints(queue.db, run.id or 0)] == [("warm@3", 3)]
    assert [m.step for m in metrics.steps(queue.db, run.id or 0)] == [1, 2, 3]
    assert len(events(queue, run.id)) == 3 * 4
    assert "stage warm 3/3" in log(queue, done)


def said_in_order(run_dir: RunDir) -> tuple[list[int], list[str]]:
    """Steps and statuses of the event file."""
    found = list(read_events(run_dir.events_path, strict=True))
    return (
        [e.step for e in found if isinstance(e, MetricEvent)],
        [e.status for e in found if isinstance(e, StatusEvent)],
    )


@pytest.mark.slow
def test_a_training_run_is_stopped_killed_and_resumed_and_loses_and_doubles_nothing(queue: Queue, tiny: Path) -> None:
    stage = {"name": "warm", "method": "sft", "steps": 60, "tasks_per_step": 2, "group_size": 2, "save_steps": 20}
    run = queue.add(training(tiny, stages=[stage]))
    until_dialogues(queue, run.id, 4 * 3, seconds=240)
    queue.stop(run.id or 0)
    stopped = until_status(queue, run.id, "stopped", seconds=120)
    assert 3 <= stopped.done < 60
    queue.resume(run.id or 0)
    until_dialogues(queue, run.id, 4 * (int(stopped.done) + 3), seconds=240)
    os.kill(runs.get(queue.db, run.id or 0).pid or 0, signal.SIGKILL)
    killed = until_status(queue, run.id, "interrupted")
    assert stopped.done < killed.done < 60
    queue.resume(run.id or 0)
    done = until_status(queue, run.id, "succeeded", seconds=300)
    assert done.sessions == 3 and len(set(events(queue, run.id))) == len(events(queue, run.id)) == 60 * 4
    steps, statuses = said_in_order(RunDir.open(queue.workspace.folder(run.folder)))
    assert steps == list(range(1, 61)) and statuses == ["running", "stopped", "running", "running", "succeeded"]
    assert [m.step for m in metrics.steps(queue.db, run.id or 0)] == steps


@pytest.mark.slow
def test_a_worker_killed_again_and_again_at_any_moment_ends_with_every_dialogue_once(queue: Queue) -> None:
    run = queue.add(counting(count=80, seconds=0.02))
    for wait in (1.0, 1.3, 1.7, 2.2, 2.6, 3.1):
        start = time.monotonic()
        while time.monotonic() - start < wait:
            tick(queue)
            time.sleep(0.02)
        row = runs.get(queue.db, run.id or 0)
        if row.pid:
            os.kill(row.pid, signal.SIGKILL)
        if until_status(queue, run.id, "interrupted", "succeeded").status == "succeeded":
            break
        queue.resume(run.id or 0)
    until_status(queue, run.id, "succeeded")
    assert events(queue, run.id) == [f"dialogue:{i}" for i in range(80)]
