"""Allow turns without a verdict, and turns and dialogues without a reward."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the columns nullable; add the outcomes to an index, which counts the unsolved dialogues with a verdict."""
    for table, columns in (("turn", ("correct", "reward")), ("dialogue", ("reward",))):
        with op.batch_alter_table(table) as batch:
            for name in columns:
                batch.alter_column(name, existing_type=sa.Boolean() if name == "correct" else sa.Float(), nullable=True)
    op.drop_index("ix_dialogue_run_solved", "dialogue")
    op.create_index("ix_dialogue_run_solved", "dialogue", ["run_id", "solved_at", "id", "outcomes"])
