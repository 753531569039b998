"""The endpoints as MCP tools: the official client against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from export_builders import leaky_events, write_run
from jobs_helpers import counting, counting_kinds, until
from thread_calls import call_in_thread
from web_server import serving_app

from app.common.context import Context
from jobs.db.engine import Database
from jobs.db.queries import audit_log, chats, runs, tokens
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
CHANGES = {"launch_run": "run", "label_hint": "label", "start_export": "run"}
"""Tools and their scopes."""
TINY = """
name: by program
model: {name: tiny-random, device: cpu, dtype: float32}
environment: {type: guess_number, size: 4}
rollout: {max_turns: 2, max_new_tokens: 8, max_seq_len: 512}
evaluation: {checkpoints: []}
preflight: {num_tasks: 2, samples_per_task: 2, ignore_failure: true}
stages: [{name: rl, method: rl2f, steps: 2, tasks_per_step: 2, group_size: 2}]
"""
Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Site:
    """A running server."""

    db: Database
    url: str

    def token(self, *scopes: str, name: str = "") -> str:
        """Return a new token."""
        return tokens.create(self.db, scopes, name)[1]

    def talk(self, token: str, program: Callable[[Any, Call], Awaitable[Any]], mode: str = "auto") -> Any:
        """Return the result of `program(client, call)`; `call` returns the content of a tool's result."""
        httpx2, mcp = pytest.importorskip("httpx2"), pytest.importorskip("mcp")
        from mcp.client.streamable_http import streamable_http_client

        async def talk() -> Any:
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
                async with mcp.Client(streamable_http_client(f"{self.url}/mcp", http_client=http), mode=mode) as client:

                    async def call(tool: str, /, **arguments: Any) -> Any:
                        result = await client.call_tool(tool, arguments)
                        text = result.content[0].text
                        return {"error": text} if result.is_error else json.loads(text)

                    return await program(client, call)

        return call_in_thread(asyncio.run, talk())

    def log(self) -> list[tuple[str, str, str, str]]:
        """Return caller, action, outcome and detail of all entries, oldest first."""
        return [(e.caller, e.action, e.outcome, e.detail) for e in reversed(audit_log.recent(self.db))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without pages, with a recorded run; nothing executes queued runs."""
    pytest.importorskip("mcp")
    from app.web import server

    workspace = Workspace(tmp_path_factory.mktemp("mcp") / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    write_run(workspace.folder("leaky"), leaky_events())
    reindex(db, workspace)
    context = Context(workspace, db, Queue(db, workspace))
    with serving_app(lambda port: server.create_app(context, "127.0.0.1", port, site_pages=[], mcp=["all"])) as url:
        yield Site(db, url)
    db.close()


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
def test_a_token_lists_the_tools_of_its_scopes_with_schema_and_description(site: Site, mode: str) -> None:
    async def tools(client: Any, call: Call) -> dict[str, Any]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    everything = site.talk(site.token("read", "run", "label"), tools, mode)
    reading = site.talk(site.token("read"), tools, mode)
    assert everything.keys() - reading.keys() >= CHANGES.keys() and reading.keys() >= {"list_runs", "get_dialogue"}
    assert all(tool.annotations.read_only_hint for tool in reading.values())
    label = everything["label_hint"]
    assert label.description.startswith("Label a hint;") and not label.annotations.read_only_hint
    assert label.input_schema["required"] == ["run", "event_id", "turn", "annotator", "label"]
    assert label.input_schema["properties"]["label"]["enum"] == ["leak", "no_leak", "unsure"]


def test_a_read_token_changes_nothing_and_the_refusals_are_recorded(site: Site) -> None:
    async def change(client: Any, call: Call) -> list[Any]:
        return [await call(name) for name in CHANGES]

    before = runs.page(site.db).rows
    for answer, scope in zip(site.talk(site.token("read", name="reader"), change), CHANGES.values(), strict=True):
        assert f"needs the scope {scope}" in answer["error"] and f"--scope {scope}" in answer["error"]
    assert runs.page(site.db).rows == before
    refused = [(action, outcome) for caller, action, outcome, _ in site.log() if caller == "token reader"]
    assert refused == [(name, "refused") for name in CHANGES]


def test_a_stream_is_its_last_update_and_a_text_is_not_encoded(site: Site) -> None:
    async def read(client: Any, call: Call) -> list[Any]:
        preset = (await client.call_tool("get_preset", {"name": "quickstart"})).content[0].text
        return [preset, await call("follow_chat", chat=chat), await call("send_message", chat=7, text="Hello")]

    chat = chats.create(site.db, "title", "chat", {}).id
    preset, update, sent = site.talk(site.token("read", "run"), read)
    assert preset.startswith("# Does RL") and update == {"status": "", "messages": [], "error": None, "ended": True}
    assert "chat" in sent["error"].lower() and "7" in sent["error"]


def test_a_program_queues_a_run_reads_dialogues_and_labels_a_hint(site: Site) -> None:
    async def work(client: Any, call: Call) -> Any:
        with counting_kinds():
            run = (await call("launch_run", yaml=counting()))["run"]
        first = (await call("list_dialogues", filter={"run": 1}, limit=1))["rows"][0]["event_id"]
        labeled = await call("label_hint", run=1, event_id=first, turn=0, annotator="program", label="no_leak")
        wrong = await call("label_hint", run=1, event_id=first, turn=0, annotator="program", label="maybe")
        unknown = await call("launch_everything")
        return run, labeled, wrong, unknown

    run, labeled, wrong, unknown = site.talk(site.token("read", "run", "label", name="assistant"), work)
    assert runs.get(site.db, run).name == "counting" and labeled["own_label"]["label"] == "no_leak"
    assert "argument label" in wrong["error"] and "'maybe'" in wrong["error"]
    assert unknown["error"] == "There is no tool 'launch_everything'."
    launched, first_label, second_label = [entry[1:] for entry in site.log() if entry[0] == "token assistant"]
    assert (launched, first_label) == (("launch_run", "ok", f"run {run}"), ("label_hint", "ok", "run 1"))
    assert second_label[:2] == ("label_hint", "failed") and "argument label" in second_label[2]


LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Authorization": "Bearer rl2f_" + "x" * 43}, 401),
        ({"Authorization": "Basic eDp5"}, 403),
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_requests_without_a_valid_token_or_from_elsewhere_are_refused(
    site: Site, headers: dict[str, str], status: int
) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    valid = {} if status == 401 or not headers or "Authorization" in headers else {
        "Authorization": f"Bearer {site.token('read')}"
    }  # fmt: skip
    answer = httpx.post(f"{site.url}/mcp", json=LIST_TOOLS, headers={**accept, **valid, **headers})
    assert answer.status_code == status and "error" in answer.json()


def test_the_cookie_of_a_browser_does_not_open_mcp(site: Site) -> None:
    from app.web.program_access import ProgramAccess
    from app.web.security import Security, load_secret

    port = int(site.url.rpartition(":")[2])
    secret = load_secret(Path(str(site.db.url.database)).with_name("secret"))
    guard = Security(print, secret=secret, port=port, programs=ProgramAccess(site.db))
    headers = {"Cookie": f"{guard.cookie_name}={guard.cookie}", "Sec-Fetch-Site": "same-origin"}
    assert httpx.post(f"{site.url}/mcp", json=LIST_TOOLS, headers=headers).status_code == 404


def test_a_server_without_the_option_has_no_mcp(client: Any, context: Context) -> None:
    token = tokens.create(context.db, ["read"])[1]
    answer = client.post("/mcp", json=LIST_TOOLS, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403 and "--mcp" in answer.json()["error"]


def test_without_the_package_the_error_names_the_extra(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.web.security import ServerError
    from app.web.server import create_app

    monkeypatch.setitem(sys.modules, "mcp_types", None)  # as with version 1
    with pytest.raises(ServerError, match=r"pip install 'rl2f\[mcp\]'"):
        create_app(context, site_pages=[], mcp=["all"])


@pytest.mark.slow
def test_an_assistant_launches_the_tiny_run_waits_reads_its_dialogues_and_labels_one(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    with _serve(tmp_path) as site:

        async def work(client: Any, call: Call) -> Any:
            names = {tool.name for tool in (await client.list_tools()).tools}
            run = (await call("launch_run", yaml=TINY))["run"]
            deadline = time.monotonic() + 120
            while (status := (await call("get_run", run_id=run))["run"]["status"]) not in ("succeeded", "failed"):
                assert time.monotonic() < deadline, status
                await asyncio.sleep(0.5)
            rows = (await call("list_dialogues", filter={"run": run}, limit=5))["rows"]
            dialogue = await call("get_dialogue", run=run, event_id=rows[0]["event_id"])
            hint = (await call("next_hints_to_label", annotator="assistant", queue={"run": run}, limit=1))["hints"][0]
            place = {name: hint[name] for name in ("run", "event_id", "turn")}
            await call("label_hint", **place, annotator="assistant", label="no_leak")
            return names, status, dialogue, await call("list_labels", **place)

        async def launch(client: Any, call: Call) -> Any:
            return await call("launch_run", yaml=TINY)

        names, status, dialogue, labels = site.talk(site.token("read", "run", "label", name="assistant"), work)
        assert names >= {"launch_run", "get_run", "list_dialogues", "label_hint"} and status == "succeeded"
        assert dialogue["turns"]
        assert [label["label"] for label in labels] == ["no_leak"]
        assert "needs the scope run" in site.talk(site.token("read", name="reader"), launch)["error"]
        assert [entry[:3] for entry in site.log() if entry[0] != "browser"] == [
            ("command line", "create_token", "ok"),
            ("token assistant", "launch_run", "ok"),
            ("token assistant", "label_hint", "ok"),
            ("command line", "create_token", "ok"),
            ("token reader", "launch_run", "refused"),
        ]


@contextlib.contextmanager
def _serve(folder: Path) -> Iterator[Site]:
    """Run `rl2f serve --mcp` in another process."""
    workspace = Workspace(folder / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "from app.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        "--mcp",
        "--mcp-tools",
        "default,labels",
        "--port",
        str(port),
        "--workspace",
        str(workspace.root),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    log = folder / "log.txt"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: b"is open at" in log.read_bytes() or process.poll() is not None, 120)
        assert process.poll() is None, log.read_text()
        yield Site(db, f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        db.close()
