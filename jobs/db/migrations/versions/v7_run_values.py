"""Store settings and newest metrics of runs by name, and the key that the seeds of a configuration share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from jobs.db.queries.run_values import index_config, index_metrics

revision = "7"
down_revision = "6"


def upgrade() -> None:
    """Add the table, and fill it from configurations and stored metrics."""
    op.create_table(
        "runvalue",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("number", sa.Float),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("is_setting", sa.Boolean, nullable=False),
    )
    op.create_index("ix_runvalue_name", "runvalue", ["name", "is_setting"])
    op.add_column("run", sa.Column("group_key", sa.String, nullable=False, server_default=""))
    connection = op.get_bind()
    for run_id, config in connection.execute(sa.text("SELECT id, config FROM run")).all():
        key = index_config(connection, run_id, config)
        connection.execute(sa.text("UPDATE run SET group_key = :key WHERE id = :id"), {"key": key, "id": run_id})
        index_metrics(connection, run_id)
