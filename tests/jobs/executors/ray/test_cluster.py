"""Runs on a real Ray cluster through the real queue: to the end, stopped, killed in three ways, and resumed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs_helpers import a_queue, counting, events, log, tick, training, until, until_dialogues, until_status
from ray_helpers import RayCluster, ray_cluster

from jobs.db.queries import runs
from jobs.executors.ray.executor import RayExecutor
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.model import ResourcesConfig
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

STEPS = 120
"""Of a run that is to be ended on its way: a step on the tiny model takes 25 to 500 ms."""
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counts")]
LONG = 400.0
"""Seconds that a step of these tests may take: starting processes takes long on few cores."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        yield made


@pytest.fixture
def queue(tmp_path: Path, cluster: RayCluster) -> Iterator[Queue]:
    workspace = Workspace(tmp_path / "workspace").create()
    executor = RayExecutor(workspace, cluster.address)
    with a_queue(tmp_path / "workspace", executor=executor) as made:
        yield made
    executor.close()


def free_cpus(queue: Queue) -> float:
    executor: Any = queue.workers.executor
    return sum(node.free["CPU"] for node in executor.capacity().nodes)


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_run_in_the_cluster_can_be_stopped_killed_recovered_and_resumed(
    queue: Queue, cluster: RayCluster, tmp_path: Path
) -> None:
    all_of_it = free_cpus(queue)
    executor: Any = queue.workers.executor
    run = queue.add(counting(count=60, seconds=0.2))
    too_large = queue.add(counting(resources={"num_cpus": 900}))
    until_dialogues(queue, run.id, 2, LONG)
    row = runs.get(queue.db, run.id or 0)
    assert row.worker_location.startswith(f"ray:{cluster.url}/rl2f-") and row.worker_location.endswith(
        f"-{row.folder}-1"
    )
    assert row.pid and "jobs.worker" in psutil.Process(row.pid).cmdline()
    assert runs.get(queue.db, too_large.id or 0).detail.startswith("No node of the Ray cluster has 900 CPU (")
    assert f", {row.worker_location}, " in log(queue, row) and "devices ''" in log(queue, row)
    until(lambda: free_cpus(queue) == all_of_it - 1, 60)

    queue.stop(run.id or 0)
    stopped = until_status(queue, run.id, "stopped", seconds=LONG)
    assert "Asked to stop." in log(queue, stopped) and stopped.worker_location == ""
    before = len(events(queue, run.id))
    assert 2 <= before < 60
    until(lambda: free_cpus(queue) == all_of_it, 60)  # given back without anybody's asking

    queue.resume(run.id or 0)
    until_dialogues(queue, run.id, before + 2, LONG)
    os.kill(runs.get(queue.db, run.id or 0).pid or 0, signal.SIGSEGV)  # native code breaks
    killed = until_status(queue, run.id, "interrupted", seconds=LONG)
    assert killed.detail.startswith(f"the worker was killed by signal {int(signal.SIGSEGV)}; see the log (ray:")
    until(lambda: free_cpus(queue) == all_of_it, 60)

    queue.resume(run.id or 0)
    before = len(events(queue, run.id))
    until_dialogues(queue, run.id, before + 2, LONG)
    worker = psutil.Process(runs.get(queue.db, run.id or 0).pid or 0)
    supervisor = worker.parent()
    assert supervisor is not None and "JobSupervisor" in supervisor.cmdline()[0]
    supervisor.kill()
    lost = until_status(queue, run.id, "interrupted", seconds=LONG)
    assert "without an exit record" in lost.detail
    until(lambda: not worker.is_running(), 20)  # it ended with its job
    until(lambda: free_cpus(queue) == all_of_it, 60)  # its resources were given back

    queue.resume(run.id or 0)
    before = len(events(queue, run.id))
    until_dialogues(queue, run.id, before + 2, LONG)
    queue.db.close()  # the server dies; the next one finds the run by what stands in the database
    executor.close()
    with a_queue(queue.workspace.root, executor=RayExecutor(queue.workspace, cluster.address)) as later:
        later.recover()
        assert runs.get(later.db, run.id or 0).status == "running" and later.reap() == []
        done = until_status(later, run.id, "succeeded", seconds=LONG)
        assert done.sessions == 4 and events(later, run.id) == [f"dialogue:{i}" for i in range(60)]
        assert log(later, done).count("--- session") == 4
        later.stop(too_large.id or 0)

        other = later.add(counting(count=600, seconds=0.1, child=True))
        until_dialogues(later, other.id, 1, LONG)
        pid = runs.get(later.db, other.id or 0).pid or 0
        child = int((later.workspace.folder(other.folder) / "child").read_text())
        assert later.abort(other.id or 0).detail == "aborted" and has_ended(pid)
        until(lambda: has_ended(child), 20)
        until(lambda: free_cpus(later) == all_of_it, 60)
        later.workers.executor.close()  # type: ignore[attr-defined]


def test_a_training_run_whose_node_is_killed_ends_as_interrupted_and_resumes_to_the_same_end(
    queue: Queue, cluster: RayCluster, tiny: Path, tmp_path: Path
) -> None:
    stage = {"name": "warm", "method": "sft", "steps": STEPS, "tasks_per_step": 2, "group_size": 2}
    stage["save_steps"] = STEPS
    cpus = (os.cpu_count() or 1) + 1  # more than the head has, so that it is worked on beside it
    cluster.add_node("first", cpus)
    run = queue.add(training(tiny, stages=[stage], resources={"num_cpus": cpus}))
    until_dialogues(queue, run.id, 4 * 3, LONG)
    pid = runs.get(queue.db, run.id or 0).pid or 0
    died = time.monotonic()
    cluster.raylet("first").kill()
    lost = until_status(queue, run.id, "interrupted", seconds=LONG)
    took = time.monotonic() - died
    assert has_ended(pid)
    assert "without an exit record" in lost.detail and 3 <= lost.done < STEPS, lost

    queue.resume(run.id or 0)

    def waits() -> str:
        tick(queue)
        return runs.get(queue.db, run.id or 0).detail

    assert until(waits, 60).startswith(f"No node of the Ray cluster has {cpus} CPU")
    cluster.add_node("second", cpus)
    done = until_status(queue, run.id, "succeeded", seconds=LONG)
    assert done.sessions == 2 and len(set(events(queue, run.id))) == len(events(queue, run.id)) == STEPS * 4

    here = RunDir.open(queue.workspace.folder(done.folder))
    alone = RunDir.create(tmp_path / "alone", here.config())
    assert execute(alone.config(), alone, JsonlSink(alone.events_path), lambda: False).status == "succeeded"
    mine, its = (one.checkpoint(f"warm@{STEPS}") / "adapter_model.safetensors" for one in (here, alone))
    assert mine.read_bytes() == its.read_bytes()
    print(f"interrupted {took:.1f} s after the node's death")


def test_a_run_that_plays_on_actors_stops_after_its_step_and_resumes_to_the_same_end(
    queue: Queue, tiny: Path, tmp_path: Path
) -> None:
    all_of_it = free_cpus(queue)
    steps = {"tasks_per_step": 2, "group_size": 2, "save_steps": STEPS}
    warm, rl = {"name": "warm", "method": "sft", "steps": 3}, {"name": "rl", "method": "rl2f_self", "steps": STEPS}
    config = training(
        tiny,
        stages=[{**warm, **steps}, {**rl, **steps}],
        preflight={"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True},
        resources={"num_cpus": 0.5, "rollout_workers": 1},
    )
    run = queue.add(config)
    until_dialogues(queue, run.id, 3 * 4 + 2 + 4 * 2, LONG)
    assert free_cpus(queue) == all_of_it - 1  # the learner's half and the actor's
    queue.stop(run.id or 0)
    stopped = until_status(queue, run.id, "stopped", seconds=LONG)
    assert 3 + 2 <= stopped.done < 3 + STEPS and "Asked to stop." in log(queue, stopped)
    until(lambda: free_cpus(queue) == all_of_it, 60)
    queue.resume(run.id or 0)
    done = until_status(queue, run.id, "succeeded", seconds=LONG)
    assert done.sessions == 2 and len(set(events(queue, run.id))) == len(events(queue, run.id)) == (3 + STEPS) * 4 + 2

    here = RunDir.open(queue.workspace.folder(done.folder))
    plain = here.config().model_copy(update={"resources": ResourcesConfig()})
    alone = RunDir.create(tmp_path / "alone", plain)  # one process, no cluster, never stopped
    assert execute(plain, alone, JsonlSink(alone.events_path), lambda: False).status == "succeeded"

    def weights(folder: RunDir, name: str) -> bytes:
        return (folder.checkpoint(name) / "adapter_model.safetensors").read_bytes()

    for name in ("warm@3", f"rl@{STEPS}"):
        assert weights(here, name) == weights(alone, name), name
    assert weights(here, f"rl@{STEPS}") != weights(here, "warm@3")
