"""Open a workspace, and the sources of its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.export.datasets.sources import Source, WorkspaceSource
from rl2f_core.errors import RunError

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.workspace import Workspace


@contextmanager
def open_workspace(root: str | Path | None = None, *, read_only: bool = True) -> Iterator[tuple[Workspace, Database]]:
    """Open the workspace of a directory and its database; raises `RunError` if it does not exist.

    Raises `StoreVersionError` for an older or newer schema if the database is only read.
    """
    from jobs.db.engine import Database
    from jobs.workspace import Workspace

    workspace = Workspace(root)
    if not workspace.database.is_file() and not os.environ.get("RL2F_DATABASE_URL"):
        raise RunError(
            "There is no workspace in this folder.",
            value=str(workspace.root),
            fix="Name the workspace's folder (RL2F_WORKSPACE or --workspace), or name runs by their folders.",
        )
    db = Database(workspace.database_url(), read_only=read_only)
    try:
        if read_only:
            db.migrate()  # checks the version of the schema
        yield workspace, db
    finally:
        db.close()


def workspace_sources(db: Database, workspace: Workspace, runs: Sequence[int]) -> list[Source]:
    """Return one source per distinct run; raises `UnknownRunError`."""
    from jobs.db.queries.runs import get

    return [WorkspaceSource(db, workspace, get(db, number)) for number in dict.fromkeys(runs)]
