"""The initial schema; databases are now created from the models (`jobs.db.schema`)."""

from __future__ import annotations

revision = "1"
down_revision = None


def upgrade() -> None:
    """Fail: `jobs.db.schema.upgrade` creates the schema of an empty database."""
    raise NotImplementedError("Open the workspace with rl2f, which creates the database.")
