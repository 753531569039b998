"""The table of API tokens."""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class ApiToken(SQLModel, table=True):
    """What a program may do. The token itself is not stored."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    digest: str = Field(unique=True)
    """SHA-256 of the token, hexadecimal."""
    scopes: str
    """Separated by spaces, e.g. `read run`."""
    created: float
    last_used: float | None = None
