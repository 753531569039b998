"""Recording of interactive tasks as dialogues of one run, for replay, labels and export."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.ingest.ingester import ingest
from rl2f_core.common.file_io import write_atomically
from rl2f_core.run.events import DialogueEvent, JsonlSink

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

FOLDER, KIND = "chat", "chat"
_lock = threading.Lock()


def chat_run(db: Database, workspace: Workspace) -> Run:
    """Return the run of the workspace's recorded dialogues; creates it with status `succeeded` if it is missing."""
    run = runs.find(db, folder=FOLDER)
    if run is None:
        now = time.time()
        new = Run(
            name="Chat", kind=KIND, detail="Dialogues of interactive tasks.", folder=FOLDER, status="succeeded",
            origin="app", device="none", created=now, started=now, ended=now,
        )  # fmt: skip
        run = runs.add(db, new)
    folder = workspace.folder(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "meta.json").exists():
        write_atomically(folder / "meta.json", json.dumps({"kind": KIND, "created": run.created}, indent=2))
    return run


def record(db: Database, workspace: Workspace, event: DialogueEvent) -> Run:
    """Append a dialogue to the chat's run and ingest it.

    Raises `DiskFullError` or `StoreError`; an appended dialogue is ingested the next time.
    """
    with _lock:
        run = chat_run(db, workspace)
        JsonlSink(workspace.folder(FOLDER) / "events.jsonl").emit([event])
        _ingest_all(db, workspace, run)
    return run


def restore(db: Database, workspace: Workspace) -> None:
    """Ingest the recorded dialogues again if the database is new."""
    if (workspace.folder(FOLDER) / "events.jsonl").is_file() and runs.find(db, folder=FOLDER) is None:
        with _lock:
            _ingest_all(db, workspace, chat_run(db, workspace))


def _ingest_all(db: Database, workspace: Workspace, run: Run) -> None:
    while ingest(db, workspace, run):
        pass
