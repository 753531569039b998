"""The audit log: actions of people and programs, and those that were refused."""

from __future__ import annotations

import time

from sqlalchemy import delete, or_
from sqlmodel import col, select

from jobs.db.engine import Database
from jobs.db.models import AuditEntry

MAX_CHARS = 500
"""Maximum length of the summary of arguments, and of a detail."""
COMMAND_LINE = "command line"


def entry(caller: str, action: str, arguments: str = "", outcome: str = "ok", detail: str = "") -> AuditEntry:
    """Return an entry for a transaction of the caller. `outcome` is ok, failed or refused."""
    return AuditEntry(
        time=time.time(),
        caller=caller,
        action=action,
        arguments=arguments[:MAX_CHARS],
        outcome=outcome,
        detail=detail[:MAX_CHARS],
    )


def add(db: Database, new: AuditEntry) -> None:
    """Append an entry in a transaction of its own."""
    with db.write() as session:
        session.add(new)


def recent(db: Database, limit: int = 100, *, search: str = "") -> list[AuditEntry]:
    """Return the newest entries first by the time of the call; with `search`, those with it in one of their texts."""
    query = select(AuditEntry).order_by(col(AuditEntry.time).desc(), col(AuditEntry.id).desc()).limit(limit)
    if search:
        columns = (AuditEntry.caller, AuditEntry.action, AuditEntry.arguments, AuditEntry.outcome, AuditEntry.detail)
        found = [col(column).icontains(search, autoescape=True) for column in columns]
        query = query.where(or_(*found))
    return db.fetch_all(query)


def prune(db: Database, before: float) -> int:
    """Delete entries older than `before`; return their number."""
    with db.write() as session:
        return session.connection().execute(delete(AuditEntry).where(col(AuditEntry.time) < before)).rowcount
