"""The table of the audit log."""

from __future__ import annotations

from sqlalchemy import Column, Text
from sqlmodel import Field

from jobs.db.models import Documented


class AuditRecord(Documented):
    """An action of a person or a program, also if it failed or was refused."""

    time: float = Field(index=True)
    caller: str = Field(index=True)
    """`browser`, `command line`, or `token NAME`."""
    action: str = Field(index=True)
    """Name of the endpoint, or `create_token`, `revoke_token`."""
    arguments: str = Field(default="", sa_column=Column(Text, nullable=False))
    """Numbers, names, and words of at most 32 characters; of longer texts and configurations, only lengths and keys."""
    outcome: str
    """ok, failed or refused."""
    detail: str = Field(default="", sa_column=Column(Text, nullable=False))
    """The new run, the undone label, or the error of a failure or refusal."""


class AuditEntry(AuditRecord, table=True):
    """An entry of the audit log."""

    id: int | None = Field(default=None, primary_key=True)
