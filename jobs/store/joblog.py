"""What the scheduler did, as rows."""

from __future__ import annotations

from sqlalchemy import delete
from sqlmodel import col, select

from jobs.database import Database
from jobs.tables import JobLog


def add(db: Database, job: str, outcome: str, detail: str, time: float) -> JobLog:
    """Keep a line. `outcome` is ran, missed, failed or skipped."""
    made = JobLog(time=time, job=job, outcome=outcome, detail=detail[:2000])
    with db.write() as session:
        session.add(made)
    return made


def recent(db: Database, limit: int = 100, job: str = "") -> list[JobLog]:
    """The newest lines first; of one job where it is named."""
    query = select(JobLog).order_by(col(JobLog.id).desc()).limit(limit)
    if job:
        query = query.where(JobLog.job == job)
    with db.read() as session:
        return list(session.exec(query))


def prune(db: Database, before: float) -> int:
    """Delete lines that are older than a moment; returns how many."""
    with db.write() as session:
        return session.connection().execute(delete(JobLog).where(col(JobLog.time) < before)).rowcount
