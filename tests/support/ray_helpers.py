"""A real Ray cluster for slow tests: a local head, and further nodes that tests can kill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobs.executors.ray.executor import start_head

SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",  # no worker before one is needed: each loads Python and Ray
    "RAY_health_check_period_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
}


class RayCluster:
    """A head and further nodes.

    Args:
        url: Address of the dashboard.
        log: Log of `ray start`, with the address of the head.
    """

    def __init__(self, url: str, log: Path) -> None:
        self.url, self.log = url, log
        (self.address,) = set(re.findall(r"ray start --address='([^']+)'", log.read_text()))

    def add_node(self, name: str, cpus: int) -> None:
        """Start another node on this machine."""
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--address", self.address, "--node-name", name,
            "--num-cpus", str(cpus), "--num-gpus", "0", "--disable-usage-stats", "--object-store-memory", "100000000",
        ]  # fmt: skip
        with open(self.log, "ab") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True, start_new_session=True, timeout=240)

    def raylet(self, name: str) -> psutil.Process:
        """Return the process of a node."""
        (process,) = [p for p in self.processes() if f"--node-name={name}" in " ".join(p.cmdline())]
        return process

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this cluster, by its address."""
        port = self.address.rpartition(":")[2]
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if "/ray/" in command and (f":{port}" in command or f"--gcs_server_port={port}" in command):
                    processes.append(process)
        return processes

    def shut(self) -> None:
        """Kill all processes of the cluster."""
        family = {child for p in self.processes() for child in p.children(recursive=True)} | set(self.processes())
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(list(family), 20)


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Start a cluster with a head of all CPUs; skip the test if Ray is not installed."""
    pytest.importorskip("ray", reason="Ray is not installed: make setup-ray")
    before = {name: os.environ.get(name) for name in (*SETTINGS, "RAY_ADDRESS")}
    os.environ.update(SETTINGS)
    os.environ.pop("RAY_ADDRESS", None)
    log = Path(tempfile.mkdtemp(prefix="rl2f-ray-")) / "ray.log"
    try:
        cluster = RayCluster(start_head(log), log)
        try:
            yield cluster
        finally:
            cluster.shut()
    except BaseException:
        print(log.read_text()[-3000:] if log.exists() else "no log")
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
