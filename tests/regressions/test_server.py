"""Memory of the server, passwords and tokens, input errors, downloads."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from app.commands.server.serve_model import check_access
from app.common.context import Context
from app.endpoints.studio import Studio
from app.web.page_registry import PageInfo
from app.web.program_access import ProgramAccess, PublishedEndpoint
from app.web.security import Security, ServerError, check_binding, load_secret
from app.web.server import create_app
from jobs.db.engine import Database
from jobs.db.queries import tokens
from jobs.export import catalog
from jobs.model_server.limits import ServerLimits
from jobs.model_server.server import ModelServer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError

T = TypeVar("T")
BASE = "http://127.0.0.1:7860"
ENDPOINT = PublishedEndpoint(1, "list_runs", "read")


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    return Context(workspace, db, Queue(db, workspace))


# -- the server over HTTP --------------------------------------------------------------------------------------------
class EventPage:
    """A page whose events read what the browser sends."""

    def build(self, studio: Studio) -> None:
        """Build a text field, a choice and a button."""
        import gradio as gr

        from app.pages._events import handler

        def read(text: str, choice: str, event: Any) -> str:
            return text.strip() + event._data["action"]

        read.__annotations__["event"] = gr.EventData  # an object, which Gradio can evaluate
        read = handler(read)
        text, choice = gr.Textbox(), gr.Dropdown(["a", "b"])
        gr.Button("Read").click(read, [text, choice], text, queue=False)
        gr.Button("Wait").click(read, [text, choice], text)


@dataclass(frozen=True)
class Site:
    """The endpoints and one page."""

    context: Context
    app: Any
    blocks: Any
    page: TestClient
    """A browser."""
    read: TestClient
    """A program with the scope read."""
    events: list[int]
    """Numbers of the events of the page, without and with the queue."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from app.web import gradio_app, server

    workspace = Workspace(tmp_path_factory.mktemp("server") / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    context = Context(workspace, db, Queue(db, workspace))
    gradio_app.configure_gradio(workspace.root / "cache")
    info = PageInfo("", "Runs", EventPage())  # type: ignore[arg-type]  # an object in place of a module
    app = server.create_app(context, site_pages=[info])
    blocks = next(route.app for route in app.routes if hasattr(getattr(route, "app", None), "get_blocks")).get_blocks()
    token = tokens.create(db, ["read"])[1]
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as page:
        page.get("/")
        page.headers["Origin"] = BASE
        program = TestClient(app, base_url=BASE, raise_server_exceptions=False)
        program.portal, program.headers["Authorization"] = page.portal, f"Bearer {token}"
        events = [number for number, each in blocks.fns.items() if each.name == "read"]
        yield Site(context, app, blocks, page, program, events)
    db.close()


# -- memory ----------------------------------------------------------------------------------------------------------
def send_results(blocks: Any, count: int, characters: int) -> None:
    """Let events of other sessions end with results that nobody fetches."""
    from gradio.server_messages import ProcessCompletedMessage

    for number in range(count):
        request = SimpleNamespace(scope={"state": {}})
        event = SimpleNamespace(session_hash=f"unfetched{number}", alive=True, _id=f"event{number}", request=request)
        pending = blocks._queue.pending_messages_per_session
        pending[event.session_hash] = asyncio.Queue()
        blocks._queue.send_message(event, ProcessCompletedMessage(output={"data": ["x" * characters]}, success=True))


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own, since a browser test before may keep an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def unfetched(blocks: Any) -> list[str]:
    return [name for name in blocks._queue.pending_messages_per_session if name.startswith("unfetched")]


@pytest.mark.slow
def test_the_results_that_nobody_fetches_have_a_limit_of_bytes(site: Site) -> None:
    async def send() -> None:
        send_results(site.blocks, 20, 1_000_000)

    run_apart(send())
    assert 0 < len(unfetched(site.blocks)) <= 10
    assert unfetched(site.blocks)[-1] == "unfetched19", "the newest one stays"


def test_a_result_that_nobody_fetches_expires(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in filter(None, [sys.modules.get("app.web.call_limits")]):
        monkeypatch.setattr(module, "RESULT_SECONDS", 0.05)

    async def send() -> None:
        send_results(site.blocks, 5, 10)
        assert unfetched(site.blocks)
        await asyncio.sleep(0.2)

    run_apart(send())
    assert not unfetched(site.blocks)


def test_dropped_results_leave_the_unfinished_calls_of_their_session(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.web import call_limits

    monkeypatch.setattr(call_limits, "RESULT_SECONDS", 0.05)
    queue = site.blocks._queue

    async def send() -> None:
        queue.event_ids_to_events["running"] = object()
        queue.pending_event_ids_session["unfetched0"] = {"event0", "running"}
        send_results(site.blocks, 1, 10)
        await asyncio.sleep(0.2)

    run_apart(send())
    try:
        assert queue.pending_messages_per_session["unfetched0"].empty()
        assert queue.pending_event_ids_session["unfetched0"] == {"running"}
    finally:
        del queue.event_ids_to_events["running"], queue.pending_messages_per_session["unfetched0"]
        del queue.pending_event_ids_session["unfetched0"]


def test_a_result_for_a_client_that_has_left_is_no_error(site: Site) -> None:
    from gradio.server_messages import ProcessCompletedMessage

    event = SimpleNamespace(session_hash="left", alive=True, _id="left", request=SimpleNamespace(scope={"state": {}}))
    site.blocks._queue.send_message(event, ProcessCompletedMessage(output={"data": []}, success=True))
    assert "left" not in site.blocks._queue.pending_messages_per_session


def test_calls_of_a_program_leave_no_session(site: Site) -> None:
    before = len(site.blocks.state_holder.session_data)
    events = [site.read.post("/gradio_api/call/list_timezones", json={"data": []}).json()["event_id"] for _ in range(3)]
    for event in events:
        assert "event: complete" in site.read.get(f"/gradio_api/call/list_timezones/{event}").text
    assert len(site.blocks.state_holder.session_data) == before


@pytest.mark.slow
def test_a_result_that_waits_takes_the_memory_of_its_json(site: Site) -> None:
    path = "/gradio_api/call/run_form"
    (expected,) = site.read.post("/gradio_api/run/run_form", json={"data": []}).json()["data"]
    tracemalloc.start()
    try:
        events = [site.read.post(path, json={"data": []}).json()["event_id"] for _ in range(4)]
        while site.blocks._queue.event_ids_to_events:
            time.sleep(0.05)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / 4 < 2 * len(json.dumps(expected))
    finally:
        tracemalloc.stop()
    for event in events:
        assert json.loads(site.read.get(f"{path}/{event}").text.rpartition("data: ")[2]) == [expected]


def test_a_session_of_a_browser_takes_little_memory(site: Site) -> None:
    tracemalloc.start()
    try:
        for number in range(5):
            assert site.blocks.state_holder[f"tab{number}"] is not None
        assert tracemalloc.get_traced_memory()[0] / 5 < 100_000
    finally:
        tracemalloc.stop()


def test_an_unknown_result_is_missing_without_a_traceback(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("queue/data?session_hash=nobody", "call/list_runs/0123456789abcdef", "call/v2/list_runs/rl2f@24"):
        for sender in (site.page, site.read):
            answer = sender.get(f"/gradio_api/{path}")
            assert answer.status_code in (403, 404) and "error" in answer.json(), path


def test_the_queue_has_a_limit(site: Site) -> None:
    assert site.blocks._queue.max_size is not None


async def call_at_once(site: Site, count: int) -> tuple[int, list[int]]:
    """Send requests of one token at the same time; return how many were handled together, and all statuses."""
    release, inside, most, statuses = asyncio.Event(), 0, 0, []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await release.wait()
        inside -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    security = Security(slow, secret=b"s", port=7860, programs=ProgramAccess(site.context.db, [ENDPOINT]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(security), base_url=BASE, timeout=60) as client:
        headers = {"Authorization": site.read.headers["Authorization"]}
        calls = [client.post("/gradio_api/run/list_runs", json={"data": []}, headers=headers) for _ in range(count)]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.5)
        release.set()
        statuses = [(await task).status_code for task in tasks]
    return most, statuses


@pytest.mark.slow
def test_a_token_has_a_limit_of_parallel_requests(site: Site) -> None:
    most, statuses = run_apart(call_at_once(site, 100))
    assert most <= 10 and set(statuses) == {200, 429}
    most, statuses = run_apart(call_at_once(site, 40))
    assert most <= 10 and set(statuses) == {200}, "a few more requests wait"


def test_a_token_has_a_limit_of_unfinished_calls(site: Site) -> None:
    number = tokens.list_all(site.context.db)[0].id
    request = SimpleNamespace(scope={"state": {"rl2f_token": SimpleNamespace(id=number)}})
    events = site.blocks._queue.event_ids_to_events
    events |= {f"waiting{i}": SimpleNamespace(request=request, session_hash="s") for i in range(100)}
    try:
        answer = site.read.post("/gradio_api/call/list_timezones", json={"data": []})
        assert answer.status_code == 429 and "unfinished" in answer.text and int(answer.headers["retry-after"]) >= 1
    finally:
        for name in [name for name in events if name.startswith("waiting")]:
            del events[name]


def test_a_token_that_only_reads_sends_no_large_bodies(site: Site) -> None:
    answer = site.read.post("/gradio_api/run/check_config", json={"data": ["x" * 1_500_000]})
    assert answer.status_code == 413


# -- passwords and tokens --------------------------------------------------------------------------------------------
def client(context: Context, **options: Any) -> TestClient:
    """A browser without the cookie, of the files alone."""
    address = options.pop("address", "203.0.113.5")
    app = options.pop("app", None) or create_app(context, site_pages=[], **options)
    return TestClient(app, base_url=BASE, raise_server_exceptions=False, client=(address, 5000))


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def statuses_of(sender: TestClient, headers: dict[str, str], count: int) -> list[int]:
    with start_blocking_portal() as sender.portal:  # otherwise, each request starts a thread and an event loop
        statuses = [sender.get("/static/theme.css", headers=headers).status_code for _ in range(count)]
    sender.portal = None
    return statuses


@pytest.mark.slow
def test_200_wrong_passwords_are_delayed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(context, password="correct horse battery")
    found = statuses_of(browser, basic("wrong"), 200)
    assert found[:5] == [401] * 5 and found.count(429) > 150
    blocked = browser.get("/static/theme.css", headers=basic("correct horse battery"))
    assert blocked.status_code == 429 and int(blocked.headers["retry-after"]) >= 1
    other = client(context, app=browser.app, address="198.51.100.7")
    assert statuses_of(other, basic("correct horse battery"), 1) == [200]
    from jobs import http_access

    monkeypatch.setattr(http_access, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 90.0))
    assert statuses_of(browser, basic("correct horse battery"), 1) == [200]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["203.0.{}.{}", "2001:db8:{}:{}::1"], ids=["IPv4", "IPv6"])
def test_wrong_passwords_of_many_addresses_are_delayed_together(context: Context, address: str) -> None:
    browser = client(context, password="correct horse battery")
    found = []
    with start_blocking_portal() as portal:
        for number in range(100):
            sender = client(context, app=browser.app, address=address.format(number // 250, number % 250))
            sender.portal = portal
            found.append(sender.get("/static/theme.css", headers=basic("wrong")).status_code)
    assert found[:40] == [401] * 40 and found[-1] == 429


def test_wrong_passwords_of_one_network_are_delayed_together(context: Context) -> None:
    browser = client(context, password="correct horse battery")
    senders = [client(context, app=browser.app, address=f"2001:db8::{number:x}") for number in range(30)]
    assert [statuses_of(sender, basic("wrong"), 1)[0] for sender in senders][-1] == 429


def test_a_browser_with_the_cookie_is_not_excluded_by_others(context: Context) -> None:
    browser = client(context, password="correct horse battery")
    secret = load_secret(context.workspace.root / "secret")
    guard = Security(browser.app, secret=secret, port=7860, programs=ProgramAccess(context.db),
                     password="correct horse battery")  # fmt: skip
    assert 429 in statuses_of(browser, basic("wrong"), 30)
    cookie = {"Cookie": f"{guard.cookie_name}={guard.cookie}"}
    assert statuses_of(browser, basic("correct horse battery") | cookie, 1) == [200]


@pytest.mark.slow
def test_200_unknown_tokens_are_delayed_but_no_valid_one(context: Context) -> None:
    program = client(context)
    found = statuses_of(program, {"Authorization": "Bearer rl2f_" + "x" * 43}, 200)
    assert found[:5] == [401] * 5 and found.count(429) > 150
    token = tokens.create(context.db, ["read"])[1]
    assert 429 not in statuses_of(program, {"Authorization": f"Bearer {token}"}, 1)


@pytest.mark.parametrize("check", [check_binding, check_access], ids=["studio", "model server"])
def test_a_short_password_is_refused_beyond_loopback(check: Callable[[str, str | None], None]) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "lab.example"):
        for short in (None, "", "secret", "12345678901", " " * 40):
            with pytest.raises(ServerError, match="at least 12 characters") as refused:
                check(host, short)
            assert "secret" not in str(refused.value)
        check(host, "123456789012")
    check("127.0.0.1", "short")


def test_wrong_keys_of_the_model_server_are_delayed() -> None:
    server, found = ModelServer(ServerLimits(), {}, "correct horse battery"), []
    for key in ["wrong"] * 40 + ["correct horse battery"]:
        headers = {"authorization": f"Bearer {key}"}
        try:
            client = SimpleNamespace(host="203.0.113.5")
            server._check_access(SimpleNamespace(headers=headers, client=client, state=SimpleNamespace()))
        except RL2FError as error:
            found.append(error.status)  # type: ignore[attr-defined]
    server.close()
    assert found[:5] == [401] * 5 and found[-20:] == [429] * 20


# -- input errors ----------------------------------------------------------------------------------------------------
INVALID_EVENTS: dict[str, Any] = {
    "no values": {"data": []},
    "too few values": {"data": ["a"]},
    "an unknown choice": {"data": ["a", "no choice"], "event_data": {"action": "x"}},
    "an object for a choice": {"data": ["a", {"a": {"b": [None]}}], "event_data": {"action": "x"}},
    "no event data": {"data": ["a", "b"]},
    "a list for event data": {"data": ["a", "b"], "event_data": [1]},
    "event data without the key": {"data": ["a", "b"], "event_data": {"other": 1}},
    "an unknown trigger": {"data": ["a", "b"], "event_data": {"action": "x"}, "trigger_id": -5, "session_hash": 5},
    "an unknown event": {"data": [], "fn_index": 10**6},
    "a huge number of an event": {"data": [], "fn_index": 10**400},
    "no event": {"data": [], "fn_index": None},
}


@pytest.mark.parametrize("body", INVALID_EVENTS.values(), ids=INVALID_EVENTS)
def test_a_malformed_event_of_a_page_is_refused_without_a_traceback(
    site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], body: dict[str, Any]
) -> None:
    sent = {"fn_index": site.events[0], "session_hash": "tab"} | body
    headers = {"Content-Type": "application/json"}
    answer = site.page.post("/gradio_api/run/predict", content=json.dumps(sent), headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    text = "".join(capfd.readouterr()) + caplog.text
    assert "Traceback" not in text


def test_a_malformed_event_in_the_queue_leaves_no_traceback(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    body = {"data": ["a"], "fn_index": site.events[1], "session_hash": "queued"}
    assert site.page.post("/gradio_api/queue/join", json=body).status_code == 200
    assert '"success":false' in site.page.get("/gradio_api/queue/data?session_hash=queued").text
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_valid_event_of_a_page_is_answered(site: Site) -> None:
    body = {"data": [" a ", "b"], "fn_index": site.events[0], "session_hash": "tab", "event_data": {"action": "x"}}
    assert site.page.post("/gradio_api/run/predict", json=body).json()["data"] == ["ax"]


@pytest.mark.parametrize("name", ["check_config", "launch_run"])
def test_a_long_number_sent_to_an_endpoint_is_no_server_error(
    site: Site, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    token = tokens.create(site.context.db, ["read", "run"])[1]
    body = {"data": [f"kind: train\nseed: 0x{'f' * 4000}"]}
    headers = {"Authorization": f"Bearer {token}"}
    answer = site.read.post(f"/gradio_api/run/{name}", json=body, headers=headers)
    assert answer.status_code in (200, 400) and "a number has" in answer.text
    assert "Traceback" not in "".join(capfd.readouterr())


# -- downloads -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["messages.jsonl", "manifest.json"])
def test_an_export_behind_a_link_is_not_downloaded(site: Site, name: str) -> None:
    workspace = site.context.workspace
    folder = workspace.exports / "9-sets"
    folder.mkdir(exist_ok=True)
    files = {"messages.jsonl": {"bytes": 1}}
    manifest = {"formats": {"messages": {"files": files, "rows": 1}}, "created": 1.0, "secret": "x"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    outside = workspace.root.parent / "outside"
    (folder / name).unlink(missing_ok=True)
    outside.write_text(json.dumps(manifest))
    (folder / name).symlink_to(outside)
    with pytest.raises(RL2FError):
        catalog.file(workspace, "9-sets", name)
    assert name != "manifest.json" or catalog.listed(workspace) == []
    for sender in (site.page, site.read):
        answer = sender.get(f"/gradio_api/file={folder / name}")
        assert answer.status_code == 404 and "secret" not in answer.text
    (folder / name).unlink()
    (folder / name).write_text("own")
    assert site.read.get(f"/gradio_api/file={folder / name}").text == "own"
