"""Routes below `/api/exports`: choices, counts, starting, and files that are handed out or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from export_builders import leaky_events, write_run
from starlette.testclient import TestClient

from app.common.context import Context
from jobs.db.queries import runs
from jobs.export.exporter import export
from jobs.export.settings import ExportSettings
from jobs.export.sources import WorkspaceSource
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer


@pytest.fixture
def api(context: Context) -> Iterator[TestClient]:
    """These routes alone, with the app's own answers to errors: quicker than the whole app."""
    from fastapi import FastAPI

    from app.api import exports
    from app.web.server import _handle_errors

    made = FastAPI()
    _handle_errors(made)
    made.include_router(exports.router(context))
    with TestClient(made, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def number(context: Context) -> int:
    """A recorded run in the workspace with one label of a person."""
    write_run(context.workspace.folder("leaky"), leaky_events())
    (made,) = reindex(context.db, context.workspace)
    label_queries.put(context.db, made, leaky_events()[0].id, 0, "ann", LabelAnswer("leak"))
    return made


def publish(context: Context, number: int, folder: str = "9-sets", **settings: Any) -> None:
    source = WorkspaceSource(context.db, context.workspace, runs.get(context.db, number))
    export([source], ExportSettings(**settings), context.workspace.exports / folder, name="sets <b>")


def test_an_empty_workspace_has_nothing_to_export(api: TestClient) -> None:
    assert api.get("/api/exports").json() == {"finished": [], "at_work": [], "failed": []}
    choices = api.get("/api/exports/choices").json()
    assert choices["runs"] == [] and next(f["name"] for f in choices["formats"]) == "stepwise_supervision"
    assert api.get("/api/exports/count").json() == {"dialogues": 0, "labelled": 0}


def test_the_form_is_offered_what_the_runs_hold(api: TestClient, number: int) -> None:
    choices = api.get(f"/api/exports/choices?runs={number}").json()
    assert choices["runs"] == [{"id": number, "name": "leaky", "kind": "train"}]
    assert choices["labellers"] == ["ann"] and choices["facets"]["phases"] == ["train"]
    assert choices["facets"]["steps"] == 2


def test_the_count_is_that_of_the_export(api: TestClient, number: int) -> None:
    def count(query: str) -> Any:
        return api.get(f"/api/exports/count?runs={number}{query}").json()

    assert count("") == {"dialogues": 8, "labelled": 1}
    assert count("&step_to=1") == {"dialogues": 4, "labelled": 1}
    assert count("&labelled=true") == {"dialogues": 1, "labelled": 1}
    assert count("&control=shuffled") == {"dialogues": 0, "labelled": 0}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("runs=99", 404),
        ("runs=1;2", 400),
        ("runs=../x", 400),
        ("runs=1&phase=nonsense", 400),
        ("runs=1&step_from=-1", 400),
        ("runs=1&step_from=9&step_to=2", 200),
        ("runs=" + "1," * 2000, 400),
    ],
)
def test_a_wrong_question_gets_a_plain_answer(api: TestClient, number: int, query: str, status: int) -> None:
    answer = api.get(f"/api/exports/count?{query}")
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["what"]


def test_starting_puts_an_export_into_the_queue(api: TestClient, context: Context, number: int) -> None:
    answer = api.post("/api/exports", json={"name": "my sets", "runs": [number], "formats": ["messages"]})
    assert answer.status_code == 200, answer.text
    row = runs.get(context.db, answer.json()["run"])
    assert (row.kind, row.status, row.parent, row.name) == ("export", "queued", number, "my sets")
    (waiting,) = api.get("/api/exports").json()["at_work"]
    assert waiting["run"] == row.id and waiting["status"] == "queued"
    assert api.post("/api/exports/stop", json={"run": row.id}).json()["status"] == "stopped"
    assert [r["run"] for r in api.get("/api/exports").json()["failed"]] == [row.id]
    assert api.post("/api/exports/again", json={"run": row.id}).json()["status"] == "queued"
    api.post("/api/exports/stop", json={"run": row.id})
    assert api.post("/api/exports/forget", json={"run": row.id}).status_code == 200
    assert api.get("/api/exports").json()["failed"] == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"runs": []}, 400, "runs"),
        ({"runs": [99]}, 404, "There is no run 99"),
        ({"runs": [1], "formats": []}, 400, "formats"),
        ({"runs": [1], "name": "../../x"}, 400, "name"),
        ({"runs": [1], "out": "/etc"}, 400, "out: unknown key"),
        ({"runs": [1], "kind": "train"}, 200, ""),
        ({"runs": "1"}, 400, "runs"),
        ({}, 400, "runs"),
    ],
)
def test_what_cannot_be_started_is_told(
    api: TestClient, context: Context, number: int, body: dict[str, Any], status: int, said: str
) -> None:
    answer = api.post("/api/exports", json=body)
    assert answer.status_code == status and said in answer.text
    assert len(runs.page(context.db).rows) == (2 if status == 200 else 1)
    if status == 200:
        assert runs.get(context.db, answer.json()["run"]).kind == "export"  # whatever kind was asked for


def test_only_exports_are_stopped_here(api: TestClient, number: int) -> None:
    for what in ("stop", "again", "forget"):
        answer = api.post(f"/api/exports/{what}", json={"run": number})
        assert answer.status_code == 400 and "is no export" in answer.text


def test_a_stranger_may_not_start_stop_or_delete(context: Context, make_client: Any, number: int) -> None:
    publish(context, number)
    stranger = make_client(context, secret=False)
    for path, body in (("", {"runs": [number]}), ("/remove", {"folder": "9-sets"}), ("/stop", {"run": number})):
        assert stranger.post(f"/api/exports{path}", json=body).status_code == 403
    assert (context.workspace.exports / "9-sets").is_dir()


def test_finished_exports_are_listed_with_links_that_hand_out_files(
    api: TestClient, context: Context, number: int
) -> None:
    publish(context, number)
    (row,) = api.get("/api/exports").json()["finished"]
    assert row["name"] == "sets <b>" and row["dialogues"] == 8 and row["bytes"] > 1000
    assert {f["name"]: f["rows"] for f in row["formats"]}["messages"] == 8
    for file in row["files"]:
        answer = api.get(file["url"])
        assert answer.status_code == 200 and len(answer.content) == file["bytes"]
        assert answer.headers["content-disposition"] == f'attachment; filename="9-sets-{file["name"]}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "application/octet-stream"
    part = api.get(row["files"][-1]["url"], headers={"Range": "bytes=0-9"})
    assert part.status_code == 206 and len(part.content) == 10


@pytest.mark.parametrize(
    "path",
    [
        "9-sets/secret.txt",
        "9-sets/..%2F..%2Frl2f.sqlite",
        "..%2F..%2Frl2f.sqlite",
        "%2e%2e/rl2f.sqlite",
        "..%2Fruns%2Fleaky/config.yaml",
        "9-sets/%2e%2e%2f%2e%2e%2fsecret",
        ".hidden.1.tmp/manifest.json",
        "9-sets/preference.jsonl%00",
        "nothing/manifest.json",
    ],
)
def test_nothing_else_is_handed_out(api: TestClient, context: Context, number: int, path: str) -> None:
    publish(context, number)
    (context.workspace.exports / "9-sets" / "secret.txt").write_text("private")
    (context.workspace.exports / ".hidden.1.tmp").mkdir()
    (context.workspace.exports / ".hidden.1.tmp" / "manifest.json").write_text("{}")
    answer = api.get(f"/api/exports/file/{path}")
    assert answer.status_code in (400, 404) and "private" not in answer.text


def test_deleting_takes_the_files_and_refuses_other_folders(api: TestClient, context: Context, number: int) -> None:
    publish(context, number)
    for folder in ("..", "../runs", "nothing", "", "/etc"):
        assert api.post("/api/exports/remove", json={"folder": folder}).status_code == 404
    assert api.post("/api/exports/remove", json={"folder": "9-sets"}).status_code == 200
    assert list(context.workspace.exports.iterdir()) == [] and api.get("/api/exports").json()["finished"] == []


def test_a_damaged_manifest_hides_its_export_alone(api: TestClient, context: Context, number: int) -> None:
    publish(context, number, "1-good")
    publish(context, number, "2-bad")
    (context.workspace.exports / "2-bad" / "manifest.json").write_text("{")
    assert [e["folder"] for e in api.get("/api/exports").json()["finished"]] == ["1-good"]


def test_the_page_is_found_with_its_script_and_style() -> None:
    from app.web.page_registry import pages

    (page,) = [page for page in pages() if page.path == "exports"]
    assert page.scripts == ("exports.js",) and page.styles == ("exports.css",)
