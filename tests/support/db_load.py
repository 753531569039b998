"""One process of the tests that load the store: `python store_load.py write|read URL WORKSPACE RUN_ID SECONDS`.

A writer plays a run that is ingested as it grows, adds notes and raises one number that all writers share; a reader
looks at pages meanwhile and at whole dialogues. Each prints what it did as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from event_data import append, dialogue, metric, stored_run

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.models import Setting
from jobs.db.queries import dialogues, metrics, notes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest.ingester import ingest
from jobs.workspace import Workspace

SHARED = "shared.number"


def write(db: Database, workspace: Workspace, run_id: int, seconds: float) -> dict[str, Any]:
    """Steps of eight dialogues until the time is over."""
    run = runs.get(db, run_id)
    path = workspace.folder(run.folder) / "events.jsonl"
    step, slowest, ends = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < ends:
        step += 1
        begun = time.monotonic()
        played = [dialogue(step, group, index) for group in (0, 1) for index in range(4)]
        append(path, *played[:5])
        ingest(db, workspace, run)
        append(path, *played[5:], *played[:2], metric(step))  # two come again
        ingest(db, workspace, run)
        notes.add(db, run_id, f"step {step}", event=played[0].id, turn=0)
        with db.write() as session:
            number = session.get(Setting, SHARED)
            assert number is not None
            number.value = str(int(number.value) + 1)
        runs.update(db, run_id, phase=f"step {step}", heartbeat=time.time())
        slowest = max(slowest, time.monotonic() - begun)
    return {"steps": step, "slowest": slowest}


def read(db: Database, seconds: float) -> dict[str, Any]:
    """Pages and dialogues, each of which must be whole, until the time is over."""
    looked, version, ends = 0, 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        now = runs.version(db)
        assert now >= version
        version = now
        for run in runs.page(db).rows:
            assert run.id is not None
            page = dialogues.page(db, DialogueFilter(run=run.id), limit=5, newest_first=True)
            for row in page.rows[:2]:
                view = dialogues.get(db, run.id, row.event_id)
                assert len(view.turns) == view.row.length == 2
                assert all(len(turn.rewards) == 2 for turn in view.turns)
                looked += 1
            found = dialogues.page(db, DialogueFilter(run=run.id, search="box answer"), limit=5)
            assert page.total is not None and found.total is not None and found.total >= page.total
            numbers = [row.number for row in metrics.steps(db, run.id)]
            assert numbers == list(range(len(numbers)))
    return {"looked": looked}


WRITERS = 4


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """This file as a process of its own."""
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def finish(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """What it says it did."""
    out, err = process.communicate(timeout=seconds + 300)
    assert process.returncode == 0, err.decode()[-3000:]
    return dict(json.loads(out))


def check(url: str, workspace: Workspace, seconds: float) -> None:
    """Start them, wait, and count everything they say they did."""
    db = Database(url)
    db.migrate()
    settings.put(db, SHARED, "0")
    ids = [stored_run(db, workspace, name=f"{i}-load").id or 0 for i in range(WRITERS)]
    begin = runs.version(db)
    writers = [start("write", url, str(workspace.root), str(run_id), str(seconds)) for run_id in ids]
    reader = start("read", url, str(workspace.root), "0", str(seconds))
    did = [finish(process, seconds) for process in writers]
    assert finish(reader, seconds)["looked"] > 0
    steps = [done["steps"] for done in did]
    assert all(steps)
    assert settings.get(db, SHARED) == str(sum(steps))
    assert runs.version(db) >= begin + 4 * sum(steps)
    for run_id, count in zip(ids, steps, strict=True):
        run = runs.get(db, run_id)
        assert (run.events_offset, run.invalid_lines) == (
            (workspace.folder(run.folder) / "events.jsonl").stat().st_size,
            0,
        )
        assert (run.phase, run.reward) == (f"step {count}", count / 10)
        assert dialogues.page(db, DialogueFilter(run=run_id), limit=1).total == 8 * count
        assert dialogues.page(db, DialogueFilter(run=run_id, search="answer"), limit=1).total == 8 * count
        assert [row.step for row in metrics.steps(db, run_id)] == list(range(1, count + 1))
        assert [note.text for note in notes.of_run(db, run_id)] == [f"step {i}" for i in range(1, count + 1)]
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        assert ask("SELECT count(*) FROM turn").scalar_one() == 16 * sum(steps)
        assert ask("SELECT count(*) FROM record").scalar_one() == ask("SELECT count(*) FROM dialogue").scalar_one()
        if db.sqlite:
            assert ask("PRAGMA integrity_check").scalar_one() == "ok"
            assert ask("PRAGMA foreign_key_check").fetchall() == []
    db.close()


def main(what: str, url: str, root: str, run_id: str, seconds: str) -> None:
    """Do one process's share."""
    db = Database(url)
    if what == "read":
        print(json.dumps(read(db, float(seconds))))
    else:
        print(json.dumps(write(db, Workspace(root), int(run_id), float(seconds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
