"""Runs on a Ray cluster: each run is a Ray Job whose entrypoint is the same worker as on one machine.

Ray Jobs allocates the run's resources, ends the worker's process group if the job's supervisor dies, and reports status
and exit code over HTTP. The submission id is stored with the run, so a restarted server finds its runs again. The
worker's log, events and exit status are in the run directory, which all nodes must have under the same path.

A stop is a file in the run directory, because Ray's `stop_job` sends SIGTERM to all descendants of the worker too, such
as inference engines, and would break the step that should be finished. `stop_job` aborts.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from jobs.executors.base import LaunchSpec, WorkerHandle
from jobs.executors.ray.client import ACTIVE_STATES, RETRY_INTERVAL_SECONDS, RayClient, Record, UnreachableError
from jobs.executors.ray.placement import Bundle, ClusterCapacity, resource_bundles
from jobs.worker.status_files import (
    EXIT,
    LOCATION,
    PROGRESS,
    SESSION,
    ExitStatus,
    read_exit,
    read_progress,
    request_stop,
    write_exit,
)
from jobs.workspace import Workspace
from rl2f_core.common.paths import ROOT
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run.directory import RunDir

ADDRESS = "RAY_ADDRESS"
"""Environment variable: http://HOST:PORT of the cluster's dashboard, HOST:PORT of its head, or auto. Unset or local is
a cluster of this machine alone, which is started if it does not run."""
LOST_CONTACT_SECONDS = 120.0
"""Time without a change of its progress file after which a worker counts as dead if its cluster does not respond."""
ADDRESS_TIMEOUT_SECONDS = 60.0
KILL_TIMEOUT_SECONDS = 10.0
KILL_POLL_SECONDS = 0.2
NO_RUN_DIR_CODE = 78
"""Exit code of the entrypoint on a node that cannot access the run directory."""
JOB_FILE = "ray_job.txt"
"""File in the run directory with the submission id, which the entrypoint compares."""
FIND_DASHBOARD = (
    "import sys; from ray.job_submission import JobSubmissionClient as C; print(C(sys.argv[1]).get_address())"
)
_log = logging.getLogger(__name__)


class RayExecutor:
    """Start workers as Ray Jobs.

    Args:
        workspace: On a disk that all nodes have under the same path.
        address: Of the cluster; None reads `RAY_ADDRESS`.

    Raises `RunError` if Ray is not installed, `ConfigError` for an address of Ray Client.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, workspace: Workspace, address: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise RunError("The package ray is not installed.", fix="pip install 'rl2f[ray]'")
        address = (os.environ.get(ADDRESS, "") if address is None else address).strip()
        if "://" in address and not address.startswith(("http://", "https://")):
            raise ConfigError(
                "This is an address of Ray Client, not of a cluster's head.",
                value=address,
                fix=f"Set {ADDRESS}=http://HOST:8265 or HOST:6379.",
            )
        self.workspace, self.address = workspace, address if address != "local" else ""
        self._clients: dict[str, RayClient] = {}
        self._home: RayClient | None = None
        self._lock, self._home_lock = threading.Lock(), threading.Lock()
        self._retry_at, self._home_failure = 0.0, RunError("")
        self._seen: dict[str, tuple[bytes, float]] = {}
        """By run directory: the worker's last progress file, and the time of its last change."""
        self._killed: set[str] = set()
        """Locations of workers that were aborted but may still run."""
        self._reserved: dict[str, list[Bundle]] = {}
        """By submission id: bundles of rollout workers whose placement group does not exist yet."""

    # -- the cluster -------------------------------------------------------------------------------------------
    def home(self) -> RayClient:
        """Return the client of the cluster in which runs are started; raises `RunError` if there is none."""
        with self._home_lock:
            if self._home is None:
                if time.monotonic() < self._retry_at:
                    raise self._home_failure
                try:
                    self._home = self._client(dashboard_url(self.address)) if self.address else self._local_head()
                except RunError as error:
                    self._retry_at, self._home_failure = time.monotonic() + RETRY_INTERVAL_SECONDS, error
                    raise
            return self._home

    def _client(self, url: str) -> RayClient:
        with self._lock:
            if url not in self._clients:
                self._clients[url] = RayClient(url)
            return self._clients[url]

    def _local_head(self) -> RayClient:
        """Return the cluster that an earlier server started on this machine if it responds, otherwise a new one."""
        note = self.workspace.root / "ray.json"
        with contextlib.suppress(OSError, ValueError, KeyError, RunError):
            client = self._client(str(json.loads(note.read_text())["address"]))
            client.list_jobs()
            return client
        address = start_head(self.workspace.root / "ray.log")
        note.write_text(json.dumps({"address": address}))
        return self._client(address)

    def close(self) -> None:
        """Close the connections; runs continue."""
        for client in self._clients.values():
            client.close()

    # -- executor interface ------------------------------------------------------------------------------------
    def capacity(self) -> ClusterCapacity:
        """Return the free resources of the cluster."""
        try:
            client = self.home()
            groups = client.list_placement_groups()
            for group in groups:
                self._reserved.pop(group["name"], None)
            nodes, demand = client.list_nodes(groups)
        except RunError as error:
            return ClusterCapacity((), str(error))
        capacity = ClusterCapacity(nodes)
        for bundles in (*demand, *self._reserved.values()):
            capacity.reserve_bundles(bundles)
        return capacity

    def describe(self) -> str:
        """Describe the cluster, or why it cannot be reached."""
        capacity = self.capacity()
        return capacity.missing or f"Runs go to the Ray cluster at {self.home().url}: {capacity.describe()}."

    def start(self, launch: LaunchSpec) -> WorkerHandle:
        """Submit a job for a run; it may wait for resources."""
        config = RunDir.open(launch.folder).config()
        bundle, *others = resource_bundles(config, launch.slot == "ray:cuda")
        session = launch.environment.get(SESSION, "0")
        submission_id = f"rl2f-{workspace_key(self.workspace)}-{launch.folder.name}-{session}"
        client = self.home()
        location = f"ray:{client.url}/{submission_id}"
        inherited = {key: value for key, value in os.environ.items() if key.startswith("RL2F_")}
        variables = {LOCATION: location, "RL2F_WORKSPACE": str(self.workspace.root), "RL2F_RAY_GROUP": submission_id}
        if not bundle.get("GPU"):
            variables["CUDA_VISIBLE_DEVICES"] = ""
        job_file = launch.folder / JOB_FILE
        job_file.write_text(submission_id)
        try:
            client.submit_job(
                {
                    "submission_id": submission_id,
                    "entrypoint": entrypoint(launch, submission_id, {**inherited, **launch.environment, **variables}),
                    "entrypoint_num_cpus": bundle["CPU"],
                    "entrypoint_num_gpus": bundle.get("GPU", 0),
                    "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "0"}},
                }
            )
        except RunError:
            job_file.unlink(missing_ok=True)  # a job that was submitted nevertheless ends immediately
            raise
        if others:
            self._reserved[submission_id] = others
        return WorkerHandle(0, 0.0, str(launch.folder), location)

    def alive(self, handle: WorkerHandle) -> bool:
        """Check whether the run's job is active. If its cluster does not respond, check the worker's progress file."""
        try:
            job = self._job(handle)
            self._seen.pop(handle.folder, None)
            if job is None or job["status"] not in ACTIVE_STATES:
                if job is not None and job["status"] == "FAILED":
                    _explain_failed_start(handle, job)
                return False
            if handle.location in self._killed:
                if job["status"] == "PENDING":  # Ray ends it as soon as it has resources
                    return False
                self._stop_job(handle)
            return True
        except RunError:
            return self._has_progressed(handle)

    def stop(self, handle: WorkerHandle) -> None:
        """Ask the worker to stop after its step."""
        request_stop(Path(handle.folder), _session(handle))

    def kill(self, handle: WorkerHandle) -> None:
        """End the worker and all its processes; repeated by `alive` if the cluster does not respond."""
        self._killed.add(handle.location)
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        try:
            self._stop_job(handle)
            while (job := self._job(handle)) and job["status"] == "RUNNING" and time.monotonic() < deadline:
                time.sleep(KILL_POLL_SECONDS)
        except RunError as error:
            _log.warning("The abort of %s waits until its cluster responds: %s", handle.location, error)

    def clean(self, handle: WorkerHandle) -> None:
        """Discard the state of a dead worker; Ray ends its remaining processes."""
        self._killed.discard(handle.location)
        self._seen.pop(handle.folder, None)
        self._reserved.pop(_submission_id(handle), None)

    def exit_code(self, handle: WorkerHandle) -> int | None:
        """Return the exit code of the worker. Returns None if its node died or the cluster does not respond."""
        with contextlib.suppress(RunError):
            return (self._job(handle) or {}).get("driver_exit_code")
        return None

    def _client_of(self, handle: WorkerHandle) -> RayClient:
        return self._client(handle.location.removeprefix("ray:").rpartition("/")[0])

    def _job(self, handle: WorkerHandle) -> Record | None:
        return self._client_of(handle).get_job(_submission_id(handle))

    def _stop_job(self, handle: WorkerHandle) -> None:
        self._client_of(handle).stop_job(_submission_id(handle))

    def _has_progressed(self, handle: WorkerHandle) -> bool:
        try:
            progress = (Path(handle.folder) / PROGRESS).read_bytes()
        except OSError:
            progress = b""
        now = time.monotonic()
        before, since = self._seen.get(handle.folder, (None, now))
        if progress != before:
            since = now
        self._seen[handle.folder] = progress, since
        return now - since < LOST_CONTACT_SECONDS


def _submission_id(handle: WorkerHandle) -> str:
    return handle.location.rpartition("/")[2]


def _session(handle: WorkerHandle) -> int:
    return int(handle.location.rpartition("-")[2])


def _explain_failed_start(handle: WorkerHandle, job: Record) -> None:
    """Write an exit record for a worker that Ray could not start."""
    folder, session, code = Path(handle.folder), _session(handle), job["driver_exit_code"]
    if read_progress(folder, session) is not None or read_exit(folder, session) is not None:
        return
    if code == NO_RUN_DIR_CODE:
        node = urlsplit(job["driver_agent_http_address"] or "").hostname
        reason = str(
            RunError(
                f"The node {node} of the Ray cluster cannot access the run directory.",
                value=handle.folder,
                fix="Put the workspace on a disk that all nodes have under the same path (rl2f serve --workspace).",
            )
        )
    elif code is None and "SUPERVISOR_ACTOR_DIED" not in (job["error_type"] or ""):
        reason = job["message"][-500:]
    else:
        return
    write_exit(folder, ExitStatus(session, "failed", f"It could not be started. {reason}", time.time(), code or 0))


def entrypoint(launch: LaunchSpec, submission_id: str, variables: dict[str, str]) -> str:
    """Return the shell command of a job: check the run directory, then become the worker.

    An exit record means that the queue gave up the session while the job waited for resources.
    """
    python, folder, log = (shlex.quote(str(path)) for path in (sys.executable, launch.folder, launch.log))
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return (
        f"grep -qsxF {shlex.quote(submission_id)} {folder}/{JOB_FILE} || exit {NO_RUN_DIR_CODE}; "
        f"[ ! -e {folder}/{EXIT} ] || exit 0; "
        f'python={python}; [ -x "$python" ] || python=python; '
        f'export {exports} PYTHONUNBUFFERED=1 PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"; '
        f'exec "$python" -m jobs.worker {folder} >> {log} 2>&1 < /dev/null'
    )


def workspace_key(workspace: Workspace) -> str:
    """Return a short, unique name of a workspace for job names in a shared cluster."""
    return hashlib.sha256(str(workspace.root).encode()).hexdigest()[:8]


def dashboard_url(address: str) -> str:
    """Return the dashboard's URL of a cluster by any of its addresses; raises `UnreachableError`.

    A separate process queries the head, because Ray ends a process whose head does not respond.
    """
    if "://" in address:
        return address
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS}
    command = [sys.executable, "-c", FIND_DASHBOARD, address]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=ADDRESS_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        reason = (result.stderr.strip().splitlines() or [f"code {result.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        result, reason = None, f"no response within {ADDRESS_TIMEOUT_SECONDS:g} s"
    url = re.search(r"^https?://\S+$", result.stdout, re.MULTILINE) if result is not None else None
    if url is None:
        raise UnreachableError(
            f"No Ray cluster responds at {address}.",
            value=reason[:500],
            fix="Start one (ray start --head) and set RAY_ADDRESS=http://HOST:8265.",
        )
    return url.group()


def start_head(log: Path) -> str:
    """Start a cluster of this machine alone that outlives this process; return its dashboard's URL.

    Raises `RunError` if it cannot be started. `ray stop` ends it. Its dashboard listens on the loopback interface, its
    other ports can be reached from other machines unless a firewall blocks them.
    """
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            bound = stack.enter_context(socket.socket())
            bound.bind(("127.0.0.1", 0))
            ports.append(str(bound.getsockname()[1]))
    # another head on this machine may use Ray's default ports
    options = f"--head --port={ports[0]} --dashboard-port={ports[1]} --ray-client-server-port={ports[2]}".split()
    options += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", "--dashboard-agent-listen-port=0"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--no-monitor", "--disable-usage-stats"]
    with open(log, "ab") as out:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    if result.returncode:
        raise RunError("The local Ray cluster did not start.", value=f"code {result.returncode}", fix=f"See {log}.")
    return f"http://127.0.0.1:{ports[1]}"
