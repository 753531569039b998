"""Hints whose findings an annotator has opened; later labels of the annotator on these hints are not blind."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlmodel import Session

from jobs.db.models import OpenedHint
from jobs.labels.annotation_queue import HintKey

if TYPE_CHECKING:
    from jobs.db.engine import Database


def record(db: Database, hints: Iterable[HintKey], annotator: str) -> None:
    """Record that the annotator sees the findings of hints, or the labels of others on them.

    Nothing is recorded without a name, or in a read-only database, which accepts no labels.
    """
    if not annotator or db.read_only:
        return
    with db.read() as session:
        new = [hint for hint in hints if not is_opened(session, hint, annotator)]
    if new:
        with db.write() as session:
            for hint in new:
                add(session, hint, annotator)


def is_opened(session: Session, hint: HintKey, annotator: str) -> bool:
    """Return whether the annotator has opened the findings."""
    return session.get(OpenedHint, (*hint, annotator)) is not None


def add(session: Session, hint: HintKey, annotator: str) -> None:
    """Record an opening in a transaction; the first one stays."""
    if not is_opened(session, hint, annotator):
        run, event, turn = hint
        session.add(OpenedHint(run_id=run, event_id=event, turn=turn, annotator=annotator, time=time.time()))
