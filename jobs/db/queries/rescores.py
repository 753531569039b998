"""What rescore runs report on the hints of earlier runs, by the target's run directory and the dialogue's event id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.dialogue_models import RescoredHint, RescoreSummary
from jobs.db.models import Run
from jobs.db.search import clean_json
from rl2f_core.run.events import LeakEvent, LeakRescoreEvent
from rl2f_core.types import LeakReport

_run = table_of(Run).c
_summary = table_of(RescoreSummary).c


def insert(session: Session, run: Run, events: Sequence[LeakEvent | LeakRescoreEvent]) -> None:
    """Store the reports of a rescore run, each once.

    Targets outside the workspace, which events name by their path, are ignored.
    """
    assert run.id is not None
    rows: list[RescoreSummary | RescoredHint] = []
    for event in (event for event in events if "/" not in event.run):
        if isinstance(event, LeakRescoreEvent):
            counts: Any = {"checked": event.hints, "flagged": event.flagged, "time": event.time}
            rows.append(
                RescoreSummary(run_id=run.id, target=event.run, detectors=json.dumps(event.detectors), **counts)
            )
        elif event.report.leaked or not event.report.is_complete or leak_distance(event.report) is not None:
            rows.append(
                RescoredHint(
                    run_id=run.id,
                    event_id=event.dialogue,
                    turn=event.turn,
                    target=event.run,
                    leak_found=event.report.leaked,
                    detector=event.report.detector,
                    leak_distance=leak_distance(event.report),
                    report=clean_json(event.report.model_dump_json(exclude_defaults=True)),
                )
            )
    for row in rows:
        session.merge(row)
    session.flush()


def leak_distance(report: LeakReport) -> float | None:
    """Return the distance of the leak probability to the threshold; None without one, or if the check failed."""
    if report.leak_probability is None or report.leak_threshold is None or not report.is_complete:
        return None
    return abs(report.leak_probability - report.leak_threshold)


def targets(source: int) -> Select[int]:
    """Select the ids of the runs that a rescore run checked."""
    return (
        select(_run.id).join(table_of(RescoreSummary), _summary.target == _run.folder).where(_summary.run_id == source)
    )
