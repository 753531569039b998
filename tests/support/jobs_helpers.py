"""What the tests of queue, worker and scheduler share: a workspace, runs that count, and waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from jobs.db.engine import Database
from jobs.db.models import ACTIVE, Run
from jobs.db.queries import dialogues, runs
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.run.events import JsonlSink

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = str(ROOT / "tests" / "support" / "count_kind.py")


def counting(**changes: Any) -> str:
    """YAML of a run that counts."""
    return yaml.safe_dump({"kind": "count", "name": "counting", "environment": "guess_number", **changes})


def training(model: Path, **changes: Any) -> str:
    """YAML of a small training run on the tiny model."""
    stage = {"name": "warm", "method": "sft", "steps": 3, "tasks_per_step": 2, "group_size": 2}
    data = {
        "name": "small run",
        "model": {"name": str(model), "device": "cpu", "dtype": "float32"},
        "environment": {"type": "guess_number", "size": 4, "low": 1},
        "rollout": {"max_turns": 2, "max_new_tokens": 8, "max_seq_len": 512},
        "lora": {"rank": 2, "alpha": 4},
        "evaluation": {"checkpoints": []},
        "stages": [stage],
    }
    return yaml.safe_dump({**data, **changes})


@contextlib.contextmanager
def counting_kinds() -> Iterator[None]:
    """The kinds of the plugin are known, here and in the processes started meanwhile; afterwards they are not."""
    before = os.environ.get("RL2F_PLUGINS")
    os.environ["RL2F_PLUGINS"] = PLUGIN
    registry._discovered.discard(PLUGIN)
    try:
        yield
    finally:
        for name in ("count", "light-count"):
            registry._components["run_kind"].pop(name, None)
        registry._discovered.discard(PLUGIN)
        if before is None:
            del os.environ["RL2F_PLUGINS"]
        else:
            os.environ["RL2F_PLUGINS"] = before


@contextlib.contextmanager
def a_queue(folder: Path, **options: Any) -> Iterator[Queue]:
    """A queue on a workspace of its own; what still runs at the end is aborted."""
    queue = open_queue(folder, **options)
    try:
        yield queue
    finally:
        for run in runs.active(queue.db):
            queue.abort(run.id or 0)
        queue.db.close()


def open_queue(folder: Path, **options: Any) -> Queue:
    """A queue on a workspace of its own."""
    workspace = Workspace(folder).create()
    db = Database(workspace.database_url())
    db.migrate()
    return Queue(db, workspace, **options)


def until(done: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `done` answers something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return found


def tick(queue: Queue) -> None:
    """What a scheduler does every second."""
    queue.dispatch()
    queue.sync_workers()
    queue.reap()


def until_status(queue: Queue, run_id: int | None, *statuses: str, seconds: float = 60.0, dispatch: bool = True) -> Run:
    """Let time pass until a run has one of the statuses, and return it."""

    def there() -> Run | None:
        if dispatch:
            queue.dispatch()
        queue.sync_workers()
        queue.reap()
        run = runs.get(queue.db, run_id or 0)
        assert run.status in (*ACTIVE, *statuses), f"{run.status}: {run.detail}\n{log(queue, run)}"
        return run if run.status in statuses else None

    return until(there, seconds)


def until_dialogues(queue: Queue, run_id: int | None, number: int, seconds: float = 60.0) -> None:
    """Let time pass until so many dialogues of a run were read."""

    def there() -> bool:
        tick(queue)
        return len(events(queue, run_id)) >= number

    until(there, seconds)


def events(queue: Queue, run_id: int | None) -> list[str]:
    """The event ids of a run's dialogues, in order."""
    filter = dialogues.DialogueFilter(run=run_id, demonstrations=True)
    return [row.event_id for row in dialogues.page(queue.db, filter, limit=500).rows]


def statuses(queue: Queue, *run_ids: int | None) -> list[str]:
    """The statuses of runs."""
    return [runs.get(queue.db, run_id or 0).status for run_id in run_ids]


def write_events(queue: Queue, run: Run) -> None:
    """One dialogue of a run, as its worker would write it."""
    one_dialogue = sys.modules[registry.get("run_kind", "count").__module__].one_dialogue
    JsonlSink(queue.workspace.folder(run.folder) / "events.jsonl").emit([one_dialogue(0)])


def log(queue: Queue, run: Run) -> str:
    """The log of a run's workers."""
    path = queue.workspace.folder(run.folder) / "log.txt"
    return path.read_text() if path.exists() else ""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process in its own session that runs `code`, with the plugin that counts."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
            "RL2F_PLUGINS": PLUGIN,
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
