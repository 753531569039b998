"""Never use the id of a deleted row again."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Number the rows of SQLite by its counter, as PostgreSQL does; start after all runs of the audit log."""
    if op.get_bind().dialect.name != "sqlite":
        return
    for table in ("run", "note", "chat", "chatmessage", "scheduledrun", "apitoken"):
        with op.batch_alter_table(table, recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
    entries = op.get_bind().execute(sa.text("SELECT arguments || ' ' || detail FROM auditentry")).scalars()
    runs = [int(number) for text in entries for number in re.findall(r"\brun(?:_id=| )(\d{1,9})\b", text)]
    last = op.get_bind().execute(sa.text("SELECT max(id) FROM run")).scalar() or 0
    op.execute("DELETE FROM sqlite_sequence WHERE name = 'run'")
    op.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('run', {max([last, *runs])})")
