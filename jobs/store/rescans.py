"""What later runs found in the hints of earlier ones: kept by what names a hint for good, shown beside its own finding.

A rescoring run's events and the dialogues that it read may be ingested, and rebuilt, in any order: what is said of a
dialogue that is not here waits for it, and a rebuilt dialogue gets its findings back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlmodel import Session, col

from jobs.store.search import clean
from jobs.tables import Dialogue, LeakFinding, LeakScan, Rescan, RescanFinding, Run, Turn
from rl2f_core.events import LeakEvent, LeakScanEvent

_CHUNK = 500


def keep(session: Session, run: Run, events: Sequence[LeakEvent | LeakScanEvent]) -> None:
    """Keep what a rescoring run says, each finding once, and show it where the run that it read is here.

    Findings of a run whose folder does not lie beside it, which events name by its path, belong to no run of the
    studio and are left out.
    """
    assert run.id is not None
    scans = [event for event in events if isinstance(event, LeakScanEvent)]
    flagged = {(e.dialogue, e.turn): e for e in events if isinstance(e, LeakEvent) and e.report.leaked}
    fresh = []
    for (name, turn), event in flagged.items():
        if "/" in event.run or session.get(RescanFinding, (run.id, name, turn)) is not None:
            continue
        report = event.report
        start, end = report.span or (None, None)
        row = RescanFinding(
            run_id=run.id, event=name, turn=turn, target=event.run, tier=report.tier, start=start, end=end,
            share=report.share, evidence=clean(report.evidence),
        )  # fmt: skip
        session.add(row)
        fresh.append(row)
    for scan in scans:
        if "/" not in scan.run and session.get(Rescan, run.id) is None:
            session.add(
                Rescan(
                    run_id=run.id,
                    target=scan.run,
                    detectors=json.dumps(scan.detectors),
                    checked=scan.hints,
                    flagged=scan.flagged,
                    time=scan.time,
                )
            )
    session.flush()
    for target in {row.target for row in fresh} | {scan.run for scan in scans}:
        found = session.execute(select(Run).where(col(Run.folder) == target)).scalar_one_or_none()
        if found is not None:
            _scanned(session, found)
            _show(session, found, [row for row in fresh if row.target == target])


def attach(session: Session, run: Run, dialogues: Mapping[str, int]) -> None:
    """Show what later runs found in dialogues that were just ingested.

    Args:
        session: In a transaction that writes.
        run: Whose dialogues they are.
        dialogues: Row numbers by the events' ids.
    """
    _scanned(session, run)
    there = select(col(RescanFinding.run_id)).where(col(RescanFinding.target) == run.folder).limit(1)
    if session.execute(there).first() is None:
        return
    names = list(dialogues)
    for i in range(0, len(names), _CHUNK):
        query = select(RescanFinding).where(
            col(RescanFinding.target) == run.folder, col(RescanFinding.event).in_(names[i : i + _CHUNK])
        )
        _show(session, run, list(session.execute(query).scalars()))


def forget(session: Session, run_id: int) -> None:
    """Delete what a run found in others, and that others read it; what they found in it waits for its dialogues."""
    found = select(col(RescanFinding.run_id)).where(col(RescanFinding.run_id) == run_id).limit(1)
    if session.execute(found).first() is not None:
        session.execute(delete(LeakFinding).where(col(LeakFinding.source) == str(run_id)))
    session.execute(delete(LeakScan).where((col(LeakScan.run_id) == run_id) | (col(LeakScan.target_run_id) == run_id)))
    for table in (Rescan, RescanFinding):
        session.execute(delete(table).where(col(table.run_id) == run_id))  # type: ignore[attr-defined]


def _scanned(session: Session, target: Run) -> None:
    """Note that the runs which read `target` did so."""
    assert target.id is not None
    for row in session.execute(select(Rescan).where(col(Rescan.target) == target.folder)).scalars():
        if session.get(LeakScan, (row.run_id, target.id)) is None:
            session.add(LeakScan(target_run_id=target.id, **row.model_dump(exclude={"target"})))
    session.flush()


def _show(session: Session, target: Run, findings: Sequence[RescanFinding]) -> None:
    """Findings beside the hints that are here."""
    for i in range(0, len(findings), _CHUNK):
        part = findings[i : i + _CHUNK]
        query = (
            select(col(Dialogue.event), col(Turn.index), col(Turn.id))
            .join(Dialogue, col(Dialogue.id) == Turn.dialogue_id)
            .where(col(Dialogue.run_id) == target.id, col(Dialogue.event).in_([row.event for row in part]))
        )
        turns = {(event, index): turn_id for event, index, turn_id in session.execute(query)}
        for row in part:
            turn_id = turns.get((row.event, row.turn))
            if turn_id is None or session.get(LeakFinding, (turn_id, str(row.run_id))) is not None:
                continue
            values = row.model_dump(include={"tier", "start", "end", "share", "evidence"})
            session.add(LeakFinding(turn_id=turn_id, source=str(row.run_id), **values))
    session.flush()
