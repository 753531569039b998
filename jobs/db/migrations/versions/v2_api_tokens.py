"""Add API tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the table of API tokens."""
    op.create_table(
        "apitoken",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("name", "digest", "scopes")),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("last_used", sa.Float),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("digest"),
    )
