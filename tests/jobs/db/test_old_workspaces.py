"""Workspaces of earlier schemas: what people entered is kept, and dialogues are indexed again from the run folders.

`old/workspace_schema_4.tar.xz` is a workspace of the last program with schema 4: a part of the example run, imported
rollouts and their rescore, with labels, notes, tags, a chat and a token.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from schema_drift import schema_drift
from sqlalchemy import select

from app.commands.options import migrated
from jobs.db.dialogue_models import DialogueRow
from jobs.db.engine import Database
from jobs.db.models import LeakLabel
from jobs.db.queries import chats, dialogues, metrics, notes, runs, tokens
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue
from jobs.labels.annotation_queue import QueueFilter
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

OLD = Path(__file__).with_name("old")
Opened = tuple[Workspace, Database]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    with tarfile.open(OLD / "workspace_schema_4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Workspace(tmp_path).create()


@pytest.fixture
def opened(workspace: Workspace) -> Iterator[Opened]:
    """The workspace as a command opens it."""
    with migrated(workspace.root) as both:
        yield both


def rows(db: Database) -> list[DialogueRow]:
    return dialogues.page(db, DialogueFilter(demonstrations=True), limit=500).rows


def test_a_command_brings_schema_and_dialogues_up_to_date(opened: Opened) -> None:
    workspace, db = opened
    assert schema_drift(db) == []
    assert [runs.get(db, run).name for run in (1, 2)] == ["quickstart", "sums"]
    by_run = [row.run_id for row in rows(db)]
    with sqlite3.connect(f"file:{workspace.database}?mode=ro", uri=True) as connection:
        counted = dict(connection.execute("SELECT run_id, count(*) FROM turns GROUP BY run_id"))
    assert (by_run.count(1) > 20, by_run.count(2), counted[2]) == (True, 4, 8)
    events = [dialogues.get(db, row.run_id, row.event_id).event for row in rows(db)]
    assert reindex(db, workspace) == [1, 2, 3]
    assert [dialogues.get(db, row.run_id, row.event_id).event for row in rows(db)] == events


def test_what_people_entered_is_kept(opened: Opened) -> None:
    _, db = opened
    labels = db.fetch_all(select(LeakLabel))
    assert sorted((label.run_id, label.label) for label in labels) == [(1, "no_leak")] * 3 + [(2, "leak")] * 3
    assert all(label.sampling_frame and label.blind and label.note == "as I see it" for label in labels)
    assert sum(row.label_count for row in rows(db)) == 6
    assert [note.text for note in notes.of_run(db, 2)] == ["a note on a turn"]
    assert runs.tags(db, 1) == ["good", "kept"] and len(tokens.list_all(db)) == 1
    assert [message.content for message in chats.messages(db, 1)] == ["Hello"]
    assert metrics.steps(db, 1)


def test_findings_of_a_rescore_and_labels_belong_to_their_hints(opened: Opened) -> None:
    _, db = opened
    views = [dialogues.get(db, 2, row.event_id) for row in rows(db) if row.run_id == 2]
    assert all(view.findings[0]["3"].detector == "exact" for view in views)
    assert sorted(label.turn for view in views for label in view.labels[0]) == [0, 0, 0]
    assert len(annotation_queue.queue(db, "bo", QueueFilter(selection="stratified", run=2, source="3"))) == 4


def test_a_server_indexes_the_dialogues_in_the_background(workspace: Workspace) -> None:
    db = Database(workspace.database_url())
    assert db.migrate() and not rows(db) and not db.migrate()
    queue = Queue(db, workspace)
    queue.recover()
    assert queue.workers.unread == {1, 2, 3}
    db.close()
