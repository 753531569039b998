"""Store each dialogue as one record, and a rescore's report on a hint once."""

from __future__ import annotations

from alembic import op

from jobs.db.schema import rebuild_event_tables

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Replace the tables of dialogues; their events are read again from the run folders."""
    for table in ("rewardterm", "leakfinding", "leakscore", "rescorefinding", "rescoredrun"):
        op.drop_table(table)
    rebuild_event_tables(op.get_bind())
