"""What every page and every route is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.chat.model_process.protocol import DEFAULT_IDLE_SECONDS

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.queue.queue import Queue
    from jobs.scheduler.scheduler import Scheduler
    from jobs.workspace import Workspace


@dataclass
class Context:
    """One workspace as one server sees it."""

    workspace: Workspace
    db: Database
    queue: Queue
    read_only: bool = False
    """Another server holds the workspace: this one shows, and changes nothing."""
    holder: str = ""
    """Who that server is, in words."""
    scheduler: Scheduler | None = None
    """None where the server is read-only, or in tests without time."""
    chat_idle_seconds: float = DEFAULT_IDLE_SECONDS
    """The model process of the chat ends after so long without a request."""
