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
from rl2f_core.errors import RunError, rl2f_command

if TYPE_CHECKING:
    from jobs.chat.service import ChatService
    from jobs.scheduler.scheduler import Scheduler

DEFAULT_ADDRESS = "http://127.0.0.1:7860"
"""Of `rl2f serve` without options."""


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
    """None in a read-only server, in a command, and in tests."""
    is_command: bool = False
    """The process is a command, which ends after the call."""
    chat_limits: ServerLimits = STUDIO_LIMITS

    def require_writable(self) -> None:
        """Raise `StoreReadOnlyError` if this server must not change the workspace."""
        if self.read_only or self.db.read_only:
            owner = self.lock_owner or "Another server uses this workspace."
            raise StoreReadOnlyError(f"Read-only server: {owner}", fix="Use that server, or stop it.")

    def require_model_process(self) -> None:
        """Raise an error in a process without the model process of the chats: a command, or a read-only server."""
        self.require_writable()
        if self.is_command:
            from jobs.scheduler.scheduler import server_address

            address = server_address(self.workspace)
            start = "" if address else f"Start `{rl2f_command('serve', '--workspace', self.workspace.root)}`. "
            client = f'Client("{address or DEFAULT_ADDRESS}", headers={{"Authorization": "Bearer TOKEN"}})'
            raise RunError(
                "Chats and their model run in the process of the studio; a command cannot control them.",
                value=f"the studio is at {address}" if address else "no studio has this workspace",
                fix=f"{start}Call it with `gradio_client.{client}`; `rl2f token new` prints a token.",
            )

    @cached_property
    def chat_service(self) -> ChatService:
        """The chat, with one model process for all of its users."""
        from jobs.chat.service import ChatService

        return ChatService(self.db, self.workspace, self.chat_limits)
