"""Sources by the names that people give them: numbers of the studio's runs, or folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.export.sources import Source, StudioSource
from rl2f_core.errors import RunError

if TYPE_CHECKING:
    from jobs.database import Database
    from jobs.studio import Studio


@contextmanager
def open_studio(root: str | Path | None = None, *, read_only: bool = True) -> Iterator[tuple[Studio, Database]]:
    """The studio in a folder with its database, opened for reading alone unless it is to be written.

    Raises `RunError` where there is no studio.
    """
    import os

    from jobs.database import Database
    from jobs.studio import Studio

    studio = Studio(root)
    if not studio.database.is_file() and not os.environ.get("RL2F_DATABASE_URL"):
        raise RunError(
            "There is no studio in this folder.",
            value=str(studio.root),
            fix="Name the studio's folder (RL2F_STUDIO or --studio), or name runs by their folders.",
        )
    db = Database(studio.database_url(), read_only=read_only)
    try:
        yield studio, db
    finally:
        db.close()


def studio_sources(db: Database, studio: Studio, runs: Sequence[int]) -> list[Source]:
    """One source a run, each run once; raises `RunError` for a run that does not exist."""
    from jobs.store import runs as store

    return [StudioSource(db, studio, store.get(db, number)) for number in dict.fromkeys(runs)]
