"""The Ray executor with a recorded cluster: what it refuses, sends, and does while its cluster does not respond."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jobs.executors.base import LaunchSpec, WorkerHandle
from jobs.executors.ray import client as ray_client
from jobs.executors.ray import executor as ray_executor
from jobs.executors.ray.client import RETRY_INTERVAL_SECONDS, RayClient, UnreachableError, auth_headers
from jobs.executors.ray.executor import LOST_CONTACT_SECONDS, NO_RUN_DIR_CODE, RayExecutor, entrypoint, workspace_key
from jobs.worker.status_files import SESSION, read_exit, stop_requested
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run.directory import RunDir

URL = "http://10.0.0.1:8265"
JOB = "rl2f-0a1b2c3d-7-run-2"
PLACE = f"ray:{URL}/{JOB}"
CONFIG = "environment: guess_number\nmodel: {device: cpu}\nstages: [{name: s, method: sft, steps: 1}]\n"


class Cluster:
    """The dashboard of a cluster, which responds or not."""

    def __init__(self, url: str = URL) -> None:
        self.url, self.responds = url, True
        self.requests: list[str] = []
        self.submitted: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {JOB: a_job()}
        self.actors: list[dict[str, Any]] = []
        self.groups: list[dict[str, Any]] = []
        self.usage: dict[str, dict[str, list[float]]] = {}

    def client(self) -> RayClient:
        return RayClient(self.url, httpx2.MockTransport(self.respond))

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        if not self.responds:
            raise httpx2.ConnectError("refused")
        path = request.url.path
        self.requests.append(f"{request.method} {path}")
        if path.startswith("/api/v0/"):
            node = {"node_id": "n1", "node_ip": "10.0.0.1", "state": "ALIVE", "resources_total": {"CPU": 4.0}}
            dead = {**node, "node_id": "n2", "state": "DEAD"}
            rows: dict[str, Any] = {"nodes": [node, dead], "actors": self.actors, "placement_groups": self.groups}
            return httpx2.Response(200, json={"data": {"result": {"result": rows[path.rpartition("/")[2]]}}})
        if path == "/api/cluster_status":
            return httpx2.Response(
                200, json={"data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": self.usage}}}}
            )
        if path == "/api/jobs/":
            if request.method == "GET":
                return httpx2.Response(200, json=list(self.jobs.values()))
            self.submitted.append(json.loads(request.content))
            if self.submitted[-1]["entrypoint_num_cpus"] == 13:
                return httpx2.Response(500, text="Traceback\nValueError: an unlucky number")
            return httpx2.Response(200, json={})
        job = self.jobs.get(path.split("/")[3])
        if job is None:
            return httpx2.Response(404, text="no such job")
        if path.endswith("/stop") and job["status"] == "RUNNING":
            job["status"] = "STOPPED"
        return httpx2.Response(200, json=job)

    def posted(self) -> list[str]:
        return [request for request in self.requests if request.startswith("POST")]


def a_job(status: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    return {
        "submission_id": JOB,
        "status": status,
        "driver_exit_code": None,
        "error_type": None,
        "message": "",
        "driver_agent_http_address": "http://10.0.0.2:52365",
        **changes,
    }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def executor(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> RayExecutor:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # as if Ray were installed
    monkeypatch.setattr(ray_client, "RETRY_INTERVAL_SECONDS", 0.0)
    made = RayExecutor(Workspace(tmp_path / "workspace").create(), URL)
    made._clients[URL] = cluster.client()
    return made


@pytest.fixture
def handle(tmp_path: Path) -> WorkerHandle:
    folder = tmp_path / "7-run"
    folder.mkdir()
    return WorkerHandle(0, 0.0, str(folder), PLACE)


def a_launch(executor: RayExecutor, **changes: Any) -> LaunchSpec:
    run_dir = RunDir.create(executor.workspace.folder("9-run"), parse_config({**CONFIG_DATA, **changes}))
    return LaunchSpec(run_dir.path, run_dir.path / "log.txt", {SESSION: "3"}, "ray:cpu")


CONFIG_DATA: dict[str, Any] = {
    "environment": "guess_number",
    "model": {"device": "cpu"},
    "stages": [{"name": "s", "method": "sft", "steps": 1}],
}


# -- addresses -------------------------------------------------------------------------------------------------
def test_without_ray_the_error_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"ray is not installed. Fix: pip install 'rl2f\[ray\]'"):
        RayExecutor(Workspace(tmp_path))


def test_an_address_of_ray_client_is_refused_with_the_way_that_works(executor: RayExecutor) -> None:
    with pytest.raises(
        ConfigError,
        match=r"address of Ray Client, not of a cluster.s head. Got: 'ray://head:10001'.*RAY_ADDRESS=http://HOST:8265",
    ):
        RayExecutor(executor.workspace, "ray://head:10001")


def test_the_address_of_a_head_is_resolved_in_a_separate_process_with_a_retry_interval(
    executor: RayExecutor, handle: WorkerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = subprocess.CompletedProcess([], 0, f"some line of Ray\n{URL}\n", ""), [0]

    def run(*given: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        asked[0] += 1
        return found

    monkeypatch.setattr(ray_executor.subprocess, "run", run)
    assert RayExecutor(executor.workspace, "10.0.0.1:6379").home().url == URL
    found.stdout, found.stderr = "", "Traceback\nConnectionError: no head"
    lost = RayExecutor(executor.workspace, "10.0.0.9:6379")
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"No Ray cluster responds at 10.0.0.9:6379. Got: 'ConnectionError:"):
            lost.home()
    assert asked == [2]
    lost._clients[URL] = executor._clients[URL]
    with lost._home_lock:  # a run elsewhere can be aborted while an address is being resolved
        lost.kill(handle)
        assert not lost.alive(handle)


def test_without_an_address_a_local_cluster_is_started_once_and_reused(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Cluster] = {}

    def start_head(log: Path) -> str:
        url = f"http://127.0.0.1:{7000 + len(made)}"
        made[url] = Cluster(url)
        return url

    monkeypatch.setattr(ray_executor, "start_head", start_head)
    monkeypatch.setattr(ray_executor, "RayClient", lambda url: made[url].client())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address in (None, "local", ""):  # three servers, one after the other
        assert RayExecutor(executor.workspace, address).home().url == "http://127.0.0.1:7000"
    assert len(made) == 1
    made["http://127.0.0.1:7000"].responds = False  # the machine was started anew
    assert RayExecutor(executor.workspace).home().url == "http://127.0.0.1:7001" and len(made) == 2
    monkeypatch.setenv("RAY_ADDRESS", URL)
    made[URL] = Cluster()
    assert RayExecutor(executor.workspace).home().url == URL


def test_the_token_of_a_cluster_with_authentication_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert auth_headers() == {}
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    (tmp_path / "token").write_text("abc\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert auth_headers() == {"Authorization": "Bearer abc"}


# -- capacity --------------------------------------------------------------------------------------------------
def test_capacity_without_a_cluster_reports_the_reason(executor: RayExecutor, cluster: Cluster) -> None:
    for _ in range(2):
        assert executor.capacity().reserve(CONFIG) == ("ray:cpu", "")
    cluster.responds = False
    unreachable = f"No Ray cluster responds at {URL}. Got: 'ConnectError: refused'"
    slot, reason = executor.capacity().reserve(CONFIG)
    assert slot is None and reason.startswith(unreachable) and executor.describe().startswith(unreachable)
    cluster.responds = True
    assert executor.describe() == f"Runs go to the Ray cluster at {URL}: 4 CPU, 0 GPU on 1 node."


def test_actors_groups_and_tasks_of_others_are_not_free(executor: RayExecutor, cluster: Cluster) -> None:
    def an_actor(state: str, node: str | None, group: str | None = None) -> dict[str, Any]:
        return {"state": state, "node_id": node, "placement_group_id": group, "required_resources": {"CPU": 1.0}}

    def free() -> float:
        return executor.capacity().free[0]["CPU"]

    cluster.actors = [an_actor("ALIVE", "n1"), an_actor("DEAD", "n1"), an_actor("ALIVE", "n1", "g")]
    assert free() == 3
    cluster.actors.append(an_actor("PENDING_CREATION", None))  # it comes first
    assert free() == 2
    bundle = {"node_id": "n1", "unit_resources": {"CPU": 0.5}}
    cluster.groups = [{"name": "", "state": "CREATED", "bundles": [bundle] * 2}]
    assert free() == 1
    cluster.usage = {"n1": {"CPU": [3.0, 4.0]}}  # a task more than there are actors and groups
    assert free() == 0


def test_rollout_workers_are_reserved_until_their_group_exists(executor: RayExecutor, cluster: Cluster) -> None:
    handle = executor.start(a_launch(executor, resources={"num_cpus": 1, "rollout_workers": 2}))
    assert executor.capacity().free[0]["CPU"] == 2
    cluster.groups = [{"name": handle.location.rpartition("/")[2], "state": "CREATED", "bundles": []}]
    assert executor.capacity().free[0]["CPU"] == 4  # the group counts from now on, not the reservation
    cluster.groups = []
    assert executor.capacity().free[0]["CPU"] == 4


# -- jobs ------------------------------------------------------------------------------------------------------
def test_a_run_is_submitted_with_its_resources_and_refused_with_the_reason(
    executor: RayExecutor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL2F_NOTE", "a person's note")
    launch = a_launch(executor, resources={"num_cpus": 2, "num_gpus": 0.5})
    handle = executor.start(launch)
    submission_id = f"rl2f-{workspace_key(executor.workspace)}-9-run-3"
    assert handle == WorkerHandle(0, 0.0, str(launch.folder), f"ray:{URL}/{submission_id}") and handle.executor == "ray"
    (job,) = cluster.submitted
    assert (job["submission_id"], job["entrypoint_num_cpus"], job["entrypoint_num_gpus"]) == (submission_id, 2, 0.5)
    assert "RL2F_NOTE='a person'\"'\"'s note'" in job["entrypoint"] and "RL2F_SESSION=3" in job["entrypoint"]
    assert "CUDA_VISIBLE_DEVICES" not in job["entrypoint"]
    (launch.folder / "config.yaml").write_text(
        (launch.folder / "config.yaml").read_text().replace("cpus: 2", "cpus: 13")
    )
    with pytest.raises(RunError, match=r"returned status 500. Got: 'ValueError: an unlucky number'"):
        executor.start(launch)
    assert not (launch.folder / "ray_job.txt").exists()  # what was submitted all the same ends at once


def run_entrypoint(launch: LaunchSpec, submission_id: str) -> int:
    command = entrypoint(launch, submission_id, {"RL2F_SESSION": "3"}).replace("-m jobs.worker", "-c 'import os,sys; "
                         "print(os.environ[\"RL2F_SESSION\"], *sys.argv)'")  # fmt: skip
    return subprocess.run(command, shell=True, check=False).returncode


def test_the_entrypoint_starts_the_worker_only_with_access_to_the_run_directory(tmp_path: Path) -> None:
    folder = tmp_path / "a run's folder"
    folder.mkdir()
    launch = LaunchSpec(folder, folder / "log.txt")
    assert run_entrypoint(launch, JOB) == NO_RUN_DIR_CODE
    (folder / "ray_job.txt").write_text("rl2f-0a1b2c3d-7-run-1")  # of another session, or on a disk of its own
    assert run_entrypoint(launch, JOB) == NO_RUN_DIR_CODE and not launch.log.exists()
    (folder / "ray_job.txt").write_text(JOB)
    assert run_entrypoint(launch, JOB) == 0
    assert launch.log.read_text() == f"3 -c {folder}\n"
    (folder / "exit.json").write_text("{}")  # the queue gave the run up while its job waited for resources
    assert run_entrypoint(launch, JOB) == 0
    assert launch.log.read_text() == f"3 -c {folder}\n"


def test_a_worker_is_identified_by_its_job_and_cluster(
    executor: RayExecutor, cluster: Cluster, handle: WorkerHandle
) -> None:
    other = Cluster("http://10.0.0.2:8265")
    executor._clients[other.url] = other.client()
    assert executor.alive(handle)
    executor.stop(handle)
    assert stop_requested(Path(handle.folder), 2) and not stop_requested(Path(handle.folder), 3)
    assert executor.alive(handle) and cluster.posted() == []  # it ends after its step, and so does its job
    executor.kill(WorkerHandle(0, 0.0, handle.folder, PLACE.replace("10.0.0.1", "10.0.0.2")))
    assert other.posted() == [f"POST /api/jobs/{JOB}/stop"] and other.jobs[JOB]["status"] == "STOPPED"
    cluster.jobs[JOB] = a_job("FAILED", driver_exit_code=-11, error_type="JOB_ENTRYPOINT_COMMAND_ERROR")
    assert not executor.alive(handle) and executor.exit_code(handle) == -11
    assert read_exit(Path(handle.folder), 2) is None  # the queue describes it by its code
    cluster.jobs.clear()  # the head was started anew
    assert not executor.alive(handle) and executor.exit_code(handle) is None


@pytest.mark.parametrize(
    ("job", "detail"),
    [
        (
            {"driver_exit_code": NO_RUN_DIR_CODE, "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR"},
            "It could not be started. The node 10.0.0.2 of the Ray cluster cannot access the run directory.",
        ),
        (
            {"error_type": "RUNTIME_ENV_SETUP_FAILURE", "message": "runtime_env setup failed: no agent"},
            "It could not be started. runtime_env setup failed: no agent",
        ),
        ({"error_type": "JOB_SUPERVISOR_ACTOR_DIED", "message": "Job supervisor actor died"}, None),
    ],
)
def test_a_job_that_could_not_start_fails_with_the_reason(
    executor: RayExecutor, cluster: Cluster, handle: WorkerHandle, job: dict[str, Any], detail: str | None
) -> None:
    cluster.jobs[JOB] = a_job("FAILED", **job)
    assert not executor.alive(handle)
    record = read_exit(Path(handle.folder), 2)
    if detail is None:
        assert record is None
    else:
        assert record is not None and record.status == "failed" and record.detail.startswith(detail)


def test_a_job_that_waits_for_resources_is_gone_once_aborted(
    executor: RayExecutor, cluster: Cluster, handle: WorkerHandle
) -> None:
    cluster.jobs[JOB] = a_job("PENDING")
    assert executor.alive(handle)
    executor.kill(handle)
    assert not executor.alive(handle) and cluster.posted() == [f"POST /api/jobs/{JOB}/stop"]


# -- a cluster that does not respond ---------------------------------------------------------------------------
def test_while_its_cluster_is_silent_a_worker_lives_as_long_as_it_progresses(
    executor: RayExecutor, cluster: Cluster, handle: WorkerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_executor.time, "monotonic", lambda: now[0])
    cluster.responds = False
    progress = Path(handle.folder) / "progress.json"
    progress.write_text("1")
    assert executor.alive(handle)
    now[0] += LOST_CONTACT_SECONDS - 1
    assert executor.alive(handle)
    progress.write_text("2")  # it works on, only its cluster's head is away
    assert executor.alive(handle)
    now[0] += LOST_CONTACT_SECONDS - 1
    assert executor.alive(handle)
    now[0] += 2
    assert not executor.alive(handle)


def test_an_abort_that_did_not_reach_the_cluster_is_repeated_and_a_stop_needs_no_cluster(
    executor: RayExecutor, cluster: Cluster, handle: WorkerHandle
) -> None:
    cluster.responds = False
    executor.stop(handle)
    assert stop_requested(Path(handle.folder), 2)
    executor.kill(handle)
    cluster.responds = True
    assert executor.alive(handle) and not executor.alive(handle)
    assert cluster.posted() == [f"POST /api/jobs/{JOB}/stop"]


def test_a_silent_cluster_is_asked_again_only_after_a_while(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [1000.0], [0]
    monkeypatch.setattr(ray_client.time, "monotonic", lambda: now[0])

    def respond(request: httpx2.Request) -> httpx2.Response:
        asked[0] += 1
        raise httpx2.ReadTimeout("nothing came")

    client = RayClient(URL, httpx2.MockTransport(respond))
    attempts: list[Callable[[], Any]] = [client.list_jobs, client.list_jobs, lambda: client.get_job("x")]
    for attempt in attempts:
        with pytest.raises(UnreachableError, match=r"Got: 'ReadTimeout: nothing came'. Fix: .*dashboard-host=0.0.0.0"):
            attempt()
    assert asked == [1]
    now[0] += RETRY_INTERVAL_SECONDS
    with pytest.raises(UnreachableError):
        client.list_jobs()
    assert asked == [2]


def test_workspaces_have_distinct_names_in_a_cluster(tmp_path: Path) -> None:
    one, other = workspace_key(Workspace(tmp_path / "a")), workspace_key(Workspace(tmp_path / "b"))
    assert one != other and len(one) == 8 and one == workspace_key(Workspace(tmp_path / "a"))
