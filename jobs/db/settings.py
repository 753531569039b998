"""Named values of the workspace, e.g. `queue.paused` or `slots.cpu`."""

from __future__ import annotations

from jobs.db.engine import Database
from jobs.db.models import Setting


def get(db: Database, name: str, default: str = "") -> str:
    """A value, or `default` where it was never put."""
    with db.read() as session:
        found = session.get(Setting, name)
        return found.value if found else default


def put(db: Database, name: str, value: str) -> None:
    """Keep a value."""
    with db.write() as session:
        session.merge(Setting(name=name, value=value))
