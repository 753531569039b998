"""HTTP client of a Ray cluster's dashboard: the Jobs API and the State API.

Ray's own `JobSubmissionClient` uses the same API, but its requests have no timeout, so an unresponsive head would block
the scheduler. It also imports Ray into the server.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from jobs.executors.ray.placement import Bundle, Node
from rl2f_core.errors import RunError
from rl2f_core.types import JsonObject

Record = JsonObject
"""A JSON object of Ray's API."""
CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 20.0
RETRY_INTERVAL_SECONDS = 10.0
"""Time after a failed request in which no other request is sent."""
MAX_LISTED = 10_000
"""Rows of a State API response."""
ACTIVE_STATES = ("PENDING", "RUNNING")
"""Job states that are not final."""


class UnreachableError(RunError):
    """The cluster does not respond."""


class RayClient:
    """Requests to one cluster. Thread-safe.

    Args:
        url: Of the dashboard, http://HOST:PORT.
        transport: Replaces the network in tests.
    """

    def __init__(self, url: str, transport: httpx2.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.Client(
            base_url=self.url,
            headers=auth_headers(),
            timeout=httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            transport=transport,
            trust_env=urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1"),
        )
        self._lock = threading.Lock()
        self._retry_at, self._failure = 0.0, ""
        self.close = self._http.close

    def submit_job(self, job: Record) -> None:
        """Submit a job; raises `RunError` if Ray refuses it."""
        self._request("POST", "/api/jobs/", json=job)

    def get_job(self, submission_id: str) -> Record | None:
        """Return the details of a job. Returns None if the cluster does not know it."""
        return self._request("GET", f"/api/jobs/{submission_id}")

    def stop_job(self, submission_id: str) -> None:
        """Ask Ray to end a job. Does nothing if the job is over."""
        self._request("POST", f"/api/jobs/{submission_id}/stop")

    def list_jobs(self) -> list[Record]:
        """Return the details of all jobs that the cluster remembers."""
        return list(self._request("GET", "/api/jobs/") or [])

    def list_placement_groups(self) -> list[Record]:
        """Return the placement groups that hold resources or wait for them."""
        return [group for group in self._list("placement_groups") if group["state"] != "REMOVED"]

    def list_nodes(self, groups: list[Record]) -> tuple[list[Node], list[list[Bundle]]]:
        """Return the living nodes with their free resources, and the demand that has no node yet.

        Actors and placement groups are counted at once. Tasks come from the report of Ray's monitor, which is up to
        five seconds old and missing in clusters without a monitor.

        Args:
            groups: From `list_placement_groups`.
        """
        used: dict[str, Counter[str]] = defaultdict(Counter)
        demand: list[list[Bundle]] = []
        for actor in self._list("actors"):
            if actor["state"] == "DEAD" or actor["placement_group_id"]:
                continue
            if actor["node_id"]:
                used[actor["node_id"]].update(_cpu_and_gpu(actor["required_resources"]))
            else:
                demand.append([_cpu_and_gpu(actor["required_resources"])])
        for group in groups:
            if group["state"] == "CREATED":
                for bundle in group["bundles"]:
                    used[bundle["node_id"]].update(_cpu_and_gpu(bundle["unit_resources"]))
            else:
                demand.append([_cpu_and_gpu(bundle["unit_resources"]) for bundle in group["bundles"]])
        status = (self._request("GET", "/api/cluster_status") or {}).get("data", {}).get("clusterStatus") or {}
        reported = status.get("loadMetricsReport", {}).get("usageByNode") or {}
        nodes = []
        for row in self._list("nodes"):
            if row["state"] != "ALIVE":
                continue
            total = _cpu_and_gpu(row["resources_total"])
            counted, report = used[row["node_id"]], reported.get(row["node_id"], {})
            free = {name: max(0.0, total[name] - max(counted[name], report.get(name, [0.0])[0])) for name in total}
            nodes.append(Node(row["node_ip"], total, free))
        return nodes, demand

    def _list(self, resource: str) -> list[Record]:
        response = self._request("GET", f"/api/v0/{resource}", params={"detail": "1", "limit": MAX_LISTED})
        return list(response["data"]["result"]["result"]) if response else []

    def _request(self, method: str, path: str, **options: Any) -> Any:
        with self._lock:
            if time.monotonic() < self._retry_at:
                raise self._unreachable(self._failure)
        try:
            response = self._http.request(method, path, **options)
            if response.status_code == 404:
                return None
            if response.status_code < 400:
                return response.json()
        except (httpx2.HTTPError, ValueError) as error:
            with self._lock:
                self._retry_at = time.monotonic() + RETRY_INTERVAL_SECONDS
                self._failure = f"{type(error).__name__}: {error}"
            raise self._unreachable(self._failure) from error
        lines = response.text.strip().splitlines() or [""]
        raise RunError(f"The Ray cluster at {self.url} returned status {response.status_code}.", value=lines[-1][:500])

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"No Ray cluster responds at {self.url}.",
            value=reason,
            fix="Start its head with ray start --head --dashboard-host=0.0.0.0 and set RAY_ADDRESS=http://HOST:8265.",
        )


def auth_headers() -> dict[str, str]:
    """Return the token header of a cluster with RAY_AUTH_MODE=token, and nothing for other clusters."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not token and path.is_file():
        token = path.read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _cpu_and_gpu(resources: Record) -> dict[str, float]:
    return {name: float(resources.get(name, 0.0)) for name in ("CPU", "GPU")}
