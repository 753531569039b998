"""Hint values: stored by the run that measured them, shown in the run of the hint.

`DialogueRow.best_hint_value` is updated whenever a measurement or the dialogue changes, so runs can be ingested in any
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import delete, or_, select, update
from sqlmodel import Session, col

from jobs.db.dialogue_models import DialogueRow, HintValue
from jobs.db.engine import Database
from jobs.db.models import Run
from rl2f_core.run.events import HintValueEvent

_FIELDS = {*HintValue.model_fields} - {"run_id", "event_id"}


def pick_measurement(measured: Iterable[HintValue], policy: str, checkpoint: str | None = None) -> HintValue | None:
    """Return the measurement to show for a hint.

    Measurements with the dialogue's own checkpoint come first, then more samples, then the newest.
    """
    rows = list(measured)
    on_policy = [row for row in rows if row.checkpoint in (policy, checkpoint)]
    return max(on_policy or rows, key=lambda row: (row.n, row.time, row.run_id), default=None)


def insert(session: Session, run: Run, events: Sequence[HintValueEvent]) -> None:
    """Store a run's measurements, each once, and update the dialogues that are ingested."""
    changed: dict[str, set[str]] = defaultdict(set)
    for event in events:
        key = {"run_id": run.id, "event_id": event.dialogue, "turn": event.turn, "checkpoint": event.checkpoint}
        if session.get(HintValue, key) is None:
            session.add(HintValue(run_id=run.id or 0, event_id=event.dialogue, **event.model_dump(include=_FIELDS)))
            changed[event.source].add(event.dialogue)
    session.flush()
    for source, dialogues in changed.items():
        _update_best(session, source, sorted(dialogues))


def delete_run(session: Session, run_id: int) -> None:
    """Delete a run's measurements."""
    query = select(col(HintValue.source), col(HintValue.event_id)).where(col(HintValue.run_id) == run_id).distinct()
    changed: dict[str, list[str]] = defaultdict(list)
    for source, event_id in session.execute(query):
        changed[source].append(event_id)
    session.execute(delete(HintValue).where(col(HintValue.run_id) == run_id))
    for source, events in changed.items():
        _update_best(session, source, events)


def apply_to_new(session: Session, run: Run, events: Sequence[str]) -> None:
    """Update newly ingested dialogues from earlier measurements."""
    query = select(col(HintValue.event_id)).where(col(HintValue.source) == run.folder).distinct()
    measured = set(session.scalars(query))
    _update_best(session, run.folder, [event for event in events if event in measured])


def _update_best(session: Session, source: str, events: Sequence[str]) -> None:
    """Update `DialogueRow.best_hint_value`."""
    run = session.scalars(select(Run).where(col(Run.folder) == source)).one_or_none()
    if run is None or not events:
        return
    rows = of_dialogues(session, run, events)
    query = select(col(DialogueRow.event_id), col(DialogueRow.policy), col(DialogueRow.checkpoint))
    query = query.where(col(DialogueRow.run_id) == run.id, col(DialogueRow.event_id).in_(events))
    for event_id, policy, checkpoint in session.execute(query).all():
        by_turn: dict[int, list[HintValue]] = defaultdict(list)
        for row in rows.get(event_id, []):
            by_turn[row.turn].append(row)
        picked = [pick_measurement(measured, policy, checkpoint) for measured in by_turn.values()]
        best = max((row.value for row in picked if row is not None), default=None)
        where = (col(DialogueRow.run_id) == run.id, col(DialogueRow.event_id) == event_id)
        session.execute(update(DialogueRow).where(*where).values(best_hint_value=best))
    run.version += 1  # refreshes the run's pages
    session.add(run)


def of_dialogues(session: Session, run: Run, events: Sequence[str]) -> dict[str, list[HintValue]]:
    """Return all measurements of the hints of dialogues, by event id, oldest first."""
    rows: dict[str, list[HintValue]] = defaultdict(list)
    query = select(HintValue).where(col(HintValue.source) == run.folder, col(HintValue.event_id).in_(events))
    for row in session.scalars(query.order_by(col(HintValue.time))):
        rows[row.event_id].append(row)
    return rows


def forks(db: Database, source: Run) -> list[Run]:
    """Return the fork runs that continue dialogues of a run, newest first."""
    refers = col(Run.config).contains(f"source: {source.folder}\n", autoescape=True)
    query = select(Run).where(col(Run.kind) == "fork", or_(refers, col(Run.parent) == source.id))
    return db.fetch_all(query.order_by(col(Run.id).desc()))
