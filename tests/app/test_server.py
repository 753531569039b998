"""The server as a whole: its pages, its errors in plain words, its start and its end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli
from app.commands.serve import add_examples
from app.common.context import Context
from app.common.urls import page_url
from app.web.page_registry import pages, routers
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.queue.queue import Queue
from rl2f_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SEVEN = {"", "new", "run", "dialogues", "labels", "chat", "compare"}


# -- pages -----------------------------------------------------------------------------------------------------------
def test_pages_and_routes_are_found_by_themselves() -> None:
    found = [page.path for page in pages()]
    assert found[0] == "" and set(found) >= SEVEN
    assert {module.__name__.rpartition(".")[2] for module in routers()} >= {"runs", "form"}


@pytest.mark.parametrize("path", sorted(SEVEN))
def test_a_page_comes_with_navigation_title_and_nothing_from_elsewhere(site: Any, path: str) -> None:
    answer = site.page.get(f"/{path}")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    (page,) = [page for page in pages() if page.path == path]
    assert f"<title>{page.title} · RL2F Studio</title>" in answer.text
    assert answer.text.count("aria-current=page") == 1
    for other in pages():
        assert not other.in_navigation or f'<a href="/{other.path}"' in answer.text
    body = answer.text.partition("<body")[2]
    assert "http://" not in body.replace("http://127.0.0.1:7860", "") and "https://" not in body


def test_a_wrong_address_is_a_page_that_links_back_and_json_for_scripts(client: TestClient) -> None:
    page = client.get("/nowhere", headers={"Accept": "text/html"})
    assert page.status_code == 404 and "There is no page /nowhere." in page.text and 'href="/"' in page.text
    script = client.get("/api/nowhere", headers={"Accept": "application/json"})
    assert script.status_code == 404 and script.json()["error"]["what"]


# -- errors ----------------------------------------------------------------------------------------------------------
def test_an_unknown_run_is_a_plain_404(client: TestClient) -> None:
    answer = client.post("/api/runs/99/stop")
    assert answer.status_code == 404
    assert answer.json()["error"]["what"] == "There is no run 99." and answer.json()["error"]["fix"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/runs/queue", {"on": "perhaps"}),
        ("/api/runs/delete", {"ids": []}),
        ("/api/runs/x/stop", None),
        ("/api/runs/1/burn", None),
    ],
)
def test_wrong_input_is_a_plain_400(client: TestClient, path: str, body: Any) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["value"]


def test_the_second_tab_hears_that_the_run_is_no_longer_as_it_was(client: TestClient, context: Context) -> None:
    run = runs.add(context.db, Run(name="a", kind="eval", status="queued", folder="1-a"))
    assert client.post(f"/api/runs/{run.id}/stop").json()["status"] == "stopped"
    second = client.post(f"/api/runs/{run.id}/stop")
    assert second.status_code == 409 and "it is stopped" in second.json()["error"]["what"]


def test_a_deleted_run_in_an_open_tab_is_a_plain_404(client: TestClient, context: Context) -> None:
    run = runs.add(context.db, Run(name="a", kind="eval", status="failed", folder="1-a"))
    assert client.post("/api/runs/delete", json={"ids": [run.id]}).json() == {"deleted": [run.id], "kept": []}
    assert client.get(f"/api/runs/{run.id}/notes").status_code == 404


def test_a_read_only_server_shows_and_does_not_change(context: Context, make_client: Callable[..., TestClient]) -> None:
    runs.add(context.db, Run(name="seen", kind="eval", status="failed", folder="1-a"))
    db = Database(context.workspace.database_url(), read_only=True)
    client = make_client(Context(context.workspace, db, Queue(db, context.workspace), read_only=True))
    assert client.get("/api/runs").json()["page"]["rows"][0]["name"] == "seen"
    answer = client.post("/api/runs/queue", json={"on": False})
    assert answer.status_code == 503 and answer.json()["error"]["what"]
    assert not context.queue.paused
    db.close()


def test_the_not_found_page_is_escaped(site: Any) -> None:
    response = site.page.get("/<b>", headers={"accept": "text/html"})
    assert response.status_code == 404 and "There is no page /&lt;b&gt;." in response.text


# -- links -----------------------------------------------------------------------------------------------------------
def test_links_omit_empty_values() -> None:
    assert page_url("run", run=17) == "/run?run=17"
    assert page_url("", search="", page=None) == "/"


# -- the list of runs ------------------------------------------------------------------------------------------------
def test_the_list_is_told_only_what_changed(client: TestClient, context: Context) -> None:
    runs.add(context.db, Run(name="a", kind="eval", status="failed", folder="1-a"))
    first = client.get("/api/runs").json()
    assert client.get("/api/runs", params={"since": first["version"]}).json() == {
        "version": first["version"],
        "unchanged": True,
    }
    runs.add(context.db, Run(name="b", kind="eval", status="queued", folder="2-b"))
    again = client.get("/api/runs", params={"since": first["version"]}).json()
    assert [run["name"] for run in again["queue"]] == ["b"] and [run["name"] for run in again["page"]["rows"]] == ["a"]


def test_tags_and_notes_are_kept_and_searched(client: TestClient, context: Context) -> None:
    run = runs.add(context.db, Run(name="a", kind="eval", status="failed", folder="1-a"))
    runs.add(context.db, Run(name="b", kind="eval", status="failed", folder="2-b"))
    assert client.put(f"/api/runs/{run.id}/tags", json={"tags": [" keep ", "keep", ""]}).json() == {"tags": ["keep"]}
    note = client.post(f"/api/runs/{run.id}/notes", json={"text": "a remarkable run"}).json()["id"]
    for query in ({"tag": "keep"}, {"search": "remarkable"}):
        rows = client.get("/api/runs", params=query).json()["page"]["rows"]
        assert [(row["name"], row["tags"], row["note"]) for row in rows] == [("a", ["keep"], "a remarkable run")]
    assert client.delete(f"/api/runs/{run.id}/notes/{note}").status_code == 200
    assert client.get("/api/runs", params={"search": "remarkable"}).json()["page"]["rows"] == []


def test_the_queue_is_reordered_paused_and_emptied(client: TestClient, context: Context) -> None:
    made = [
        runs.add(context.db, Run(name=n, kind="eval", status="queued", folder=n, position=i))
        for i, n in enumerate("abc")
    ]
    client.post(f"/api/runs/{made[2].id}/move", json={"before": made[0].id})
    assert [run["name"] for run in client.get("/api/runs").json()["queue"]] == ["c", "a", "b"]
    assert client.post("/api/runs/queue", json={"on": False}).json() == {"paused": True}
    assert client.post(f"/api/runs/{made[2].id}/stop").json()["status"] == "stopped"
    listed = client.get("/api/runs").json()
    assert [run["name"] for run in listed["queue"]] == ["a", "b"] and listed["paused"]


def test_a_filter_that_cannot_be_read_is_a_plain_400(client: TestClient) -> None:
    assert client.get("/api/runs", params={"sort": "colour"}).status_code == 400
    assert client.get("/api/runs", params={"cursor": "rubbish"}).status_code == 400


def test_schedules_are_switched_and_deleted(client: TestClient, context: Context) -> None:
    from jobs.db.queries import scheduled_runs

    made = scheduled_runs.add(context.db, name="nightly look", trigger="nightly", when="30 2 * * *")
    listed = client.get("/api/runs").json()["schedules"]
    assert [(s["name"], s["enabled"]) for s in listed] == [("nightly look", True)] and listed[0][
        "next_run"
    ] > time.time()
    off = client.put(f"/api/runs/schedules/{made.id}", json={"on": False}).json()
    assert off["enabled"] is False and off["next_run"] is None
    assert client.delete(f"/api/runs/schedules/{made.id}").status_code == 200
    assert client.delete(f"/api/runs/schedules/{made.id}").status_code == 404


# -- start and end ---------------------------------------------------------------------------------------------------
def test_examples_are_added_once_and_stay_deleted(context: Context, tmp_path: Path) -> None:
    source = ROOT / "data" / "example_runs"
    first = add_examples(context, source)
    assert first and all(runs.get(context.db, number).origin == "example" for number in first)
    assert add_examples(context, source) == []
    for number in first:
        context.queue.delete(number)
    assert add_examples(context, source) == [] and runs.page(context.db).total == 0


def test_a_taken_port_is_told_with_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(cli, ["serve", "--port", str(port)])
    assert done.exit_code == 2
    assert f"--port {port + 1}" in done.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0", "--port", "0"], "needs a password"),
        (["--host", "0.0.0.0", "--port", "0", "--password-env", "RL2F_NO_SUCH"], "empty or not set"),
        (["--host", "203.0.113.7", "--password-env", "HOME"], "cannot listen"),
        (["--port", "0", "--executor", "slurm"], "Known: local, ray"),
    ],
)
def test_a_start_that_would_not_be_safe_or_possible_is_refused(args: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["serve", *args])
    assert done.exit_code == 2 and said in done.output


def start(workspace: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A real server, once it says where it is open."""
    command = [
        sys.executable,
        "-c",
        "from app.cli import main; main()",
        "serve",
        "--port",
        "0",
        "--workspace",
        str(workspace),
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            if " is open at " in line:
                return process, line.rpartition(" ")[2]
        time.sleep(0.1)
    process.kill()
    raise AssertionError(log.read_text())


@pytest.mark.slow
def test_a_server_opens_without_torch_and_a_second_one_is_read_only_and_both_end_cleanly(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    first, url = start(workspace, tmp_path / "1.txt")
    second = None
    try:
        assert httpx.get(url, timeout=120).status_code == 200
        loaded = Path(f"/proc/{first.pid}/maps")
        if loaded.exists():
            assert "libtorch" not in loaded.read_text()
        second, other = start(workspace, tmp_path / "2.txt")
        said = (tmp_path / "2.txt").read_text()
        assert "read-only" in said and f"{first.pid}" in said
        assert f"{first.pid}" in (page := httpx.get(other, timeout=120).text) and "read-only: it shows" in page
        assert "read-only: it shows" not in httpx.get(url, timeout=120).text
        assert httpx.get(f"{other}/api/runs", timeout=120).json()["read_only"] is True
        for process, how in ((second, signal.SIGINT), (first, signal.SIGTERM)):
            process.send_signal(how)
            assert process.wait(timeout=60) == 0
        assert "go on" in (tmp_path / "1.txt").read_text()
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def test_a_configuration_error_names_its_fix() -> None:
    from app.common.errors import as_json, http_status

    error = ConfigError("A run has no such field.", value="x" * 900, known=["a"], fix="Take a.")
    told = as_json(error)["error"]
    assert told["known"] == ["a"] and len(told["value"]) < 300 and http_status(error) == 400


def test_the_workspace_folder_is_not_left_by_a_test() -> None:
    assert shutil.which("git") is None or "/workspace/" in (ROOT / ".gitignore").read_text()
