"""Dialogues of an export, in batches, in the order of ingestion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select
from sqlmodel import col

from jobs.db.models import Dialogue
from jobs.db.queries import dialogues

if TYPE_CHECKING:
    from jobs.db.engine import Database


@dataclass(frozen=True)
class DialogueSelection:
    """Conditions on the dialogues of a run; the fields of `jobs.export.settings.ExportFilter`."""

    phase: str = ""
    stage: str = ""
    step_from: int | None = None
    step_to: int | None = None
    checkpoint: str = ""
    condition: str = ""
    without_controls: bool = False
    labeled_only: bool = False


def count(db: Database, run_id: int, **selection: Any) -> int:
    """Count the dialogues that `views` returns."""
    query = _narrow(select(func.count(col(Dialogue.id))), run_id, DialogueSelection(**selection))
    with db.read() as session:
        return int(session.execute(query).scalar_one())


def views(db: Database, run_id: int, *, after: int, limit: int, **selection: Any) -> list[dialogues.DialogueView]:
    """Return the next dialogues of a run.

    Args:
        db: The database.
        run_id: The run.
        after: Row id of the last dialogue of the previous batch; 0 at the start.
        limit: Maximum number of dialogues.
        selection: The fields of `DialogueSelection`.
    """
    query = _narrow(select(col(Dialogue.event_id)), run_id, DialogueSelection(**selection))
    query = query.where(col(Dialogue.id) > after).order_by(col(Dialogue.id)).limit(limit)
    with db.read() as session:
        events = list(session.execute(query).scalars())
    return dialogues.views(db, run_id, events)


def _narrow(query: Select[Any], run_id: int, selection: DialogueSelection) -> Select[Any]:
    query = query.where(col(Dialogue.run_id) == run_id)
    for name in ("phase", "stage", "checkpoint", "condition"):
        if value := getattr(selection, name):
            query = query.where(col(getattr(Dialogue, name)) == value)
    if selection.step_from is not None:
        query = query.where(col(Dialogue.step) >= selection.step_from)
    if selection.step_to is not None:
        query = query.where(col(Dialogue.step) <= selection.step_to)
    if selection.without_controls:
        query = query.where(col(Dialogue.condition).is_(None) | col(Dialogue.condition).in_(("", "hints", "kept")))
    return query.where(col(Dialogue.label_count) > 0) if selection.labeled_only else query
