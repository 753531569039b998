"""Notes on runs, dialogues and turns."""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import select
from sqlmodel import col

from jobs.db.dialogue_models import DialogueRow
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, unknown_dialogue, unknown_turn
from jobs.db.models import Note
from jobs.db.queries.runs import get_in_session
from jobs.db.search import clean
from rl2f_core.errors import DataError

MAX_CHARS = 20_000


def add(
    db: Database, run_id: int, text: str, author: str = "", event: str | None = None, turn: int | None = None
) -> Note:
    """Add a note to a run, to one of its dialogues (`event`), or to a turn of the dialogue.

    Raises `NotFoundError` if there is no such run, dialogue or turn, `DataError` if the text is empty, or too long, or
    if a turn has no dialogue.
    """
    if turn is not None and event is None:
        raise DataError("A note on a turn needs its dialogue.", value=f"turn {turn}", fix="Pass `event_id` too.")
    if not text.strip() or len(text) > MAX_CHARS:
        raise DataError(f"A note has between 1 and {MAX_CHARS} characters.", value=len(text.strip()))
    with db.write() as session:
        get_in_session(session, run_id)
        if event is not None:
            dialogue = (col(DialogueRow.run_id) == run_id, col(DialogueRow.event_id) == event)
            length = session.scalar(select(col(DialogueRow.length)).where(*dialogue))
            if length is None:
                raise unknown_dialogue(run_id, event)
            if turn is not None and not 0 <= turn < length:
                raise unknown_turn(turn, length)
        note = Note(
            run_id=run_id, event_id=event, turn=turn, author=clean(author)[:100], text=clean(text), time=time.time()
        )
        session.add(note)
    return note


def of_run(db: Database, run_id: int) -> list[Note]:
    """Return all notes of a run, its dialogues and turns, oldest first."""
    return db.fetch_all(select(Note).where(col(Note.run_id) == run_id).order_by(col(Note.id)))


def on_runs(db: Database, run_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the texts of the notes on each of these runs, oldest first, without notes on their dialogues."""
    query = select(Note).where(col(Note.run_id).in_(run_ids), col(Note.event_id).is_(None)).order_by(col(Note.id))
    texts: dict[int, list[str]] = {run_id: [] for run_id in run_ids}
    for note in db.fetch_all(query):
        texts[note.run_id].append(note.text)
    return texts


def delete(db: Database, id: int) -> None:
    """Delete a note; raises `NotFoundError`."""
    with db.write() as session:
        note = session.get(Note, id)
        if note is None:
            raise NotFoundError("There is no such note.", value=id, fix="Reload the page: it may have been deleted.")
        session.delete(note)
