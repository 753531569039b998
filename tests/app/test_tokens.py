"""Programs with API tokens: a real server, gradio_client and plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from export_builders import leaky_events, write_run
from fastapi import FastAPI
from stub_routes import QUEUE, add_stub_routes
from web_server import serving_app

from app.common.context import Context
from app.web.page_registry import PageInfo
from jobs.db.engine import Database
from jobs.db.queries import audit_log, runs, tokens
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import WorkspaceSource
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

CALL_ROUTES = ("queue/join", "run/page_event", "call/page_event", "call/v2/page_event", "cancel")
ALL = ("read", "run", "label")


@dataclass(frozen=True)
class Site:
    """A running server."""

    context: Context
    url: str
    run: int
    page_event: int
    """Number of the event of a page."""
    page_calls: list[str]
    """One entry for each call of that event."""
    downloads: Path

    def token(self, *scopes: str) -> str:
        """Return a new token."""
        return tokens.create(self.context.db, scopes)[1]

    def call(self, token: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        """Return the results of `gradio_client`, or its errors."""
        from gradio_client import Client

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        options = {"download_files": self.downloads, "verbose": False, "analytics_enabled": False, "ssl_verify": False}

        try:
            client = Client(self.url, headers=headers, **options)
        except Exception as error:
            return [_as_result(error)]
        results = []
        for name, arguments in calls:
            try:
                if name == "view_api":
                    results.append(client.view_api(return_format="dict"))
                else:
                    results.append(client.predict(**arguments, api_name=f"/{name}"))
            except Exception as error:
                results.append(_as_result(error))
        return results

    def post(self, route: str, token: str, body: Any) -> httpx.Response:
        """Send a request to Gradio's route."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{self.url}/gradio_api/{route}", json=body, headers=headers, timeout=60)


def _as_result(error: Exception) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}"}


class EventPage:
    """A page with one event, which programs may not call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def build(self, context: Context) -> None:
        """Build a button."""
        import gradio as gr

        def page_event() -> None:
            self.calls.append("called")

        gr.Button("Do it").click(page_event)
        gr.Button("A taken name").click(lambda: None, api_name="list_exports")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a recorded run, a finished export, the published endpoints, and one page."""
    from app.web import gradio_app, server

    folder = tmp_path_factory.mktemp("tokens")
    workspace = Workspace(folder / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    write_run(workspace.folder("leaky"), leaky_events())
    (run,) = reindex(db, workspace)
    export([WorkspaceSource(db, workspace, runs.get(db, run))], ExportSettings(), workspace.exports / "9-sets")
    context = Context(workspace, db, Queue(db, workspace))
    gradio_app.configure_gradio(workspace.root / "cache")
    page = EventPage()
    info = PageInfo("", "Runs", page)  # type: ignore[arg-type]  # an object in place of a module

    def make(port: int) -> FastAPI:
        app = server.create_app(context, "127.0.0.1", port, site_pages=[info])
        add_stub_routes(app, context)
        return app

    with serving_app(make) as url:
        headers = {"Authorization": f"Bearer {tokens.create(db, ['read'])[1]}"}
        config = httpx.get(f"{url}/config", headers=headers, timeout=60).json()
        number = next(each["id"] for each in config["dependencies"] if each["api_name"] == "page_event")
        yield Site(context, url, run, number, page.calls, folder / "downloads")
    db.close()


def test_a_read_token_lists_and_downloads_but_starts_nothing(site: Site) -> None:
    listed, downloaded, refused, missing, invalid = site.call(
        site.token("read"),
        ("list_exports", {}),
        ("download_export", {"folder": "9-sets", "name": "messages.jsonl"}),
        ("start_export", {"run_ids": [site.run]}),
        ("download_export", {"folder": "9-sets", "name": "none.jsonl"}),
        ("count_export", {"run_ids": ["one"]}),
    )
    assert [each["folder"] for each in listed["finished"]] == ["9-sets"]
    lines = Path(downloaded).read_text().splitlines()
    assert Path(downloaded).is_relative_to(site.downloads) and "messages" in json.loads(lines[0])
    assert (
        "needs the scope run" in refused["error"] and not runs.page(site.context.db, runs.RunFilter(kind="export")).rows
    )
    assert "none.jsonl" in missing["error"]
    assert "count_export: argument runs.0" in invalid["error"] and "one" in invalid["error"]


def test_a_run_token_starts_an_export_and_sees_errors_with_their_fix(site: Site) -> None:
    queued, literal = site.call(
        site.token("read", "run"),
        ("start_export", {"run_ids": [site.run], "settings": {"name": "mine"}}),
        ("start_export", {"run_ids": [site.run], "settings": {"labels": "everyone"}}),
    )
    assert queued["name"] == "mine" and runs.get(site.context.db, queued["run"]).status == "queued"
    assert "labels" in literal["error"] and "Fix: " in literal["error"]


def test_the_documentation_has_the_endpoints_with_types_and_no_events_of_pages(site: Site) -> None:
    (info,) = site.call(site.token("read"), ("view_api", {}))
    names = info["named_endpoints"]
    assert "/list_exports" in names and not any("page_event" in name or name.endswith("_1") for name in names)
    assert info["unnamed_endpoints"] == {}
    start = names["/start_export"]
    assert start["description"].startswith("Queue an export of runs.")
    assert [each["parameter_name"] for each in start["parameters"]] == ["runs", "settings", "run_ids"]
    assert start["parameters"][0]["type"]["items"]["type"] == "integer"
    assert start["parameters"][1]["python_type"]["description"].startswith("Name, formats, files, labels")
    assert "url" in start["returns"][0]["type"]["properties"]


def test_without_a_valid_token_everything_is_refused(site: Site) -> None:
    revoked = site.token(*ALL)
    assert site.post("run/list_exports", revoked, {"data": []}).status_code == 200
    tokens.revoke(site.context.db, tokens.list_all(site.context.db)[-1].name)
    for token in ("", revoked, "rl2f_" + "x" * 43):
        (error,) = site.call(token, ("list_exports", {}))
        assert ("unknown or was revoked" if token else "rl2f token new") in error["error"], error
    for headers in ({}, {"Authorization": f"Bearer {revoked}"}):
        for path in (
            "config",
            "gradio_api/info",
            "gradio_api/queue/data?session_hash=x",
            "exports/9-sets/messages.jsonl",
        ):
            assert httpx.get(f"{site.url}/{path}", headers=headers).status_code in (401, 403, 404)
        answer = httpx.post(f"{site.url}/gradio_api/run/list_exports", json={"data": []}, headers=headers)
        assert answer.status_code == (401 if headers else 403) and "rl2f token new" in answer.json()["detail"]


def test_no_token_calls_the_event_of_a_page(site: Site) -> None:
    token, session = site.token(*ALL), {"session_hash": "s", "event_id": "e"}
    for number in (site.page_event, float(site.page_event), str(site.page_event), True, -1, None):
        for route in CALL_ROUTES:
            answer = site.post(route, token, {"data": [], "fn_index": number, **session})
            assert answer.status_code == 403 and "endpoint" in answer.json()["detail"], (route, number)
    endpoint_and_event = {"data": [], "fn_index": site.page_event}
    assert site.post("run/list_exports", token, endpoint_and_event).status_code == 403
    duplicate = f'{{"data": [], "fn_index": 0, "session_hash": "s", "fn_index": {site.page_event}}}'
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    assert httpx.post(f"{site.url}/gradio_api/queue/join", content=duplicate, headers=headers).status_code == 403
    assert site.page_calls == []


def test_scopes_hold_on_every_route_of_calls(site: Site) -> None:
    config = httpx.get(f"{site.url}/config", headers={"Authorization": f"Bearer {site.token('read')}"}).json()
    number = {each["api_name"]: each["id"] for each in config["dependencies"]}["start_export"]
    token, body = site.token("read", "label"), {"data": [[site.run], None], "session_hash": "s", "event_id": "e"}
    for route in ("queue/join", "run/start_export", "call/start_export", "call/v2/start_export", "cancel"):
        answer = site.post(route, token, {**body, "fn_index": number})
        assert answer.status_code == 403 and "rl2f token new --scope run" in answer.json()["detail"], route


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/static/theme.css"),
        ("GET", QUEUE),
        ("GET", "/gradio_api/monitoring"),
        ("GET", "/gradio_api/openapi.json"),
        ("POST", QUEUE),
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/component_server"),
        ("POST", "/gradio_api/api/list_exports"),
        ("POST", "/gradio_api/call"),
        ("DELETE", "/gradio_api/run/list_exports"),
        ("OPTIONS", "/gradio_api/run/list_exports"),
    ],
)
def test_a_token_permits_only_the_routes_of_the_client(site: Site, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {site.token(*ALL)}"}
    answer = httpx.request(method, site.url + path, headers=headers, json=None if method == "GET" else {"data": []})
    assert answer.status_code == 403 and "does not permit" in answer.text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"[" * 100_000])
def test_a_call_with_an_invalid_body_is_refused(site: Site, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {site.token('read')}", "Content-Type": "application/json"}
    answer = httpx.post(f"{site.url}/gradio_api/run/list_exports", content=body, headers=headers)
    assert answer.status_code == 400 and "JSON object" in answer.text


def test_a_large_body_of_unknown_length_is_refused(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.token('run')}", "Content-Type": "application/json"}
    for size in (1, 50):
        pieces = (b" " * (2_100_000 // size) for _ in range(size))
        answer = httpx.post(f"{site.url}/gradio_api/run/list_exports", content=pieces, headers=headers, timeout=60)
        assert answer.status_code == 413 and "2 MB" in answer.text


def test_a_token_of_another_site_is_refused(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.token(*ALL)}", "Origin": "http://evil.example"}
    answer = httpx.post(f"{site.url}/gradio_api/run/list_exports", json={"data": []}, headers=headers)
    assert answer.status_code == 403 and "another site" in answer.text


def test_plain_http_calls_an_endpoint_by_name(site: Site) -> None:
    token = site.token("read")
    assert site.post("run/count_export", token, {"data": [[site.run], None]}).json()["data"][0]["dialogues"] == 8
    event = site.post("call/v2/count_export", token, {"run_ids": [site.run]}).json()["event_id"]
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{site.url}/gradio_api/call/v2/count_export/{event}", headers=headers, timeout=60).text
    assert "event: complete" in answer and '"dialogues": 8' in answer


def test_the_audit_log_names_the_token_on_every_route_of_calls(site: Site) -> None:
    db = site.context.db
    token, reader = (tokens.create(db, scopes, name)[1] for scopes, name in ((ALL, "routes"), (["read"], "reader")))
    headers = {"Authorization": f"Bearer {token}"}
    site.post("run/pause_queue", token, {"data": []})
    for name, body in (("resume_queue", {}), ("send_message", {"chat": 999, "text": "a secret"})):  # queued, a stream
        event = site.post(f"call/v2/{name}", token, body).json()["event_id"]
        httpx.get(f"{site.url}/gradio_api/call/v2/{name}/{event}", headers=headers, timeout=60)
    site.post("run/queue_status", token, {"data": []})
    assert site.post("run/pause_queue", reader, {"data": []}).status_code == 403
    entries = [entry for entry in audit_log.recent(db, 4) if entry.caller != "command line"][::-1]
    assert [(entry.caller, entry.action, entry.outcome) for entry in entries] == [
        ("token routes", "pause_queue", "ok"),
        ("token routes", "resume_queue", "ok"),
        ("token routes", "send_message", "failed"),
        ("token reader", "pause_queue", "refused"),
    ]
    assert entries[2].arguments == "chat=999, text=8 characters"
