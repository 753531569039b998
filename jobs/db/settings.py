"""Named values of the workspace, e.g. `queue.paused` or `slots.cpu`."""

from __future__ import annotations

from jobs.db.engine import Database
from jobs.db.models import Setting


def get(db: Database, name: str, default: str = "") -> str:
    """Return a value, or `default` if it is not set."""
    with db.read() as session:
        setting = session.get(Setting, name)
        return setting.value if setting else default


def put(db: Database, name: str, value: str) -> None:
    """Set a value."""
    with db.write() as session:
        session.merge(Setting(name=name, value=value))
