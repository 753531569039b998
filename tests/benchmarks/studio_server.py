"""The same large workspace asked over HTTP: a real `rl2f serve`, and what each page asks of it first."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

from rl2f_core.paths import ROOT

SERVE = (sys.executable, "-c", "from app.cli import main; main()", "serve")
OPEN_SECONDS = 300.0


@dataclass(frozen=True)
class Server:
    """A running `rl2f serve`."""

    url: str
    process: psutil.Process

    def milliseconds(self, route: str) -> float:
        """How long a route takes to its last byte."""
        before = time.perf_counter()
        with urllib.request.urlopen(self.url + route, timeout=60) as answer:
            answer.read()
        return 1000 * (time.perf_counter() - before)

    def cpu(self) -> float:
        """Seconds of a core that it has used."""
        spent = self.process.cpu_times()
        return spent.user + spent.system

    def memory(self) -> float:
        """Megabytes that it holds, without what it started."""
        return self.process.memory_info().rss / 1e6


@contextlib.contextmanager
def serving(workspace: Path, checkout: Path = ROOT) -> Iterator[Server]:
    """Start a server over an existing workspace, with the code of a checkout."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [*SERVE, "--port", str(port), "--workspace", str(workspace)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.DEVNULL,
    )
    try:
        server = Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        end = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                server.milliseconds("/")
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"The server over {workspace} did not open.") from error
                time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait()


def routes(run: int, event: str, words: str) -> dict[str, tuple[str, str]]:
    """What pages ask for: name → (kind of limit: list, next or search; route).

    Args:
        run: The largest run's number.
        event: A dialogue of it.
        words: What is searched for.
    """
    one = f"run={run}&dialogue={quote(event, safe='')}"
    return {
        "Runs": ("list", "/api/runs"),
        "Runs: search": ("list", "/api/runs?search=sweep"),
        "Run": ("list", f"/api/run/{run}"),
        "Run: plots": ("list", f"/api/run/{run}/charts?x=step&smooth=0.6"),
        "Dialogues: list": ("list", "/api/dialogues"),
        "Dialogues: list, two filters": ("list", "/api/dialogues?solved=3&leak=2"),
        "Dialogues: filters": ("list", "/api/dialogues/facets"),
        "Dialogues: search": ("search", f"/api/dialogues?search={quote(words)}"),
        "Dialogues: one": ("next", f"/api/dialogues/one?{one}"),
        "Dialogues: group": ("list", f"/api/dialogues/group?{one}"),
        "Exports": ("list", "/api/exports"),
        "Exports: choices": ("list", "/api/exports/choices"),
        "Exports: count": ("list", f"/api/exports/count?runs={run}"),
        "New run": ("list", "/api/form/start"),
        "Chat": ("list", "/api/chat/options"),
    }


def ask(server: Server, route: str, repeats: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each answer, and milliseconds of one core that the server worked meanwhile."""
    waits, work = [], []
    for _ in range(repeats):
        before = server.cpu()
        waits.append(server.milliseconds(route))
        work.append(1000 * (server.cpu() - before))
    return waits, work
