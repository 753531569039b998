"""Rows of runs inside a write transaction, for `jobs.queue.queue` alone, which owns the run status."""

from __future__ import annotations

from sqlalchemy import func
from sqlmodel import Session, col, select

from jobs.db.engine import Database
from jobs.db.errors import unknown_run
from jobs.db.models import ACTIVE, ENDED, Run, Setting, Stage

PAUSED = "queue.paused"


def get_for_update(session: Session, run_id: int) -> Run:
    """The run, as nobody else can change it until the transaction ends; raises `UnknownRunError`."""
    run = session.get(Run, run_id, populate_existing=True)
    if run is None:
        raise unknown_run(run_id)
    return run


def queued(session: Session) -> list[Run]:
    """What waits, in order."""
    return list(session.exec(select(Run).where(Run.status == "queued").order_by(col(Run.position), col(Run.id))))


def active(session: Session) -> list[Run]:
    """What has a worker, or is about to have one."""
    return list(session.exec(select(Run).where(col(Run.status).in_(ACTIVE[1:])).order_by(col(Run.id))))


def unfinished(session: Session) -> list[Run]:
    """What waits or has a worker."""
    return list(session.exec(select(Run).where(col(Run.status).in_(ACTIVE)).order_by(col(Run.id))))


def last_position(session: Session) -> float:
    """The greatest position in the queue, 0 where it is empty."""
    return float(session.exec(select(func.max(Run.position)).where(Run.status == "queued")).one() or 0.0)


def paused(session: Session) -> bool:
    """Nothing new is to be started."""
    held = session.get(Setting, PAUSED)
    return held is not None and held.value == "1"


def stages(session: Session, run: Run) -> list[Stage]:
    """The stages of a run."""
    return list(session.exec(select(Stage).where(Stage.run_id == run.id)))


def folders(db: Database) -> dict[str, int]:
    """The run of each folder."""
    with db.read() as session:
        return {folder: run_id or 0 for folder, run_id in session.exec(select(Run.folder, Run.id))}


def ended(db: Database) -> list[Run]:
    """All runs that have ended."""
    with db.read() as session:
        return list(session.exec(select(Run).where(col(Run.status).in_(ENDED))))
