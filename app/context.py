"""What every page and every route is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.queue import Queue
    from jobs.scheduler import Scheduler
    from jobs.studio import Studio


@dataclass
class Context:
    """One studio as one server sees it."""

    studio: Studio
    db: Database
    queue: Queue
    read_only: bool = False
    """Another server holds the studio: this one shows, and changes nothing."""
    holder: str = ""
    """Who that server is, in words."""
    scheduler: Scheduler | None = None
    """None where the server is read-only, or in tests without time."""
