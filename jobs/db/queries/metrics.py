"""Metrics of training steps and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, func, or_, select

from jobs.db.columns import table_of
from jobs.db.engine import Database
from jobs.db.models import Metric
from jobs.db.queries.runs import get_in_session, rows_of

DEMONSTRATED = "tokens/demonstrated"
"""Metric that only steps on demonstrations have."""
NAME_SCAN_STEPS = 200
"""Number of steps at both ends of a run whose metrics are listed."""
_CHUNK = 50
_metric = table_of(Metric).c


def steps(db: Database, run_id: int) -> list[Metric]:
    """Return the training steps of a run in order."""
    query = select(Metric).where(_metric.run_id == run_id, _metric.number >= 0).order_by(_metric.number)
    return rows_of(db, run_id, query)


def evaluations(db: Database, run_id: int) -> list[Metric]:
    """Return the evaluations of a run; their stage is `evaluation:NAME:CONDITION`."""
    query = select(Metric).where(_metric.run_id == run_id, _metric.number < 0).order_by(_metric.time, _metric.stage)
    return rows_of(db, run_id, query)


def names(db: Database, run_id: int) -> list[str]:
    """Return the metric names of the first and last `NAME_SCAN_STEPS` steps, sorted."""
    with db.read() as session:
        get_in_session(session, run_id)
        last = session.scalar(select(func.max(_metric.number)).where(_metric.run_id == run_id)) or 0
        ends = or_(_metric.number.between(0, NAME_SCAN_STEPS - 1), _metric.number > last - NAME_SCAN_STEPS)
        query = select(_metric["values"]).where(_metric.run_id == run_id, _metric.number >= 0, ends)
        return sorted({name for values in session.scalars(query) for name in values})


def sparkline(db: Database, run_ids: Sequence[int], name: str = "reward", points: int = 40) -> dict[int, list[float]]:
    """Return up to `points` values of a metric per run, evenly spaced over its steps, including the last step.

    Steps on demonstrations are excluded: their rewards are not the student's.
    """
    lines: dict[int, list[float]] = {run_id: [] for run_id in run_ids}
    run, number, values = _metric.run_id, _metric.number, _metric["values"]
    select_points = select(run, number, values[name].as_float()).where(values[DEMONSTRATED].as_float().is_(None))
    with db.read() as session:
        ends = select(run, func.max(number)).where(run.in_(lines), number >= 0).group_by(run)
        # one condition per run uses the index; pairs of run and number would make SQLite scan the table
        conditions = [and_(run == run_id, number.in_(_spread(last, points))) for run_id, last in session.execute(ends)]
        for i in range(0, len(conditions), _CHUNK):
            query = select_points.where(or_(*conditions[i : i + _CHUNK]))
            for run_id, _, point in sorted(session.execute(query), key=lambda row: row[:2]):
                lines[run_id] += [float(point)] if point is not None else []
    return lines


def _spread(last: int, points: int) -> list[int]:
    """Return up to `points` evenly spaced integers from 0 to `last`, including both."""
    if last < points:
        return list(range(last + 1))
    return sorted({round(i * last / (points - 1)) for i in range(points)}) if points > 1 else [last]
