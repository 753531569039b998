"""A real `rl2f serve` with a small recorded run, and a page in the system's Chromium that must not complain."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",
)
RECORDED: dict[str, Any] = {
    "name": "recorded",
    "model": {"name": "tiny-random", "device": "cpu", "dtype": "float32"},
    "environment": {"type": "guess_number", "size": 4},
    "rollout": {"max_turns": 3, "max_new_tokens": 8, "max_seq_len": 512},
    "evaluation": {"num_tasks": 6, "conditions": ["hints", "contentless"]},
    "stages": [
        {"name": "warm", "method": "sft", "steps": 2, "tasks_per_step": 2, "group_size": 2},
        {"name": "rl", "method": "rl2f", "steps": 3, "tasks_per_step": 2, "group_size": 4},
    ],
    "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
}
"""Configuration of the recorded run: every kind of event, in seconds."""


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """A copy of the recorded run's configuration, to change and start from a test."""
    return yaml.safe_load(yaml.safe_dump(RECORDED))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that the test processes of one session share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def home(shared: Path) -> Path:
    """RL2F_HOME of servers and workers: holds the tiny random model once it was asked for."""
    folder = shared / "browser-home"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def server_environment(home: Path) -> dict[str, str]:
    """Environment variables of servers and commands."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RL2F_WORKSPACE", "RL2F_DATABASE_URL")}
    return {**kept, "RL2F_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def recorded(shared: Path, server_environment: dict[str, str]) -> Path:
    """The folder of a small finished run, made by the real engine once a session; or RL2F_RECORDED, made before."""
    if ready := os.environ.get("RL2F_RECORDED"):
        return Path(ready)
    from rl2f_core.config.loading import parse_config
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run.events import JsonlSink
    from rl2f_core.run.execute import execute

    folder = shared / "recorded-run"
    with FileLock(shared / "recorded-run.lock"):
        if not folder.exists():
            part = shared / "recorded-run.part"
            shutil.rmtree(part, ignore_errors=True)
            config = parse_config(RECORDED)
            made = RunDir.create(part, config)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RL2F_HOME", server_environment["RL2F_HOME"])
                assert execute(config, made, JsonlSink(made.events_path), bool).status == "succeeded"
            part.rename(folder)
    return folder


LEFT_PAGE = re.compile(
    r"(AbortError: (signal is aborted without reason|BodyStreamBuffer was aborted)\n {4}at .*"
    r"|Unexpected error Connection errored out\. ) \(http://[\w.:]+/assets/index-[\w-]+\.js\)",
    re.DOTALL,
)
"""What Gradio's client logs when the user leaves a page during an event; a page cannot prevent it."""
WIDE = """() => {
  const width = document.documentElement.clientWidth, all = document.documentElement.scrollWidth;
  if (all <= width) return [];
  const out = [`the page is ${all} wide, the window ${width}`];
  for (const node of document.body.querySelectorAll('*')) {
    const right = Math.round(node.getBoundingClientRect().right);
    if (right > width + 1) out.push(`${node.tagName}.${node.className} ends at ${right}`);
  }
  return out.slice(0, 9);
}"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder needs a browser."""
    item.add_marker(pytest.mark.browser)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the shared servers after the last test of this folder: an idle server uses CPU time."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        for server in SHARED:
            server.stop()


@dataclass
class Server:
    """A running `rl2f serve`."""

    url: str
    port: int
    workspace: Path
    process: subprocess.Popen[bytes]
    log: Path
    run: int
    """The recorded run's id in this workspace."""

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End it by a signal and wait."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(timeout=30)


SHARED: list[Server] = []
"""Servers that several files use."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_open(server: Server, seconds: float = 300) -> None:
    """Until it answers; fails with its log where it ends or stays silent."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", server.port)) == 0 and b"is open at" in server.log.read_bytes():
                return
        time.sleep(0.1)
    pytest.fail(f"The server did not open:\n{server.log.read_text()}")


@pytest.fixture(scope="session")
def serve(
    tmp_path_factory: pytest.TempPathFactory, recorded: Path, server_environment: dict[str, str]
) -> Callable[..., Server]:
    """`serve(workspace=None, port=None, args=())`: a server over a new or an existing workspace.

    Who calls it ends it: `start_server` does so by itself.
    """

    def start(workspace: Path | None = None, port: int | None = None, args: tuple[str, ...] = ()) -> Server:
        root = workspace or tmp_path_factory.mktemp("workspace")
        run = _add_recorded(root, recorded)
        port = port or free_port()
        log = tmp_path_factory.mktemp("server") / "log.txt"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*COMMAND, "serve", "--port", str(port), "--workspace", str(root), *args],
                cwd=root,
                env=server_environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        server = Server(f"http://127.0.0.1:{port}", port, root, process, log, run)
        try:
            wait_until_open(server)
        except BaseException:
            server.stop(signal.SIGKILL)
            raise
        return server

    return start


@pytest.fixture(scope="module")
def start_server(serve: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    """`serve` for the tests of one file; what they leave running is ended after them."""
    started: list[Server] = []

    def start(*args: Any, **options: Any) -> Server:
        started.append(serve(*args, **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def real(start_server: Callable[..., Any], server_environment: dict[str, str], smollm2: Path) -> Server:
    """A server whose workers find the real model."""
    before = server_environment["RL2F_HOME"]
    server_environment["RL2F_HOME"] = str(smollm2.parent.parent)
    try:
        return start_server()
    finally:
        server_environment["RL2F_HOME"] = before


def _add_recorded(root: Path, recorded: Path, name: str = "recorded", seed: int = 0) -> int:
    """Put a copy of the recorded run with another seed into a workspace that does not have it; return its id there."""
    from jobs.db.engine import Database
    from jobs.db.queries import runs
    from jobs.ingest.ingester import reindex
    from jobs.workspace import Workspace

    workspace = Workspace(root).create()
    db = Database(workspace.database_url())
    try:
        db.migrate()
        if not workspace.folder(name).exists():
            shutil.copytree(recorded, workspace.folder(name))
            config = workspace.folder(name) / "config.yaml"
            text = config.read_text()
            assert "\nseed: 0\n" in text
            config.write_text(text.replace("\nseed: 0\n", f"\nseed: {seed}\n"))
            reindex(db, workspace, [name])
        run = runs.find(db, folder=name)
        assert run is not None and run.id is not None
        return run.id
    finally:
        db.close()


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server]) -> Iterator[Server]:
    """One server for all tests that do not end it."""
    made = serve()
    SHARED.append(made)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def add_copy(recorded: Path) -> Callable[..., int]:
    """`add_copy(server, name, seed=0)`: put a copy of the recorded run into a server's workspace; returns its id."""
    return lambda server, name, seed=0: _add_recorded(server.workspace, recorded, name, seed)


@pytest.fixture(scope="session")
def replay(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that add runs. Run 1: training dialogues, 24 hints of which 6 are flagged; run 2: odd ones."""
    from replay_data import add_run, odd_events, training_events

    from jobs.db.engine import Database
    from jobs.workspace import Workspace

    workspace = Workspace(tmp_path_factory.mktemp("replay")).create()
    db = Database(workspace.database_url())
    db.migrate()
    add_run(db, workspace, "small", training_events())
    add_run(db, workspace, "odd", odd_events())
    db.close()
    made = serve(workspace.root)
    SHARED.append(made)
    yield made
    made.stop()


@pytest.fixture
def queue(server: Server) -> Iterator[Any]:
    """The queue of the shared server's workspace, from another process: rows for tests to look at."""
    from jobs.db.engine import Database
    from jobs.queue.queue import Queue
    from jobs.workspace import Workspace

    workspace = Workspace(server.workspace)
    db = Database(workspace.database_url())
    yield Queue(db, workspace)
    db.close()


@pytest.fixture
def stored_chat(queue: Any) -> Callable[[str, str], int]:
    """`stored_chat(message, response)`: put a chat into the shared server's workspace; returns its number."""
    from jobs.chat.checkpoints import ChatSettings
    from jobs.db.models import ChatMessage
    from jobs.db.queries import chats

    def store(message: str, response: str) -> int:
        settings = ChatSettings(model="tiny-random").model_dump(mode="json")
        number = chats.create(queue.db, "Kept", "chat", settings).id or 0
        shared: dict[str, Any] = {"chat_id": number, "time": time.time()}
        (user,) = chats.add(queue.db, number, [ChatMessage(role="user", content=message, **shared)])
        answer = ChatMessage(role="assistant", checkpoint="base", parent=user.id, content=response, **shared)
        chats.add(queue.db, number, [answer])
        return number

    return store


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    assert path, "Browser tests need Chromium. Fix: apt-get install chromium-headless-shell, or make test without it."
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield made
        made.close()


@dataclass
class Console:
    """What a page complained of; a test may expect some of it."""

    errors: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    """Messages of `LEFT_PAGE` that no navigation explains so far."""

    def allow(self, pattern: str) -> None:
        """Complaints that match this regular expression are part of the test."""
        self.expected.append(pattern)

    def unexpected(self) -> list[str]:
        """The others."""
        errors = [*self.errors, *self.interrupted]
        return [error for error in errors if not any(re.search(each, error) for each in self.expected)]


@pytest.fixture
def console() -> Console:
    """Errors in the page's console, exceptions in its scripts and requests to other machines."""
    return Console()


@pytest.fixture(scope="session")
def profile(browser: Any, server: Server) -> Iterator[Any]:
    """One profile for the tabs of a session: scripts and plot library are fetched and compiled once.

    A tab that stays keeps their process alive: without it each page costs twice the work.
    """
    context = browser.new_context(accept_downloads=True)
    context.new_page().goto(f"{server.url}/static/icon.svg")
    yield context
    context.close()


@pytest.fixture
def new_page(browser: Any, profile: Any, console: Console) -> Iterator[Callable[..., Any]]:
    """`new_page(width=1440, height=900, theme="light", **context_options)`: a tab that is watched.

    A test's tabs share storage, which is empty at its start; with `context_options` a tab has a profile of its own.
    """
    pages, contexts = [], []

    def make(width: int = 1440, height: int = 900, theme: str = "light", **options: Any) -> Any:
        if options:
            contexts.append(browser.new_context(accept_downloads=True, **options))
        page = (contexts[-1] if options else profile).new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # what moves is drawn 60 times a second
        page.set_default_timeout(60_000)
        page.on("console", lambda message: _note(console, message))
        page.on("framenavigated", lambda frame: console.interrupted.clear())
        page.on("pageerror", lambda error: console.errors.append(f"exception: {error}"))
        page.on("request", lambda request: _local(console, request.url))
        return page

    yield make
    for page in pages:
        if not page.is_closed():
            with contextlib.suppress(Exception):  # a page that never opened has no storage
                page.evaluate("localStorage.clear(); sessionStorage.clear()")
            page.close()
    profile.clear_cookies()
    for context in contexts:
        context.close()
    assert not console.unexpected()


def _note(console: Console, message: Any) -> None:
    if message.type == "error":
        text = f"{message.text} ({message.location.get('url', '')})"
        (console.interrupted if LEFT_PAGE.fullmatch(text) else console.errors).append(text)


def _local(console: Console, url: str) -> None:
    if not re.match(r"(http://(127\.0\.0\.1|localhost)[:/]|data:|blob:|about:)", url):
        console.errors.append(f"a request to another machine: {url}")


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    """A tab 1440 pixels wide, in light colours."""
    return new_page()


@pytest.fixture
def visit(server: Server, page: Any) -> Callable[[str], Any]:
    """`visit("/run?run=1")`: open a page of the shared server and wait until it stands; returns the tab."""

    def go(path: str, tab: Any = None) -> Any:
        tab = tab or page
        tab.goto(server.url + path)
        settle(tab)
        return tab

    return go


def settle(page: Any) -> None:
    """Wait until the page shows its first view and the buttons of its frame."""
    page.wait_for_function(
        "document.querySelector('.rl-frame-tools') && document.querySelector('.rl-view > *')"
        " && !document.querySelector('gradio-app > .loading, .wrap.full.generating')"
    )


@pytest.fixture
def no_overflow() -> Callable[[Any], None]:
    """`no_overflow(page)`: nothing is wider than the window; says what is."""

    def check(page: Any) -> None:
        wide = page.evaluate(WIDE)
        assert wide == []

    return check
