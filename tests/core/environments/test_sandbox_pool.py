"""Worker processes that judge: limits, losses, order, company, and that they end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rl2f_core.environments.sandbox import pool
from rl2f_core.environments.sandbox.pool import Job, WorkerPool

pytestmark = pytest.mark.xdist_group("workers")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "WORKER_PROGRAM", ROOT / "tests" / "support" / "sandbox_jobs.py")
        workers = WorkerPool(2)
        yield workers
        workers.close()


@pytest.mark.slow
def test_a_worker_that_hangs_with_the_interpreter_held_is_killed_and_replaced(workers: WorkerPool) -> None:
    start, lost = time.perf_counter(), workers.replaced
    hung = workers.ask("hang", 0.3)
    assert hung.lost and hung.value is None and hung.error == "no verdict within 0.3 s"
    assert time.perf_counter() - start < 5 and workers.replaced == lost + 2  # run once more
    assert isinstance(workers.ask("modules", 20).value, list)


def test_a_worker_that_crashes_is_a_reply_and_not_an_exception(workers: WorkerPool) -> None:
    crashed = workers.ask("crash", 5)
    assert crashed.lost and crashed.error == "the worker process crashed"
    assert workers.ask("modules", 20).error == ""


def test_a_batch_with_hanging_and_crashing_jobs_is_answered_in_order(workers: WorkerPool) -> None:
    jobs = [Job("echo", {"value": n}) for n in range(20)]
    jobs[3], jobs[11] = Job("crash", {}), Job("hang", {})
    replies = workers.run(jobs, 1.0)
    assert [r.value for i, r in enumerate(replies) if i not in (3, 11)] == [i for i in range(20) if i not in (3, 11)]
    assert replies[3].lost and replies[11].lost
    assert workers.run([], 1.0) == []


@pytest.mark.slow
def test_what_a_job_raises_is_said(workers: WorkerPool) -> None:
    reply = workers.ask("score", 5, name="no_such_data_set", settings={}, seed=0, size=5, answer="1", index=0)
    assert reply.error == "ValueError: reasoning-gym has no data set 'no_such_data_set'" and not reply.lost


@pytest.mark.slow
def test_a_worker_loads_neither_torch_nor_this_project(workers: WorkerPool) -> None:
    workers.ask("math", 5, gold="x+1", answer="1+x")
    loaded = {name.split(".")[0] for name in workers.ask("modules", 5).value}
    assert "math_verify" in loaded and not loaded & {"torch", "transformers", "rl2f_core", "matplotlib.pyplot"}


def test_a_job_can_neither_write_nor_start_anything(workers: WorkerPool, tmp_path: Path) -> None:
    assert workers.ask("trespass", 5, path=str(tmp_path / "x")).error == "PermissionError: a job may not write"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_threads_share_the_workers(workers: WorkerPool) -> None:
    found: dict[int, object] = {}

    def ask(n: int) -> None:
        found[n] = workers.ask("math", 5, gold=f"{n}+x", answer=f"x+{n}").value

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(6), True)


def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "from rl2f_core.environments.sandbox.pool import WorkerPool; import sys, time\n"
        "p = WorkerPool(1); p.ask('warm', 20, packages=''); print(p._idle[0].process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    assert worker.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs([worker], timeout=20)[1] == []
