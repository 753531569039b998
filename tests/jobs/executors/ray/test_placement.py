"""What a run needs of a Ray cluster and why it waits; a queue whose runs go elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from jobs_helpers import a_queue, counting, log, statuses, training, until, until_status

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.executors.base import Capacity, LaunchSpec, WorkerHandle
from jobs.executors.factory import create_executor
from jobs.executors.local import Local
from jobs.executors.ray.placement import ClusterCapacity, Node, first_fit, resource_bundles
from jobs.worker.status_files import LOCATION
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_yaml
from rl2f_core.errors import RunError, UnknownNameError

pytestmark = pytest.mark.usefixtures("counts")


def asking(device: str = "auto", **resources: float) -> str:
    data = yaml.safe_load(training(Path("/models/none"), resources=resources))
    data["model"]["device"] = device
    return yaml.safe_dump(data)


def node(name: str, cpu: float, gpu: float = 0, free_cpu: float | None = None, free_gpu: float | None = None) -> Node:
    free = {"CPU": cpu if free_cpu is None else free_cpu, "GPU": gpu if free_gpu is None else free_gpu}
    return Node(name, {"CPU": cpu, "GPU": gpu}, free)


# -- what is asked for -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("device", "resources", "there", "bundles"),
    [
        ("auto", {}, False, [{"CPU": 1.0}]),
        ("auto", {}, True, [{"CPU": 1.0, "GPU": 1.0}]),
        ("cpu", {}, True, [{"CPU": 1.0}]),
        ("cuda", {}, False, [{"CPU": 1.0, "GPU": 1.0}]),
        ("auto", {"num_gpus": 0.5, "num_cpus": 4}, False, [{"CPU": 4.0, "GPU": 0.5}]),
        ("auto", {"num_gpus": 0, "rollout_workers": 2}, True, [{"CPU": 1.0}] * 3),
    ],
)
def test_every_process_of_a_run_asks_for_the_same(
    device: str, resources: dict[str, float], there: bool, bundles: list[dict[str, float]]
) -> None:
    assert resource_bundles(parse_yaml(asking(device, **resources)), there) == bundles


def test_a_group_is_placed_whole_or_not_at_all() -> None:
    free = [{"CPU": 3.0}, {"CPU": 2.0}]
    assert first_fit([{"CPU": 2.0}] * 2, free) == [0, 1]
    assert first_fit([{"CPU": 2.0}] * 3, free) is None  # 5 are free, and no third pair on one node
    assert first_fit([{"CPU": 0.1}] * 10, [{"CPU": 1.0}]) == [0] * 10  # sums of tenths are no reason to wait
    assert first_fit([{"GPU": 1.0}], free) is None and first_fit([], []) == []
    assert free == [{"CPU": 3.0}, {"CPU": 2.0}]


def test_a_room_gives_a_slot_or_the_true_reason_to_wait() -> None:
    capacity = ClusterCapacity([node("10.0.0.1", 4, free_cpu=1), node("10.0.0.2", 2, gpu=2, free_gpu=1)])
    assert capacity.reserve(asking("cpu")) == ("ray:cpu", "")
    assert capacity.reserve(asking("auto")) == ("ray:cuda", "")  # the GPU that was free is taken now
    assert capacity.reserve(asking("cuda")) == (
        None,
        "Waiting for Ray: needs 1 CPU, 1 GPU, free 1 CPU, 0 GPU.",
    )
    assert capacity.reserve(asking("cuda", num_gpus=3)) == (
        None,
        "No node of the Ray cluster has 1 CPU, 3 GPU (10.0.0.1: 4 CPU, 0 GPU; 10.0.0.2: 2 CPU, 2 GPU).",
    )
    assert capacity.reserve(asking("cpu", num_cpus=2, rollout_workers=3)) == (
        None,
        "The Ray cluster is too small for 4 processes with 2 CPU each; it has 6 CPU on 2 nodes.",
    )
    assert capacity.reserve(asking("cpu", rollout_workers=1))[1] == (
        "Waiting for Ray: needs 2 processes with 1 CPU each, free 1 CPU."
    )
    assert capacity.reserve(asking("cpu")) == ("ray:cpu", "")  # what did not fit took nothing


def test_reserved_resources_are_not_free_and_what_does_not_fit_reserves_nothing() -> None:
    capacity = ClusterCapacity([node("n", 2)])
    assert not capacity.reserve_bundles([{"CPU": 1.0}] * 3) and capacity.reserve_bundles([{"CPU": 1.0}])
    assert capacity.reserve(asking("cpu", num_cpus=2)) == (None, "Waiting for Ray: needs 2 CPU, free 1 CPU.")


def test_an_unreachable_or_empty_cluster_reports_the_reason() -> None:
    assert ClusterCapacity((), "No Ray cluster answers at x.").reserve(asking()) == (
        None,
        "No Ray cluster answers at x.",
    )
    assert ClusterCapacity(()).reserve(asking()) == (None, "The Ray cluster has no living node.")
    slot, reason = ClusterCapacity([node("n", 1)]).reserve("kind: train\n")
    assert slot is None and reason.startswith("Its configuration cannot be read.")


# -- a queue whose runs go elsewhere ---------------------------------------------------------------------------
class Elsewhere(Local):
    """Processes of this machine, by rules of their own: as many at once as `places`."""

    name: ClassVar[str] = "elsewhere"
    places = 0

    def capacity(self) -> Capacity:  # type: ignore[override]
        return Counted(self.places)

    def start(self, launch: LaunchSpec) -> WorkerHandle:
        assert launch.slot == "elsewhere:cuda" and "CUDA_VISIBLE_DEVICES" not in launch.environment
        place = f"elsewhere:{launch.folder.name}"
        held = super().start(
            LaunchSpec(launch.folder, launch.log, {**launch.environment, LOCATION: place}, launch.slot)
        )
        return WorkerHandle(held.pid, held.started, held.folder, place)


class Counted:
    """A room of so many places."""

    def __init__(self, places: int) -> None:
        self.places = places

    def reserve(self, config: str) -> tuple[str | None, str]:
        self.places -= 1
        return ("elsewhere:cuda", "") if self.places >= 0 else (None, "All places are taken.")


@pytest.mark.slow
def test_a_run_waits_with_its_reason_until_there_is_room_elsewhere_and_light_runs_stay_here(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    there = Elsewhere(workspace)
    with a_queue(tmp_path / "workspace", executor=there) as queue:
        run = queue.add(counting(count=2))
        light = queue.add(counting(kind="light-count", count=1))
        assert (run.device, light.device) == ("cpu", "none")
        assert queue.dispatch() == [light.id]  # here, and behind a run that waits
        row = runs.get(queue.db, run.id or 0)
        assert (row.status, row.detail) == ("queued", "All places are taken.")
        version = row.version
        queue.dispatch()
        assert runs.get(queue.db, run.id or 0).version == version  # nothing moved, so no page has to look again

        there.places = 1
        assert queue.dispatch() == [run.id]
        row = runs.get(queue.db, run.id or 0)
        assert (row.device, row.detail, row.worker_location) == ("elsewhere:cuda", "", f"elsewhere:{row.folder}")
        assert queue.workers.handle(row) is not None

        with queue.db.write() as session:  # as if the server had died between start and note
            held = session.get(Run, run.id)
            assert held is not None
            held.pid, held.pid_started, held.worker_location = None, None, ""
        until(lambda: queue.workers.sync_progress(runs.get(queue.db, run.id or 0)).pid)
        assert runs.get(queue.db, run.id or 0).worker_location == f"elsewhere:{row.folder}"  # the worker itself said so

        done = until_status(queue, run.id, "succeeded")
        until_status(queue, light.id, "succeeded")
        assert (done.worker_location, done.pid) == ("", None) and f"elsewhere:{row.folder}" in log(queue, done)


def test_a_run_that_is_stopped_while_its_start_fails_ends_as_failed(tmp_path: Path) -> None:
    there = Elsewhere(Workspace(tmp_path / "workspace"))
    there.places = 1
    with a_queue(tmp_path / "workspace", executor=there) as queue:
        run = queue.add(counting(count=2))

        def fail(launch: LaunchSpec) -> WorkerHandle:
            queue.stop(run.id or 0)
            raise RunError("The cluster refused the job.")

        there.start = fail  # type: ignore[method-assign]
        assert queue.dispatch() == [] and statuses(queue, run.id) == ["failed"]


def test_a_run_that_another_executor_started_is_still_looked_after_by_it(tmp_path: Path) -> None:
    with a_queue(tmp_path / "workspace") as queue:  # this server starts runs here
        there = queue.workers._others["elsewhere"] = Elsewhere(queue.workspace, (sys.executable, "-c", "input()"))
        run = queue.add(counting(), start=False)
        held = Local(queue.workspace, (sys.executable, "-c", "import time; time.sleep(60)")).start(
            LaunchSpec(queue.workspace.folder(run.folder), tmp_path / "log")
        )
        with queue.db.write() as session:
            row = session.get(Run, run.id)
            assert row is not None
            row.status, row.sessions, row.pid, row.pid_started = "running", 1, held.pid, held.started
            row.worker_location = "elsewhere:there"
        asked: list[str] = []
        there.alive = lambda handle: bool(asked.append(handle.location) or True)  # type: ignore[method-assign, func-returns-value]
        assert queue.reap() == [] and asked == ["elsewhere:there"]
        there.alive = lambda handle: False  # type: ignore[method-assign]
        assert queue.reap() == [run.id]
        ended = runs.get(queue.db, run.id or 0)
        assert ended.status == "interrupted" and ended.detail.endswith("(elsewhere:there)")
        Local(queue.workspace).kill(held)


def test_a_worker_of_an_executor_that_this_server_lacks_is_left_alone_and_others_are_not(tmp_path: Path) -> None:
    with a_queue(tmp_path / "workspace") as queue:
        lost, other = queue.add(counting(), start=False), queue.add(counting(), start=False)
        with queue.db.write() as session:
            for run, place in ((lost, "slurm:17"), (other, "")):
                row = session.get(Run, run.id)
                assert row is not None
                row.status, row.sessions, row.pid, row.pid_started, row.worker_location = (
                    "running",
                    1,
                    2**22 + 1,
                    1.0,
                    place,
                )
        queue.recover()
        assert queue.reap() == [other.id] and statuses(queue, lost.id) == ["running"]


def test_executors_are_known_by_name(tmp_path: Path) -> None:
    assert create_executor("local", Workspace(tmp_path)).name == "local"
    with pytest.raises(UnknownNameError, match=r"no such executor. Got: 'slurm'. Known: local, ray"):
        create_executor("slurm", Workspace(tmp_path))
