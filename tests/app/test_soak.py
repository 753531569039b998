"""Eight training runs during 25 kills, with labels and notes in between, and then thousands of generated requests."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from generated_requests import GeneratedRequest, RequestGenerator
from jobs_helpers import until
from run_helpers import config_of

from app.common.context import Context
from app.endpoints.endpoint import operation_of
from app.endpoints.studio import Studio
from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.models import ACTIVE, ENDED, Run
from jobs.db.queries import runs, tokens
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.file_io import sha256
from rl2f_core.config.loading import dump_yaml
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RUNS, STEPS, KILLS, REQUESTS, FIRST = 8, (2, 198), 25, 5_000, 1_000
MAX_GROWTH_BYTES = 100_000_000
SCOPES = ("read", "label", "run")


class StudioProcess:
    """`rl2f serve` of a workspace in a process of its own, which is killed and started again."""

    def __init__(self, workspace: Workspace, home: Path) -> None:
        self.workspace, self.home, self.log = workspace, home, workspace.root.parent / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        variables = {
            "RL2F_HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--port", str(self.port)]
        command += ["--workspace", str(self.workspace.root)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True
            )
        until(self._answers, 180)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            return self.http.get("/").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to the server alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def memory(self) -> int:
        """Return the resident bytes of the server."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def call(self, token: str, name: str, **arguments: Any) -> Any:
        """Return the result of an endpoint."""
        sent = {"Authorization": f"Bearer {token}"}
        event = self.http.post(f"/gradio_api/call/v2/{name}", json=arguments, headers=sent)
        assert event.status_code == 200, event.text
        text = self.http.get(f"/gradio_api/call/{name}/{event.json()['event_id']}", headers=sent).text
        assert "event: complete" in text, text[:500]
        return json.loads(text.rpartition("data: ")[2])[0]


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory, speaker: Path) -> Iterator[tuple[StudioProcess, Database]]:
    """A server with eight training runs in its queue, two of which run at once."""
    folder = tmp_path_factory.mktemp("soak")
    model = folder / "home" / "models" / "speaker"
    shutil.copytree(speaker, model)
    workspace = Workspace(folder / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    settings.put(db, "slots.cpu", "2")
    settings.put(db, "examples.added", "yes")
    server = StudioProcess(workspace, folder / "home")
    server.start()
    for _ in range(RUNS):
        add_run(server, db)
    try:
        yield server, db
    finally:
        for run in runs.active(db):
            Queue(db, workspace).abort(run.id or 0)
        server.kill()
        db.close()


def all_runs(db: Database) -> list[Run]:
    return runs.page(db, limit=100).rows


def add_run(server: StudioProcess, db: Database) -> None:
    seed, model = len(all_runs(db)), server.home / "models" / "speaker"
    Queue(db, server.workspace).add(dump_yaml(config_of(model, seed=seed, steps=STEPS)), name=f"soak {seed}")


def steps_done(server: StudioProcess, db: Database) -> int:
    folders = [server.workspace.folder(run.folder) / "events.jsonl" for run in all_runs(db)]
    return sum(path.read_bytes().count(b'"type":"metric"') for path in folders if path.exists())


def annotate(server: StudioProcess, token: str, rng: random.Random, written: Counter[str]) -> None:
    """Add a note, and label a hint that has been stored."""
    number = rng.randrange(1, RUNS + 1)
    text = f"note {sum(written.values())}"
    server.call(token, "add_note", run_id=number, text=text, author="soak")
    written[f"note {number} {text}"] += 1
    hints = server.call(token, "next_hints_to_label", annotator="soak", limit=20)["hints"]
    if hints:
        chosen = rng.choice(hints)
        run, event, turn = (chosen[name] for name in ("run", "event_id", "turn"))
        server.call(token, "label_hint", run=run, event_id=event, turn=turn, label="no_leak", annotator="soak")
        written[f"label {run} {event} {turn}"] = 1


def resume_interrupted(server: StudioProcess, db: Database, token: str) -> None:
    for run in all_runs(db):
        if run.status in ("interrupted", "failed"):
            assert run.status != "failed", run.detail
            server.call(token, "resume_run", run_id=run.id)


def test_kills_lose_and_double_nothing(soak: tuple[StudioProcess, Database], tmp_path: Path) -> None:
    server, db = soak
    token = tokens.create(db, SCOPES)[1]
    rng, written, killed = random.Random(7), Counter[str](), Counter[str]()
    for number in range(KILLS):
        until(lambda target=steps_done(server, db) + 3: resumed(server, db, token, target), 600)
        annotate(server, token, rng, written)
        time.sleep(rng.uniform(0, 2))
        kind = ("worker", "both", "server")[number % 3]
        working = until(lambda: working_processes(server, db, token), 300)
        if kind != "worker":
            server.kill()
        if kind != "server":
            os.kill(rng.choice(working), signal.SIGKILL)
        killed[kind] += 1
        if server.process is not None and server.process.poll() is not None:
            server.start()
    until(lambda: resumed(server, db, token, 10**9) or finished(db), 3600)
    assert sum(killed.values()) == KILLS, killed
    for run in all_runs(db):
        check_run(server, db, run)
    for entry, count in written.items():
        assert stored(db, entry) == count, entry
    for run in rng.sample(all_runs(db), 2):
        check_against_uninterrupted(server, run, tmp_path / run.folder)


def resumed(server: StudioProcess, db: Database, token: str, target: int) -> bool:
    """Resume the interrupted runs; return whether they have done so many steps, or have all ended."""
    resume_interrupted(server, db, token)
    return steps_done(server, db) >= target or finished(db)


def working_processes(server: StudioProcess, db: Database, token: str) -> list[int]:
    """Resume the interrupted runs, and add one if a fast machine finished all; return the ids of their processes."""
    resume_interrupted(server, db, token)
    if finished(db):
        add_run(server, db)
    return [run.pid for run in all_runs(db) if run.status == "running" and run.pid]


def finished(db: Database) -> bool:
    return all(run.status == "succeeded" for run in all_runs(db))


def check_run(server: StudioProcess, db: Database, run: Run) -> None:
    """A run has every step and every event once, in its directory and in the database, and it has trained."""
    assert run.status == "succeeded" and run.done == run.total == sum(STEPS), (run.status, run.detail)
    events = list(read_events(server.workspace.folder(run.folder) / "events.jsonl", strict=True))
    ids = Counter(event.id for event in events if not event.id.startswith("status:"))
    assert max(ids.values()) == 1
    steps = [(event.stage, event.step) for event in events if isinstance(event, MetricEvent)]
    assert [each for each in steps if each[1] > 0] == [
        (stage, step) for stage, count in zip(("warm", "rl"), STEPS, strict=True) for step in range(1, count + 1)
    ]
    dialogues = {event.id for event in events if isinstance(event, DialogueEvent)}
    with db.read() as session:
        rows = (
            session.connection()
            .exec_driver_sql(f"SELECT event_id, advantage FROM dialogue WHERE run_id = {run.id}")
            .all()
        )
    assert len(rows) == len(dialogues) and {row[0] for row in rows} == dialogues
    assert run.invalid_lines == 0 and sum(bool(row[1]) for row in rows) > 0, "no dialogue has an advantage"


def stored(db: Database, entry: str) -> int:
    kind, number, text = entry.split(" ", 2)
    event, _, turn = text.rpartition(" ")
    query = (
        f"SELECT count(*) FROM note WHERE run_id = {number} AND text = '{text}'"
        if kind == "note"
        else f"SELECT count(*) FROM leaklabel WHERE run_id = {number} AND event_id = '{event}' AND turn = {turn}"
    )
    with db.read() as session:
        return int(session.connection().exec_driver_sql(query).scalar() or 0)


def check_against_uninterrupted(server: StudioProcess, run: Run, folder: Path) -> None:
    """The last adapter equals that of a run that nothing interrupted, byte by byte."""
    config = RunDir.open(server.workspace.folder(run.folder)).config()
    fresh = RunDir.create(folder, config)
    execute(config, fresh, JsonlSink(fresh.events_path), lambda: False)
    name = f"rl@{STEPS[1]}"
    folders = (folder, server.workspace.folder(run.folder))
    first, second = (sha256(RunDir(path).checkpoint(name) / "adapter_model.safetensors") for path in folders)
    assert first == second


# -- generated requests ----------------------------------------------------------------------------------------------
def fingerprint(db: Database, but: tuple[str, ...]) -> dict[str, int]:
    """Return a hash of the rows of each table; those of `but` may change."""
    with db.read() as session:
        connection = session.connection()
        names = [name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: hash(tuple(connection.exec_driver_sql(f'SELECT * FROM "{name}"').all()))
            for name in names
            if name not in but and not name.startswith(("sqlite_", "dialogue_text"))
        }


ALWAYS = ("auditentry", "apitoken", "joblog")
LABELS = ("note", "leaklabel", "openedhint", "setting", "run", "testsetaccess", "dialogue")


def test_generated_requests_end_in_no_server_error_and_leave_no_memory(soak: tuple[StudioProcess, Database]) -> None:
    server, db = soak
    until(lambda: finished(db), 3600)
    server.kill()
    for slot in ("slots.cpu", "slots.light"):  # no generated run starts
        settings.put(db, slot, "0")
    server.log.write_bytes(b"")
    server.start()
    studio = Studio(Context(server.workspace, db, Queue(db, server.workspace)))
    schemas = {name: operation_of(function).input_schema() for name, _, function in studio.endpoints()}
    browser = {"Origin": server.url}
    listed = server.http.get("/config", headers=browser).json()["dependencies"]
    events = {each["id"]: len(each["inputs"]) for each in listed if each["api_visibility"] == "private"}
    generator = RequestGenerator(11, schemas, events)
    empty, statuses = server.memory(), Counter[tuple[str, int]]()

    def send(client: httpx.Client, kind: str, make: Callable[[], GeneratedRequest], count: int) -> None:
        for _ in range(count):
            request = make()
            content = {"content": request.body, "headers": {"Content-Type": "application/json"}}
            with client.stream(request.method, request.path, **content) as response:
                statuses[kind, response.status_code] += 1
                assert response.status_code < 500, (kind, request, response.read()[:500])

    headers = {"Authorization": f"Bearer {tokens.create(db, SCOPES)[1]}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as program:
        send(program, "first", generator.call, FIRST)  # load the code that no request needed before
    start = server.memory()
    for scope in SCOPES:
        allowed = {"read": ALWAYS, "label": ALWAYS + LABELS}.get(scope)
        before = fingerprint(db, allowed) if allowed else None
        headers = {"Authorization": f"Bearer {tokens.create(db, sorted({'read', scope}))[1]}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=120) as program:
            send(program, scope, generator.call, REQUESTS)
            send(program, f"{scope}: routes", generator.page, REQUESTS // 10)
        assert allowed is None or fingerprint(db, allowed) == before, scope
        print(scope, f"{(server.memory() - start) / 1e6:+.0f} MB")
    server.http.headers.update(browser)  # it has the cookie
    send(server.http, "event", generator.event, REQUESTS // 2)
    send(server.http, "page", generator.page, REQUESTS // 5)
    busy = server.memory() - start
    time.sleep(70)  # the server returns freed memory each minute
    growth = server.memory() - empty
    print(
        f"{empty / 1e6:.0f} MB at the start, {start / 1e6:.0f} MB after {FIRST}, {busy / 1e6:+.0f} MB after all",
        f"{growth / 1e6:+.0f} MB from the start to a minute after all",
        *sorted(statuses.items()),
        sep="\n",
    )
    _, found, traceback = server.log.read_text().partition("Traceback")
    assert not found, traceback[:5000]
    with db.read() as session:
        assert session.connection().exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert growth <= MAX_GROWTH_BYTES
    assert {run.status for run in all_runs(db)} <= {*ACTIVE, *ENDED}
