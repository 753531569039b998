"""Played tasks are kept like rollouts: dialogues of a run of its own, so that replay, labels and export see them."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from jobs.ingest import ingest
from jobs.store import runs
from jobs.tables import Run
from rl2f_core.config import write_atomically
from rl2f_core.events import DialogueEvent, JsonlSink

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.studio import Studio

FOLDER, KIND = "chat", "chat"
_one_at_a_time = threading.Lock()


def chat_run(db: Database, studio: Studio) -> Run:
    """The run that holds the studio's played dialogues, made where it is missing. It ended before it began."""
    found = runs.find(db, folder=FOLDER)
    if found is None:
        now = time.time()
        made = Run(
            name="Chat", kind=KIND, status="succeeded", detail="Dialogues that were played in the chat.", folder=FOLDER,
            origin="app", device="none", created=now, started=now, ended=now,
        )  # fmt: skip
        try:
            found = runs.add(db, made)
        except IntegrityError:  # another process added it in this moment: the folder's name is unique
            found = runs.find(db, folder=FOLDER)
            if found is None:
                raise
    folder = studio.folder(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "meta.json").exists():
        write_atomically(folder / "meta.json", json.dumps({"kind": KIND, "created": found.created}, indent=2))
    return found


def keep(db: Database, studio: Studio, event: DialogueEvent) -> Run:
    """Append a dialogue to the chat's run and take it into the database at once.

    Raises `DiskFullError` or `StoreError`; what was appended is taken in the next time.
    """
    with _one_at_a_time:
        run = chat_run(db, studio)
        JsonlSink(studio.folder(FOLDER) / "events.jsonl").emit([event])
        while ingest(db, studio, run):
            pass
    return run


def restore(db: Database, studio: Studio) -> None:
    """Where the database was made anew beside an old folder: its dialogues come back."""
    if (studio.folder(FOLDER) / "events.jsonl").is_file() and runs.find(db, folder=FOLDER) is None:
        with _one_at_a_time:
            run = chat_run(db, studio)
            while ingest(db, studio, run):
                pass
