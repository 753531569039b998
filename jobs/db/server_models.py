"""Tables of the server: schedules, the scheduler's log, settings and tokens. Times are seconds since 1970, UTC."""

from __future__ import annotations

from sqlalchemy import Column, Text
from sqlmodel import Field, SQLModel

from jobs.db.models import Documented


class ScheduledRun(Documented, table=True):
    """When to create a run."""

    id: int = Field(default=None, primary_key=True)
    name: str
    trigger: str
    """`date` (when = ISO time), `cron` (when = five fields), or `nightly` (when = five fields)."""
    when: str
    """ISO time or five cron fields."""
    timezone: str = "UTC"
    """Time zone of `when`."""
    config: str = Field(default="", sa_column=Column(Text, nullable=False), exclude=True)
    """YAML of the run; for `nightly`, the id of the run whose newest checkpoint is evaluated, or empty for any run."""
    enabled: bool = True
    """Whether it creates runs."""
    created: float
    last_run: float | None = None
    """When it last created a run, in seconds since 1970, UTC."""
    next_run: float | None = Field(default=None, index=True)
    """When it creates the next run, in seconds since 1970, UTC."""


class JobLog(Documented, table=True):
    """An entry in the scheduler's log."""

    id: int = Field(default=None, primary_key=True)
    time: float = Field(index=True)
    job: str
    """Name of the scheduler's job."""
    outcome: str
    """ran, missed, failed or skipped."""
    detail: str = Field(default="", sa_column=Column(Text, nullable=False))


class Setting(SQLModel, table=True):
    """A named value, e.g. `queue.paused`, `slots.cpu`."""

    name: str = Field(primary_key=True)
    value: str


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
