"""Alembic environment: run revisions on the connection of `schema.upgrade`, or on RL2F_DATABASE_URL."""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context

from jobs.db import schema


def _run(connection: sa.Connection) -> None:
    context.configure(connection=connection, target_metadata=schema.MODELS, **schema.COMPARISON)
    with context.begin_transaction():
        context.run_migrations()


shared: sa.Connection | None = context.config.attributes.get("connection")
if shared is not None:
    _run(shared)
else:
    with sa.create_engine(os.environ["RL2F_DATABASE_URL"]).begin() as connection:
        _run(connection)
