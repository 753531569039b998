"""The audit log: actions of people and programs."""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from app.common.context import Context
from app.common.urls import audit_url
from app.endpoints.endpoint import endpoint
from app.endpoints.transcript import columns
from app.endpoints.types import ShortText
from jobs.db.queries import audit_log


class AuditRow(TypedDict):
    """An action, also if it failed or was refused; see `jobs.db.audit_models.AuditEntry`."""

    time: float
    """Seconds since 1970, UTC."""
    caller: str
    """`browser`, `command line`, or `token NAME`."""
    action: str
    """Name of the endpoint, or `create_token`, `revoke_token`."""
    arguments: str
    outcome: str
    """ok, failed or refused."""
    detail: str
    url: str | None
    """Address of the run, dialogue or chat; None if the entry names none."""


class AuditEndpoints:
    """Endpoints of the page *Audit log*.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @endpoint("read")
    def list_actions(
        self, search: ShortText = "", limit: Annotated[int, Field(ge=1, le=10_000)] = 1000
    ) -> list[AuditRow]:
        """List recorded actions, newest first.

        Args:
            search: Only entries that contain this text.
            limit: Maximum number of entries.
        """
        return [
            columns(row, AuditRow, url=audit_url(row.arguments, row.detail))
            for row in audit_log.recent(self._context.db, limit, search=search)
        ]
