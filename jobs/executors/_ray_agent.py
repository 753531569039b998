"""The process that holds the connection to a Ray cluster: `python -m jobs.executors._ray_agent ADDRESS`.

It answers JSON lines on standard input with JSON lines on standard output, several at once.  The server has no such
connection itself, because Ray ends a process that cannot reach its cluster's head for a minute.  Nothing is lost with
this process: runs are actors of their own in the cluster, found again by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jobs.executors._ray_actor import NAMESPACE, RunActor, release
from jobs.executors.base import PLACE
from rl2f_core.errors import RL2FError

ROOM_SECONDS = 10.0
"""How long a group may take to get its resources where they were free a moment ago."""
START_SECONDS = 40.0
"""How long its actor may take to start the worker."""
ANSWER_SECONDS = 15.0
"""How long an actor may take to answer."""


class ClusterEnd:
    """What can be asked of a cluster; every method is a request of the same name."""

    def __init__(self, address: str) -> None:
        import ray
        from ray.job_config import JobConfig

        packages = str(Path(__file__).resolve().parents[2])
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="warning",
            job_config=JobConfig(_py_driver_sys_path=[packages]),
        )
        self.address: str = ray.get_runtime_context().gcs_address

    def hello(self) -> dict[str, Any]:
        """Which cluster it is."""
        return {"address": self.address}

    def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, with what they have and what of it is free."""
        import ray
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        return [
            {"name": node["NodeManagerAddress"], "total": _counted(node["Resources"]),
             "free": _counted(free.get(node["NodeID"], {}))}
            for node in ray.nodes() if node["Alive"]
        ]  # fmt: skip

    def sweep(self, prefix: str) -> list[str]:
        """Give back groups without an actor, which a server left that died while it started a run; their names."""
        import ray
        from ray.util import placement_group_table

        swept = []
        for group in placement_group_table().values():
            name = group["name"]
            if name.startswith(prefix) and group["state"] != "REMOVED":
                try:
                    ray.get_actor(name)
                except ValueError:
                    release(name)
                    swept.append(name)
        return swept

    def start(
        self, name: str, studio: str, bundles: list[dict[str, float]], variables: dict[str, str], **launch: Any
    ) -> dict[str, Any]:
        """A group with the run's actor in its first bundle, and the worker that it started; `room` says if there was
        any."""
        import ray
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        if not group.wait(ROOM_SECONDS):
            release(name)
            return {"room": False}
        try:
            actor = (
                ray.remote(RunActor)
                .options(
                    name=name,
                    lifetime="detached",
                    max_concurrency=8,
                    num_cpus=bundles[0]["CPU"],
                    num_gpus=bundles[0].get("GPU", 0),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
                )
                .remote(studio, name, {**variables, PLACE: f"ray:{self.address}/{name}"})
            )
            started: dict[str, Any] = ray.get(actor.start.remote(**launch, address=self.address), timeout=START_SECONDS)
        except BaseException:
            release(name)
            raise
        return {"room": True, **started}

    def alive(self, name: str) -> bool:
        """Whether the run's actor is there."""
        import ray

        try:
            return bool(ray.get(ray.get_actor(name).alive.remote(), timeout=ANSWER_SECONDS))
        except (ValueError, ray.exceptions.ActorDiedError):  # unknown, or dead
            return False

    def stop(self, name: str) -> None:
        """Ask the worker to stop after its step."""
        import ray

        with contextlib.suppress(ValueError, ray.exceptions.ActorDiedError):
            ray.get(ray.get_actor(name).stop.remote(), timeout=ANSWER_SECONDS)

    def kill(self, name: str) -> None:
        """End the worker, its actor and all actors that play for it, and give their resources back."""
        import ray

        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            actor = ray.get_actor(name)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.kill.remote(), timeout=ANSWER_SECONDS)
            ray.kill(actor)
        release(name)

    def clean(self, name: str) -> None:
        """Give back what a dead actor has left."""
        release(name)


REQUESTS = ("hello", "nodes", "sweep", "start", "alive", "stop", "kill", "clean")


def _counted(resources: dict[str, float]) -> dict[str, float]:
    return {name: float(resources.get(name, 0.0)) for name in ("CPU", "GPU")}


def answer(cluster: ClusterEnd, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request: its `value`, or an `error`."""
    values = {key: value for key, value in request.items() if key not in ("id", "do")}
    try:
        return {"value": getattr(cluster, request["do"])(**values)}
    except Exception as error:  # whatever it is, it is told to the one who asked
        return {"error": told(error)}


def told(error: BaseException) -> dict[str, Any]:
    """An error as JSON. Our own keeps its parts; an error inside an actor is the one that it is there."""
    error = getattr(error, "cause", None) or error
    if isinstance(error, RL2FError):
        return {"ours": True, "what": error.what, "value": None if error.value is None else str(error.value),
                "fix": error.fix}  # fmt: skip
    lines = str(error).strip().splitlines() or [""]
    return {"ours": False, "what": f"{type(error).__name__}: {lines[0][:500]}"}


def main(arguments: list[str]) -> int:
    """Connect, then answer until the other end is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints goes to the log
    writing = threading.Lock()

    def write(data: dict[str, Any]) -> None:
        with writing:
            answers.write(json.dumps(data).encode() + b"\n")
            answers.flush()

    try:
        cluster = ClusterEnd(arguments[0])
    except BaseException as error:
        write({"id": 0, "error": told(error)})
        raise
    write({"id": 0, "value": cluster.hello()})
    with ThreadPoolExecutor(8, "answer") as pool:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            assert request["do"] in REQUESTS, request["do"]
            pool.submit(lambda asked=request: write({"id": asked["id"], **answer(cluster, asked)}))  # type: ignore[misc]
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
