"""The audit log: actions of people and programs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.common.urls import audit_url
from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import ShortText, from_row
from jobs.db.models import AuditRecord
from jobs.db.queries import audit_log


class AuditRow(AuditRecord):
    """An action, also if it failed or was refused."""

    url: str | None
    """Address of the run, dialogue or chat; None if the entry names none."""


class AuditEndpoints(Endpoints):
    """Endpoints of the page *Audit log*."""

    @endpoint("read")
    def list_actions(
        self, search: ShortText = "", limit: Annotated[int, Field(ge=1, le=10_000)] = 1000
    ) -> list[AuditRow]:
        """List recorded actions, newest first.

        Args:
            search: Only entries that contain this text, e.g. a token or an endpoint.
            limit: Maximum number of entries.
        """
        entries = audit_log.recent(self._context.db, limit, search=search)
        return [from_row(AuditRow, row, url=audit_url(row.arguments, row.detail)) for row in entries]
