"""Store findings of rescore runs and attach them to the hints of earlier runs.

A rescore run and its target can be ingested and rebuilt in any order. Findings refer to dialogues by event id and wait
until the dialogue is ingested; a rebuilt dialogue gets its findings back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import delete, select
from sqlmodel import Session, col

from jobs.db.label_models import LeakScore
from jobs.db.models import Dialogue, LeakFinding, RescoredRun, RescoreFinding, RescoreSummary, Run, Turn, table_of
from jobs.db.search import clean
from rl2f_core.run.events import LeakEvent, LeakRescoreEvent
from rl2f_core.types import LeakReport


def insert(session: Session, run: Run, events: Sequence[LeakEvent | LeakRescoreEvent]) -> None:
    """Store the findings of a rescore run, each once, and attach them if the target is ingested.

    Targets outside the workspace, which events name by their path, are ignored.
    """
    assert run.id is not None
    local = [event for event in events if "/" not in event.run]
    summaries = [event for event in local if isinstance(event, LeakRescoreEvent)]
    flagged = {(e.dialogue, e.turn): e for e in local if isinstance(e, LeakEvent) and e.report.leaked}
    new = []
    for (event_id, turn), event in flagged.items():
        if session.get(RescoreFinding, (run.id, event_id, turn)) is None:
            start, end = event.report.span or (None, None)
            finding = RescoreFinding(
                run_id=run.id,
                event_id=event_id,
                turn=turn,
                target=event.run,
                detector=event.report.detector,
                leak_type=event.report.leak_type,
                start=start,
                end=end,
                evidence=clean(event.report.evidence),
                answer_fraction=event.report.answer_fraction,
            )
            new.append(finding)
    session.add_all(new)
    add_scores(session, run.id, [(e.run, e.dialogue, e.turn, e.report) for e in local if isinstance(e, LeakEvent)])
    for summary in summaries:
        if session.get(RescoreSummary, run.id) is None:
            row = RescoreSummary(
                run_id=run.id,
                target=summary.run,
                detectors=json.dumps(summary.detectors),
                checked=summary.hints,
                flagged=summary.flagged,
                time=summary.time,
            )
            session.add(row)
    session.flush()
    for folder in {row.target for row in new} | {summary.run for summary in summaries}:
        target = session.scalars(select(Run).where(col(Run.folder) == folder)).one_or_none()
        if target is not None:
            _mark_rescored(session, target)
            _attach_findings(session, target, [row for row in new if row.target == folder])


def add_scores(session: Session, run_id: int, scored: Iterable[tuple[str, str, int, LeakReport]]) -> None:
    """Store the leak probabilities of reports, each once.

    Args:
        session: A write transaction.
        run_id: The run that made the reports.
        scored: Run directory, event id, turn and report of each hint.
    """
    for target, event_id, turn, report in scored:
        if report.leak_probability is None or report.leak_threshold is None:
            continue
        if session.get(LeakScore, (run_id, target, event_id, turn)) is None:
            values = {"probability": report.leak_probability, "threshold": report.leak_threshold}
            session.add(LeakScore(run_id=run_id, target=target, event_id=event_id, turn=turn, **values))


def attach(session: Session, run: Run, dialogues: Sequence[str]) -> None:
    """Attach findings of later runs to newly ingested dialogues, given by their event ids."""
    _mark_rescored(session, run)
    targets_run = col(RescoreFinding.target) == run.folder
    if session.execute(select(col(RescoreFinding.run_id)).where(targets_run).limit(1)).first() is None:
        return
    query = select(RescoreFinding).where(targets_run, col(RescoreFinding.event_id).in_(dialogues))
    _attach_findings(session, run, list(session.scalars(query)))


def delete_run(session: Session, run_id: int) -> None:
    """Delete a run's rescores of other runs. Findings about the run itself are kept for its dialogues."""
    query = select(col(RescoreFinding.run_id)).where(col(RescoreFinding.run_id) == run_id).limit(1)
    if session.execute(query).first() is not None:
        session.execute(delete(LeakFinding).where(col(LeakFinding.source) == str(run_id)))
    session.execute(
        delete(RescoredRun).where((col(RescoredRun.run_id) == run_id) | (col(RescoredRun.target_run_id) == run_id))
    )
    for model in (RescoreSummary, RescoreFinding):
        session.execute(delete(model).where(table_of(model).c.run_id == run_id))


def _mark_rescored(session: Session, target: Run) -> None:
    """Insert a `RescoredRun` for each rescore of `target`."""
    assert target.id is not None
    for row in session.scalars(select(RescoreSummary).where(col(RescoreSummary.target) == target.folder)):
        if session.get(RescoredRun, (row.run_id, target.id)) is None:
            session.add(RescoredRun(target_run_id=target.id, **row.model_dump(exclude={"target"})))
    session.flush()


def _attach_findings(session: Session, target: Run, findings: Sequence[RescoreFinding]) -> None:
    """Insert a `LeakFinding` for each finding whose hint is ingested."""
    query = (
        select(col(Dialogue.event_id), col(Turn.index), col(Turn.id))
        .join(Dialogue, col(Dialogue.id) == Turn.dialogue_id)
        .where(col(Dialogue.run_id) == target.id, col(Dialogue.event_id).in_([row.event_id for row in findings]))
    )
    turns = {(event_id, index): turn_id for event_id, index, turn_id in session.execute(query)}
    for row in findings:
        turn_id = turns.get((row.event_id, row.turn))
        if turn_id is None or session.get(LeakFinding, (turn_id, str(row.run_id))) is not None:
            continue
        values = row.model_dump(include={"detector", "leak_type", "start", "end", "answer_fraction", "evidence"})
        session.add(LeakFinding(turn_id=turn_id, source=str(row.run_id), **values))
    session.flush()
