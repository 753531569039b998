"""The same large workspace over HTTP: a real `rl2f serve`, and the endpoints that each page calls first."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.endpoints.chat import ChatEndpoints
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.endpoint import operation_of
from app.endpoints.exports import ExportEndpoints
from app.endpoints.launch import LaunchEndpoints
from app.endpoints.run import RunEndpoints
from app.endpoints.runs import RunListEndpoints
from rl2f_core.common.paths import ROOT

SERVE = (sys.executable, "-c", "from app.cli import main; main()", "serve")
OPEN_SECONDS = 300.0
SESSION = "benchmark"
"""Session of the calls, as of one `gradio_client`; for a call without one, Gradio copies all components."""


@dataclass(frozen=True)
class Call:
    """A call of an endpoint."""

    limit: str
    """Kind of limit: list, next or search."""
    endpoint: str
    arguments: list[object]
    """All arguments by position, as a program sends them."""

    @classmethod
    def of(cls, limit: str, method: Callable[..., object], **arguments: object) -> Call:
        """Return the call of an endpoint's method; missing arguments have their defaults."""
        operation = operation_of(method)
        assert {*arguments} <= {*operation.arguments.model_fields}, arguments
        values = {**operation.defaults(), **arguments}
        assert ... not in values.values(), "an argument is missing"
        return cls(limit, operation.name, list(values.values()))


@dataclass(frozen=True)
class Server:
    """A running `rl2f serve`."""

    url: str
    process: psutil.Process

    def get(self, path: str) -> None:
        """Request a path."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            answer.read()

    def milliseconds(self, call: Call, token: str) -> float:
        """Call an endpoint; returns the time until the last byte of its result."""
        body = json.dumps({"data": call.arguments, "session_hash": SESSION}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        route = f"{self.url}/gradio_api/run/{call.endpoint}"
        before = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(route, body, headers), timeout=60) as answer:
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
def serving(workspace: Path) -> Iterator[Server]:
    """Start a server over an existing workspace."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [*SERVE, "--port", str(port), "--workspace", str(workspace)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        server = Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        end = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                server.get("/")
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"The server over {workspace} did not open.") from error
                time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait()


def calls(run: int, event: str, words: str) -> dict[str, Call]:
    """Return the calls by name.

    Args:
        run: The largest run's number.
        event: A dialogue of it.
        words: The searched text.
    """
    one: dict[str, object] = {"run": run, "event_id": event}
    return {
        "Runs": Call.of("list", RunListEndpoints.list_runs),
        "Runs: search": Call.of("list", RunListEndpoints.list_runs, search="sweep"),
        "Runs: active": Call.of("list", RunListEndpoints.list_active_runs),
        "Runs: filters": Call.of("list", RunListEndpoints.run_facets),
        "Run": Call.of("list", RunEndpoints.get_run, run=run),
        "Run: plots": Call.of("list", RunEndpoints.run_charts, run=run, smoothing=0.6),
        "Dialogues: list": Call.of("list", DialogueEndpoints.list_dialogues),
        "Dialogues: list, two filters": Call.of(
            "list", DialogueEndpoints.list_dialogues, filter={"solved": "3", "leak_state": 2}
        ),
        "Dialogues: filters": Call.of("list", DialogueEndpoints.dialogue_facets),
        "Dialogues: search": Call.of("search", DialogueEndpoints.list_dialogues, filter={"search": words}),
        "Dialogues: one": Call.of("next", DialogueEndpoints.get_dialogue, **one),
        "Dialogues: next": Call.of("next", DialogueEndpoints.adjacent_dialogue, **one, target="next"),
        "Dialogues: group": Call.of("list", DialogueEndpoints.dialogue_group, **one),
        "Exports": Call.of("list", ExportEndpoints.list_exports),
        "Exports: choices": Call.of("list", ExportEndpoints.export_choices),
        "Exports: count": Call.of("list", ExportEndpoints.count_export, runs=[run]),
        "New run": Call.of("list", LaunchEndpoints.run_form),
        "New run: choices": Call.of("list", LaunchEndpoints.form_choices),
        "Chat": Call.of("list", ChatEndpoints.list_chat_models),
    }


def measure(server: Server, call: Call, token: str, repeats: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each call, and the milliseconds of one core that the server used for it."""
    waits, work = [], []
    for _ in range(repeats):
        before = server.cpu()
        waits.append(server.milliseconds(call, token))
        work.append(1000 * (server.cpu() - before))
    return waits, work
