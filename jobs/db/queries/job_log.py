"""Entries of the scheduler's log."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete
from sqlmodel import col, select

from jobs.db.engine import Database
from jobs.db.models import JobLog


def add(db: Database, job: str, outcome: str, detail: str, time: float) -> JobLog:
    """Add an entry. `outcome` is ran, missed, failed or skipped."""
    entry = JobLog(time=time, job=job, outcome=outcome, detail=detail[:2000])
    with db.write() as session:
        session.add(entry)
    return entry


def recent(db: Database, limit: int = 100, job: str = "", outcomes: Collection[str] = ()) -> list[JobLog]:
    """Return the newest entries first, of one job and with one of the outcomes if given."""
    query = select(JobLog).order_by(col(JobLog.id).desc()).limit(limit)
    if job:
        query = query.where(JobLog.job == job)
    if outcomes:
        query = query.where(col(JobLog.outcome).in_(outcomes))
    return db.fetch_all(query)


def prune(db: Database, before: float) -> int:
    """Delete entries older than `before`; return their number."""
    with db.write() as session:
        return session.connection().execute(delete(JobLog).where(col(JobLog.time) < before)).rowcount
