"""What hints were worth: kept by the run that measured them, shown beside the hints of the run they stand in.

A dialogue's own `worth` is that of its best hint. It is worked out anew whenever a measurement comes or goes, or the
dialogue itself is read (anew), so that the order in which runs are read does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlmodel import Session, col

from jobs.database import Database
from jobs.tables import Dialogue, HintWorth, Run
from rl2f_core.events import HintValueEvent

_CHUNK = 500


def best(measured: Iterable[HintWorth], policy: str, checkpoint: str | None = None) -> HintWorth | None:
    """The measurement that counts for a hint: of the weights that played the dialogue, else of any; of these the one
    with the most samples, of these the newest."""
    listed = list(measured)
    own = [row for row in listed if row.checkpoint in (policy, checkpoint)]
    return max(own or listed, key=lambda row: (row.n, row.time, row.run_id), default=None)


def keep(session: Session, run: Run, found: Sequence[HintValueEvent]) -> None:
    """Keep what a run measured, each once, and note it on the dialogues, where they are known already."""
    touched: dict[str, set[str]] = defaultdict(set)
    for event in found:
        key = (run.id, event.dialogue, event.turn, event.checkpoint)
        if session.get(HintWorth, key) is None:
            values = event.model_dump(include={"turn", "checkpoint", "source", "value", "low", "high", "n", "turns",
                                               "arms", "time"})  # fmt: skip
            session.add(HintWorth(run_id=run.id or 0, event=event.dialogue, **values))
            touched[event.source].add(event.dialogue)
    session.flush()
    for source, events in touched.items():
        _note(session, source, sorted(events))


def forget(session: Session, run_id: int) -> None:
    """Delete what a run measured."""
    query = select(col(HintWorth.source), col(HintWorth.event)).where(col(HintWorth.run_id) == run_id).distinct()
    touched: dict[str, list[str]] = defaultdict(list)
    for source, event in session.execute(query):
        touched[source].append(event)
    session.execute(delete(HintWorth).where(col(HintWorth.run_id) == run_id))
    for source, events in touched.items():
        _note(session, source, events)


def note_new(session: Session, run: Run, events: Sequence[str]) -> None:
    """Note on dialogues that were just read what was measured of their hints before."""
    query = select(col(HintWorth.event)).where(col(HintWorth.source) == run.folder).distinct()
    measured = set(session.execute(query).scalars())
    _note(session, run.folder, [event for event in events if event in measured])


def _note(session: Session, source: str, events: Sequence[str]) -> None:
    """Bring `Dialogue.worth` of some dialogues up to date."""
    run = session.execute(select(Run).where(col(Run.folder) == source)).scalar_one_or_none()
    if run is None or not events:
        return
    for i in range(0, len(events), _CHUNK):
        some = events[i : i + _CHUNK]
        rows = _of(session, source, some)
        asked = select(col(Dialogue.event), col(Dialogue.policy), col(Dialogue.checkpoint))
        for event, policy, checkpoint in session.execute(
            asked.where(col(Dialogue.run_id) == run.id, col(Dialogue.event).in_(some))
        ).all():
            by_turn: dict[int, list[HintWorth]] = defaultdict(list)
            for row in rows.get(event, []):
                by_turn[row.turn].append(row)
            held = [best(measured, policy, checkpoint) for measured in by_turn.values()]
            worth = max((row.value for row in held if row is not None), default=None)
            at = (col(Dialogue.run_id) == run.id, col(Dialogue.event) == event)
            session.execute(update(Dialogue).where(*at).values(worth=worth))
    run.version += 1  # its pages show the values
    session.add(run)


def of_dialogues(session: Session, run: Run, events: Sequence[str]) -> dict[str, list[HintWorth]]:
    """All measurements of the hints of some dialogues of a run, by the dialogue's event."""
    return _of(session, run.folder, events)


def forks(db: Database, source: Run, limit: int = 200) -> list[Run]:
    """The newest runs of kind fork that go on from dialogues of a run, newest first."""
    named = col(Run.config).contains(f"source: {source.folder}\n", autoescape=True)
    query = select(Run).where(col(Run.kind) == "fork", or_(named, col(Run.parent) == source.id))
    with db.read() as session:
        return list(session.execute(query.order_by(col(Run.id).desc()).limit(limit)).scalars())


def _of(session: Session, source: str, events: Sequence[str]) -> dict[str, list[HintWorth]]:
    found: dict[str, list[Any]] = defaultdict(list)
    query = select(HintWorth).where(col(HintWorth.source) == source, col(HintWorth.event).in_(events))
    for row in session.execute(query.order_by(col(HintWorth.time))).scalars():
        found[row.event].append(row)
    return found
