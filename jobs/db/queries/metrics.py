"""Numbers of steps and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, func, or_, select
from sqlmodel import col

from jobs.db.engine import Database
from jobs.db.models import Metric
from jobs.db.queries.runs import get_in_session

EVALUATION = "evaluation:"
"""How the stage of an evaluation's metrics begins; no stage of a run can be called so."""
DEMONSTRATED = "tokens/demonstrated"
"""The series that only steps on demonstrations have."""
_AT_ONCE = 50
NAME_SCAN_STEPS = 200
"""Steps at either end of a run that are read for the names of its series."""


def steps(db: Database, run_id: int) -> list[Metric]:
    """The training steps of a run, in order."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(Metric).where(col(Metric.run_id) == run_id, col(Metric.number) >= 0)
        return list(session.execute(query.order_by(col(Metric.number))).scalars())


def evaluations(db: Database, run_id: int) -> list[Metric]:
    """The evaluations of a run; their stage is `evaluation:NAME:CONTROL`."""
    with db.read() as session:
        get_in_session(session, run_id)
        query = select(Metric).where(col(Metric.run_id) == run_id, col(Metric.number) < 0)
        return list(session.execute(query.order_by(col(Metric.time), col(Metric.stage))).scalars())


def names(db: Database, run_id: int) -> list[str]:
    """The names of all series of a run's steps, sorted; from the first and the last 200 steps."""
    with db.read() as session:
        get_in_session(session, run_id)
        last = session.execute(select(func.max(Metric.number)).where(col(Metric.run_id) == run_id)).scalar() or 0
        ends = or_(col(Metric.number).between(0, NAME_SCAN_STEPS - 1), col(Metric.number) > last - NAME_SCAN_STEPS)
        query = select(col(Metric.values)).where(col(Metric.run_id) == run_id, col(Metric.number) >= 0, ends)
        return sorted({name for values in session.execute(query).scalars() for name in values})


def sparkline(db: Database, run_ids: Sequence[int], name: str = "reward", points: int = 40) -> dict[int, list[float]]:
    """At most `points` values of one series of each run, evenly spaced over its steps, the newest among them.

    Steps on demonstrations are left out: their rewards are not the student's.
    """
    found: dict[int, list[float]] = {run_id: [] for run_id in run_ids}
    run, number, values = col(Metric.run_id), col(Metric.number), col(Metric.values)
    points_of = select(run, number, values[name].as_float()).where(values[DEMONSTRATED].as_float().is_(None))
    with db.read() as session:
        ends = select(run, func.max(number)).where(run.in_(found), number >= 0).group_by(run)
        # one condition a run: SQLite finds each in the index, and would scan the table for pairs of run and number
        wanted = [and_(run == run_id, number.in_(_spread(last, points))) for run_id, last in session.execute(ends)]
        for i in range(0, len(wanted), _AT_ONCE):
            query = points_of.where(or_(*wanted[i : i + _AT_ONCE]))
            for run_id, _, point in sorted(session.execute(query), key=lambda row: row[:2]):
                found[run_id] += [float(point)] if point is not None else []
    return found


def _spread(last: int, points: int) -> list[int]:
    """At most `points` whole numbers from 0 to `last`, evenly spaced, both ends among them."""
    if last < points:
        return list(range(last + 1))
    return sorted({round(i * last / (points - 1)) for i in range(points)}) if points > 1 else [last]
