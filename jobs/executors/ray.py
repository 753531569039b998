"""Runs on a Ray cluster: each a group of resources, with a named actor that starts and looks after the worker.

An actor, and not a job of Ray's Jobs API: that needs the dashboard's packages on every node, keeps the log where the
head's restart loses it, ends a job three seconds after the first signal, which is sooner than most steps, and tells no
exit code.  The actor needs plain `ray`, and the worker in it is the same as on one machine: its log, events and last
word lie in the run's folder, which all nodes must have under the same path.

The actor is detached and found by its name, which stands in the database with the address of its cluster, so a run
goes on without a server and is found again by the next one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from jobs.executors._ray_actor import fingerprint
from jobs.executors._ray_link import Link, UnreachableError
from jobs.executors._ray_room import ClusterRoom, Node, bundles_of
from jobs.executors.base import SESSION, Handle, Launch, NoRoomError
from jobs.records import PROGRESS
from jobs.studio import Studio
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run import RunDir

ADDRESS = "RAY_ADDRESS"
"""Environment variable, as Ray has it: HOST:PORT of the cluster's head, or auto. Unset or local is a cluster of this
machine alone, which is started where it does not run."""
SILENT = 120.0
"""Seconds without a sign of life in its folder after which a worker counts as dead whose cluster does not answer."""
BEGIN_SECONDS = 55.0
"""How long the whole start of a run may take: less than the queue waits for a worker's first word."""
_log = logging.getLogger(__name__)


class Ray:
    """Starts workers in a Ray cluster.

    Args:
        studio: On a disk that all nodes have under the same path.
        address: Of the cluster; None is what `RAY_ADDRESS` says.

    Raises `RunError` where Ray is not installed, `ConfigError` for an address of Ray Client.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, studio: Studio, address: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise RunError("The package ray is not installed.", fix="pip install 'rl2f[ray]'")
        named = (os.environ.get(ADDRESS, "") if address is None else address).strip()
        if "://" in named:
            raise ConfigError("This is no address of a cluster's head, but of Ray Client.", value=named,
                              fix="Join the cluster with this machine (ray start --address=HOST:PORT) and set "
                              f"{ADDRESS}=HOST:PORT.")  # fmt: skip
        self.studio, self.named = studio, named if named != "local" else ""
        self._links: dict[str, Link] = {}
        self._home: Link | None = None
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[bytes, float]] = {}
        """By folder: the worker's last sign of life, and when it was found changed."""
        self._swept = False
        self._owed: dict[str, str] = {}
        """By place: what could not be asked of a worker when its cluster did not answer."""

    # -- the cluster -------------------------------------------------------------------------------------------
    def home(self) -> Link:
        """The cluster in which runs are started; raises `UnreachableError` where there is none."""
        with self._lock:
            if self._home is None:
                self._home = self._linked(self.named) if self.named else self._of_this_machine()
            return self._home

    def _linked(self, address: str) -> Link:
        if address not in self._links:
            self._links[address] = Link(address, self.studio.root / "ray.log")
        return self._links[address]

    def _of_this_machine(self) -> Link:
        """The cluster that an earlier server started here, if it still answers, or a new one that stays as well."""
        note = self.studio.root / "ray.json"
        try:
            link = self._linked(str(json.loads(note.read_text())["address"]))
            link.ask("hello")
            return link
        except (OSError, ValueError, KeyError, UnreachableError):
            pass
        address = start_head(self.studio.root / "ray.log")
        note.write_text(json.dumps({"address": address}))
        return self._linked(address)

    def close(self) -> None:
        """Let go of the clusters; runs go on."""
        for link in self._links.values():
            link.close()

    # -- what the queue asks -----------------------------------------------------------------------------------
    def room(self) -> ClusterRoom:
        """What is free in the cluster."""
        try:
            if not self._swept:
                self.home().ask("sweep", prefix=f"{studio_key(self.studio)}/")
                self._swept = True
            nodes = [Node(n["name"], n["total"], n["free"]) for n in self.home().ask("nodes")]
        except RunError as error:
            return ClusterRoom((), str(error))
        return ClusterRoom(nodes)

    def described(self) -> str:
        """The cluster and what it has, or why it cannot be reached."""
        room = self.room()
        return room.missing or f"Runs go to the Ray cluster at {self.home().address}: {room.described()}."

    def start(self, launch: Launch) -> Handle:
        """Start a worker in a group of its own."""
        config = RunDir.open(launch.folder).config()
        session = launch.environment.get(SESSION, "0")
        name = f"{studio_key(self.studio)}/{launch.folder.name}/{session}"
        passed = {key: value for key, value in os.environ.items() if key.startswith("RL2F_") and key != "RL2F_STUDIO"}
        link = self.home()
        answer = link.ask(
            "start",
            BEGIN_SECONDS,
            name=name,
            studio=str(self.studio.root),
            bundles=[dict(bundle) for bundle in bundles_of(config, launch.slot == "ray:cuda")],
            variables=passed,
            folder=str(launch.folder),
            log=str(launch.log),
            environment=dict(launch.environment),
            seen=fingerprint(launch.folder),
        )
        if not answer["room"]:
            raise NoRoomError("What was free in the Ray cluster was taken meanwhile.")
        place = f"ray:{link.address}/{name}"
        return Handle(int(answer["pid"]), float(answer["started"]), str(launch.folder), place)

    def alive(self, handle: Handle) -> bool:
        """Whether the run's actor lives. Where its cluster does not answer, whether the worker was heard of lately."""
        try:
            alive = bool(self._ask(handle, "alive"))
        except RunError:
            return self._heard_of(handle)
        self._seen.pop(handle.folder, None)
        if alive and (owed := self._owed.pop(handle.place, "")):
            (self.kill if owed == "kill" else self.stop)(handle)
        return alive

    def stop(self, handle: Handle) -> None:
        """Ask the worker to stop after its step, when its cluster answers."""
        self._send(handle, "stop")

    def kill(self, handle: Handle) -> None:
        """End the worker and all actors of its run at once, when its cluster answers."""
        self._send(handle, "kill")

    def clean(self, handle: Handle) -> None:
        """Give back what a dead run's group still holds."""
        self._owed.pop(handle.place, None)
        self._seen.pop(handle.folder, None)
        try:
            self._ask(handle, "clean")
        except RunError as error:
            _log.warning("The group of %s could not be given back: %s", handle.place, error)

    def exit_code(self, handle: Handle) -> int | None:
        """None: the actor notes in the run's folder how a worker ended that could not say so itself."""
        return None

    def _ask(self, handle: Handle, do: str) -> Any:
        address, _, name = handle.place.removeprefix("ray:").partition("/")
        with self._lock:
            link = self._home if self._home is not None and self._home.address == address else self._linked(address)
        return link.ask(do, name=name)

    def _send(self, handle: Handle, do: str) -> None:
        try:
            self._ask(handle, do)
        except RunError as error:
            _log.warning("%s waits until the cluster of %s answers: %s", do, handle.place, error)
            self._owed[handle.place] = do

    def _heard_of(self, handle: Handle) -> bool:
        try:
            said = (Path(handle.folder) / PROGRESS).read_bytes()
        except OSError:
            said = b""
        now = time.monotonic()
        before, since = self._seen.get(handle.folder, (None, now))
        if said != before:
            since = now
        self._seen[handle.folder] = said, since
        return now - since < SILENT


def studio_key(studio: Studio) -> str:
    """Names a studio among all that use a cluster."""
    return hashlib.sha256(str(studio.root).encode()).hexdigest()[:8]


def start_head(log: Path) -> str:
    """Start a cluster of this machine alone that outlives this process; its address on this machine.

    Raises `RunError` where it cannot be started. `ray stop` ends it. Like any cluster of Ray's it can be reached from
    other machines where nothing stands before it.
    """
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port", str(port),
        "--include-dashboard=false", "--no-monitor", "--disable-usage-stats",
    ]  # fmt: skip
    with open(log, "ab") as out:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    if done.returncode:
        raise RunError("The local Ray cluster did not start.", value=f"code {done.returncode}", fix=f"See {log}.")
    return f"127.0.0.1:{port}"
