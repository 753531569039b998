"""The actor that stands for a run in a Ray cluster: it holds the run's resources and looks after its worker.

The worker is a process of its own, as on one machine: it gets signals, writes to the run's log, and a crash of its
native code is told by its exit code.  It lives on a leash (`jobs.worker`), so that it ends with its actor, and the
actor gives all back as soon as the worker has ended, whether a server looks or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from jobs.executors.base import LEASH, PLACE, SESSION, Handle, Launch
from jobs.executors.local import Local
from jobs.records import Exit, how_it_went, read_exit, write_exit
from jobs.studio import Studio
from rl2f_core.errors import RunError

LOOK = 0.5
"""Seconds between two looks at the worker."""
NAMESPACE = "rl2f"
"""Of all that the project keeps in a cluster."""
RAY_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")
"""Variables by which Ray tells a process that it is one of its own; the worker is none, and connects by itself."""


def fingerprint(folder: Path) -> str:
    """What tells whether two machines see the same run's folder: a hash of its configuration and its slot.

    Raises `OSError` where it is not there.
    """
    parts = [(folder / name).read_bytes() for name in ("config.yaml", "slot.json")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


class RunActor:
    """Stands for one session of one run."""

    def __init__(self, studio: str, name: str, variables: dict[str, str]) -> None:
        for variable in RAY_OWN:
            os.environ.pop(variable, None)
        os.environ.update(variables)
        self.name, self.local = name, Local(Studio(studio))
        self.handle: Handle | None = None
        self.asked = False
        """Somebody ended the worker on purpose: how it ended is not this actor's to tell."""

    def start(self, folder: str, log: str, environment: dict[str, str], seen: str, address: str) -> dict[str, Any]:
        """Start the worker; raises `RunError` where this node does not see the run's folder."""
        import ray

        path, node = Path(folder), ray.util.get_node_ip_address()
        try:
            found = fingerprint(path)
        except OSError:
            found = ""
        if found != seen:
            raise RunError(
                f"The node {node} of the Ray cluster does not see the run's folder.",
                value=folder,
                fix="Put the studio on a disk that all nodes have under the same path (rl2f serve --studio).",
            )
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        own = {
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "RAY_ADDRESS": address,
            "RL2F_RAY_GROUP": self.name,
            LEASH: str(os.getpid()),
        }
        self.handle = self.local.start(Launch(path, Path(log), {**environment, **own}))
        threading.Thread(target=self._wait, args=(int(environment[SESSION]),), name="worker", daemon=True).start()
        return {"pid": self.handle.pid, "started": self.handle.started}

    def alive(self) -> bool:
        """Whether the worker is there, or how it ended is still to be told: then the actor goes."""
        return self.handle is not None

    def stop(self) -> None:
        """Ask the worker to stop after its step."""
        if self.handle is not None:
            self.local.stop(self.handle)

    def kill(self) -> None:
        """End the worker and all it started, at once."""
        self.asked = True
        if self.handle is not None:
            self.local.kill(self.handle)

    def _wait(self, session: int) -> None:
        """When the worker has ended, say how where it could not, and give the resources back."""
        assert self.handle is not None
        try:
            while self.local.alive(self.handle):
                time.sleep(LOOK)
            code = self.local.exit_code(self.handle)
            self.local.clean(self.handle)
            folder = Path(self.handle.folder)
            if not self.asked and read_exit(folder, session) is None:
                detail = f"{how_it_went(code)} ({os.environ.get(PLACE, '')})"
                write_exit(folder, Exit(session, "interrupted", detail, time.time(), code or 0))
            release(self.name)
        finally:
            os._exit(0)


def release(name: str) -> None:
    """Give a run's resources back to the cluster; nothing happens where they are."""
    from ray.util import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):  # there is none of this name
        remove_placement_group(get_placement_group(name))
