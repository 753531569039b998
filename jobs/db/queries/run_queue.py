"""Rows of runs in a write transaction, only for `jobs.queue.queue`, which changes the run status."""

from __future__ import annotations

from sqlalchemy import func
from sqlmodel import Session, col, select

from jobs.db.engine import Database
from jobs.db.errors import unknown_run
from jobs.db.models import ACTIVE, ENDED, Run, Setting, Stage

PAUSED = "queue.paused"


def get_for_update(session: Session, run_id: int) -> Run:
    """Return a run, reloaded in a write transaction; raises `UnknownRunError`."""
    run = session.get(Run, run_id, populate_existing=True)
    if run is None:
        raise unknown_run(run_id)
    return run


def queued(session: Session) -> list[Run]:
    """Return the queued runs in queue order."""
    return list(session.exec(select(Run).where(Run.status == "queued").order_by(col(Run.position), col(Run.id))))


def active(session: Session) -> list[Run]:
    """Return the runs that have a worker, or are about to have one."""
    return list(session.exec(select(Run).where(col(Run.status).in_(ACTIVE[1:])).order_by(col(Run.id))))


def unfinished(session: Session) -> list[Run]:
    """Return the runs that are queued or have a worker."""
    return list(session.exec(select(Run).where(col(Run.status).in_(ACTIVE)).order_by(col(Run.id))))


def last_position(session: Session) -> float:
    """Return the last position in the queue; 0 if it is empty."""
    return float(session.exec(select(func.max(Run.position)).where(Run.status == "queued")).one() or 0.0)


def paused(session: Session) -> bool:
    """Whether the queue is paused."""
    setting = session.get(Setting, PAUSED)
    return setting is not None and setting.value == "1"


def stages(session: Session, run: Run) -> list[Stage]:
    """Return the stages of a run."""
    return list(session.exec(select(Stage).where(Stage.run_id == run.id)))


def folders(db: Database) -> dict[str, int]:
    """Return the run id of each run directory."""
    with db.read() as session:
        return {folder: run_id or 0 for folder, run_id in session.exec(select(Run.folder, Run.id))}


def ended(db: Database) -> list[Run]:
    """Return all runs that have ended, oldest first."""
    return db.fetch_all(select(Run).where(col(Run.status).in_(ENDED)).order_by(col(Run.id)))
