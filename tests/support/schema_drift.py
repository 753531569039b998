"""The difference between the schema of a database and the models."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from jobs.db import schema
from jobs.db.engine import Database


def schema_drift(db: Database) -> list[object]:
    """Return the differences between the database's schema and the models."""
    with db._reader.connect() as connection:
        context = MigrationContext.configure(connection, opts=schema.COMPARISON)
        return list(compare_metadata(context, schema.MODELS))
