"""Allow turns without a verdict, and turns and dialogues without a reward."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the columns nullable."""
    for table, columns in (("turn", ("correct", "reward")), ("dialogue", ("reward",))):
        with op.batch_alter_table(table) as batch:
            for name in columns:
                batch.alter_column(name, existing_type=sa.Boolean() if name == "correct" else sa.Float(), nullable=True)
