"""Compute again which runs are seeds of one configuration, and the hint effects, paired over tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from jobs.db.queries.run_values import index_config, index_metrics

revision = "8"
down_revision = "7"


def upgrade() -> None:
    """Update the keys of configurations and the stored values of runs."""
    connection = op.get_bind()
    for run_id, config in connection.execute(sa.text("SELECT id, config FROM run")).all():
        key = index_config(connection, run_id, config)
        connection.execute(sa.text("UPDATE run SET group_key = :key WHERE id = :id"), {"key": key, "id": run_id})
        index_metrics(connection, run_id)
