"""The workspace that `pages` opens."""

from __future__ import annotations

import json
import time
from pathlib import Path

from jobs.db.engine import Database
from jobs.db.models import ChatMessage
from jobs.db.queries import chats, notes, runs
from jobs.workspace import Workspace

from . import studio

SIZES = {"small": (60, 3_000), "runs": (1_000, 20_000), "large": (1_000, 200_000)}
"""Runs and dialogues; a dialogue has five turns on average."""
CHATS = 40
EXPORTS = 3
LARGEST = 1
"""Id of the run with a tenth of all dialogues."""
DONE = "pages.json"
"""Written last; holds the size."""


def build(root: Path, size: str) -> None:
    """Create runs, dialogues, labels, chats, finished exports and the log of the largest run."""
    number, dialogues = SIZES[size]
    workspace = Workspace(root).create()
    db = Database(workspace.database_url())
    db.migrate()
    args = studio.arguments(["--runs", str(number), "--dialogues", str(dialogues)])
    studio.build(db, workspace, args, lambda line: print(line, flush=True))
    add_chats(db)
    largest = runs.get(db, LARGEST)
    lines = (f"step {i}: reward {i / 4000:.3f}\n" for i in range(4000))
    (workspace.folder(largest.folder) / "log.txt").write_text("".join(lines))
    for i in range(EXPORTS):
        add_export(workspace.exports / f"{900 + i}-bench", i)
    db.close()
    (root / DONE).write_text(json.dumps({"size": size}))


def add_chats(db: Database) -> None:
    """Create chats of a question and an answer each."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "seed": 0}
    for i in range(CHATS):
        place = {"model": "tiny-random", "checkpoints": ["base"], "device": "cpu"}
        settings = {**place, "system": "", "sampling": sampling}
        chat = chats.create(db, f"Question {i}", "chat", settings, opening=f"What is {i} + {i}?")
        assert chat.id is not None
        first = chats.messages(db, chat.id)[0]
        text = f"The sum is {2 * i}."
        reply = ChatMessage(
            chat_id=chat.id, parent=first.id, role="assistant", checkpoint="base", content=text, time=time.time()
        )
        chats.add(db, chat.id, [reply])


def add_export(folder: Path, number: int) -> None:
    """Write the manifest and the file of a finished export."""
    folder.mkdir(parents=True)
    (folder / "messages.jsonl").write_text('{"messages": []}\n')
    manifest = {
        "name": f"export {number}",
        "created": 1.0 + number,
        "dialogues": 1,
        "labels": {"hints": 1, "people": {}, "human": {}, "detector": {}, "without": {}},
        "runs": [{"run": str(LARGEST), "name": "largest"}],
        "formats": {"messages": {"rows": 1, "files": {"messages.jsonl": {"bytes": 17}}}},
        "left_out": {},
        "settings": {"labels": "both", "privileged": False},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def add_note(root: Path, run: int, text: str) -> float:
    """Add a note to a run through a connection of its own, like another process; return the time after the commit."""
    db = Database(Workspace(root).database_url())
    notes.add(db, run, text)
    end = time.time()
    db.close()
    return end
