"""A workspace that is made once and copied for each test that changes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.db.engine import Database
from jobs.workspace import Workspace


@contextmanager
def opened(workspace: Workspace, empty: bytes) -> Iterator[Database]:
    """The database of a workspace, by default the empty one; it is closed at the end."""
    if not workspace.database.exists():
        workspace.database.write_bytes(empty)
    database = Database(workspace.database_url())
    try:
        yield database
    finally:
        database.close()


def copied(source: Workspace, folder: Path) -> Workspace:
    """A copy of a workspace whose database is closed."""
    shutil.copytree(source.root, folder)
    return Workspace(folder)
