"""Services of one workspace for pages, routes and commands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jobs.db.engine import Database
from jobs.db.errors import StoreReadOnlyError
from jobs.model_server.limits import STUDIO_LIMITS, ServerLimits
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

if TYPE_CHECKING:
    from jobs.chat.service import ChatService
    from jobs.scheduler.scheduler import Scheduler


@dataclass
class Context:
    """One workspace in one server."""

    workspace: Workspace
    db: Database
    queue: Queue
    read_only: bool = False
    """Another server has the lock of the workspace."""
    lock_owner: str = ""
    """Sentence that names that server."""
    scheduler: Scheduler | None = None
    """None in a read-only server, and in tests."""
    chat_limits: ServerLimits = STUDIO_LIMITS

    def require_writable(self) -> None:
        """Raise `StoreReadOnlyError` if this server must not change the workspace."""
        if self.read_only or self.db.read_only:
            owner = self.lock_owner or "Another server uses this workspace."
            raise StoreReadOnlyError(f"Read-only server: {owner}", fix="Use that server, or stop it.")

    @cached_property
    def chat_service(self) -> ChatService:
        """The chat, with one model process for all of its users."""
        from jobs.chat.service import ChatService

        return ChatService(self.db, self.workspace, self.chat_limits)
