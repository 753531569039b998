"""Recording of interactive tasks as dialogues of one run, for replay, labels and export."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from jobs.db.queries import runs
from jobs.ingest import ingester
from rl2f_core.common.file_io import write_atomically
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.db.models import Run
    from jobs.workspace import Workspace

FOLDER = "chat"
_lock = threading.Lock()


def chat_run(db: Database, workspace: Workspace) -> Run:
    """Return the run of the workspace's recorded dialogues; creates it with status `succeeded` if it is missing."""
    run_dir = RunDir(workspace.folder(FOLDER))
    run_dir.path.mkdir(parents=True, exist_ok=True)
    if not run_dir.meta_path.exists():
        write_atomically(run_dir.meta_path, json.dumps({"kind": "chat", "created": time.time()}, indent=2))
    return runs.find(db, folder=FOLDER) or runs.add(db, ingester.chat_run(run_dir))


def record(db: Database, workspace: Workspace, event: DialogueEvent) -> Run:
    """Append a dialogue to the chat's run and ingest it.

    Raises `DiskFullError` or `StoreError`; an appended dialogue is ingested the next time.
    """
    with _lock:
        run = chat_run(db, workspace)
        JsonlSink(workspace.folder(FOLDER) / "events.jsonl").emit([event])
        while ingester.ingest(db, workspace, run):
            pass
    return run
