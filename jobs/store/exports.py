"""Dialogues for an export: all of them, in the order of ingestion, some hundred at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select
from sqlmodel import col

from jobs.store import dialogues
from jobs.tables import Dialogue

if TYPE_CHECKING:
    from jobs.database import Database


def count(db: Database, run_id: int, **wanted: Any) -> int:
    """How many dialogues of a run `views` would give; `wanted` as there."""
    with db.read() as session:
        return int(session.execute(_narrow(select(func.count(col(Dialogue.id))), run_id, **wanted)).scalar_one())


def views(db: Database, run_id: int, *, after: int, limit: int, **wanted: Any) -> list[dialogues.DialogueView]:
    """The next dialogues of a run with everything that belongs to them.

    Args:
        db: The database.
        run_id: The run.
        after: Row number of the last dialogue that was taken; 0 at the start.
        limit: Dialogues at most.
        wanted: The fields of `jobs.export.settings.ExportFilter`.
    """
    with db.read() as session:
        query = _narrow(select(col(Dialogue.event)), run_id, **wanted).where(col(Dialogue.id) > after)
        events = list(session.execute(query.order_by(col(Dialogue.id)).limit(limit)).scalars())
    return dialogues.views(db, run_id, events)


def _narrow(
    query: Select[Any],
    run_id: int,
    *,
    phase: str = "",
    stage: str = "",
    step_from: int | None = None,
    step_to: int | None = None,
    checkpoint: str = "",
    control: str = "",
    without_controls: bool = False,
    labelled: bool = False,
) -> Select[Any]:
    query = query.where(col(Dialogue.run_id) == run_id)
    equal = {Dialogue.phase: phase, Dialogue.stage: stage, Dialogue.checkpoint: checkpoint, Dialogue.control: control}
    for column, value in equal.items():
        query = query.where(col(column) == value) if value else query
    if step_from is not None:
        query = query.where(col(Dialogue.step) >= step_from)
    if step_to is not None:
        query = query.where(col(Dialogue.step) <= step_to)
    if without_controls:
        query = query.where(col(Dialogue.control).is_(None) | col(Dialogue.control).in_(("", "hints", "kept")))
    return query.where(col(Dialogue.labels) > 0) if labelled else query
