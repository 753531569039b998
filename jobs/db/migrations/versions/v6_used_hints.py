"""Store task, used bits and tokens of each dialogue in its row, so that lists can filter and order by them."""

from __future__ import annotations

from alembic import op

from jobs.db.schema import rebuild_event_tables

revision = "6"
down_revision = "5"


def upgrade() -> None:
    """Replace the tables of dialogues; their events are read again from the run folders."""
    rebuild_event_tables(op.get_bind())
