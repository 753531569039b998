"""`rl2f reindex`: rebuild what events carry from the runs' folders; what people added stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reindex(
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER…", help="Names below the studio's runs/; by default all.")
    ] = None,
    studio: Annotated[Path | None, typer.Option(help="The studio's folder; else RL2F_STUDIO, else ./studio.")] = None,
) -> None:
    """Read all events of the studio's runs anew into its database, and add run folders that it does not know.

    Labels, notes, tags, chats and schedules are kept. May be used while the studio runs.
    """
    import time

    from app.console import err, fail, out
    from jobs import ingest
    from jobs.database import Database
    from jobs.errors import StoreError
    from jobs.store import runs
    from jobs.studio import Studio
    from rl2f_core.errors import RL2FError

    place = Studio(studio).create()
    db = Database(place.database_url())
    try:
        db.migrate()
        begun, count, wrong = time.monotonic(), 0, 0
        for name in folders or ingest.run_folders(place):
            before = runs.find(db, folder=name)
            try:
                done = ingest.reindex(db, place, [name])
            except StoreError:
                raise
            except RL2FError as error:
                wrong += 1
                fail(f"{name}: {error}")
                continue
            if not done:
                err().print(f"{name}: another process runs it just now; it was not added", markup=False)
                continue
            run = runs.get(db, done[0])
            count += 1
            what = "rebuilt" if before is not None else f"added as run {run.id}"
            bad = f", {run.bad_lines} lines left out" if run.bad_lines else ""
            out().print(f"{name}: {what}, {run.offset:,} bytes of events{bad}", markup=False)
        err().print(f"{count} runs in {time.monotonic() - begun:.1f} s", markup=False)
        if wrong:
            raise typer.Exit(2)
    finally:
        db.close()
