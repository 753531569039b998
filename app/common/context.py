"""Services of one workspace for pages, routes and commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from jobs.chat.limits import ChatLimits
from jobs.db.errors import StoreReadOnlyError

if TYPE_CHECKING:
    from jobs.chat.service import ChatService
    from jobs.db.engine import Database
    from jobs.queue.queue import Queue
    from jobs.scheduler.scheduler import Scheduler
    from jobs.workspace import Workspace


@dataclass
class Context:
    """One workspace in one server."""

    workspace: Workspace
    db: Database
    queue: Queue
    read_only: bool = False
    """Another server has the lock of the workspace."""
    holder: str = ""
    """Description of that server."""
    scheduler: Scheduler | None = None
    """None in a read-only server, and in tests."""
    chat_limits: ChatLimits = field(default_factory=ChatLimits)

    def require_writable(self) -> None:
        """Raise `StoreReadOnlyError` if this server must not change the workspace."""
        if self.read_only or self.db.read_only:
            holder = self.holder or "another server"
            what = f"Read-only server: {holder} has locked the workspace."
            raise StoreReadOnlyError(what, fix="Use that server, or stop it.")

    @cached_property
    def chat_service(self) -> ChatService:
        """The chat, with one model process for all of its users."""
        from jobs.chat.service import ChatService

        return ChatService(self.db, self.workspace, self.chat_limits)
