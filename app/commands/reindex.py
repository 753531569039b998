"""`rl2f reindex`: rebuild what events carry from the runs' folders; what people added stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reindex(
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER…", help="Names below the workspace's runs/; by default all.")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="The workspace's folder; else RL2F_WORKSPACE, else ./workspace.")
    ] = None,
) -> None:
    """Read all events of the workspace's runs anew into its database, and add run folders that it does not know.

    Labels, notes, tags, chats and schedules are kept. May be used while the studio runs.
    """
    import time

    from app.common.console import err, fail, out
    from jobs.db.engine import Database
    from jobs.db.errors import StoreError
    from jobs.db.queries import runs
    from jobs.ingest import ingester
    from jobs.workspace import Workspace
    from rl2f_core.errors import RL2FError

    place = Workspace(workspace).create()
    db = Database(place.database_url())
    try:
        db.migrate()
        begun, count, wrong = time.monotonic(), 0, 0
        for name in folders or ingester.run_folders(place):
            before = runs.find(db, folder=name)
            try:
                done = ingester.reindex(db, place, [name])
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
            bad = f", {run.invalid_lines} lines left out" if run.invalid_lines else ""
            out().print(f"{name}: {what}, {run.events_offset:,} bytes of events{bad}", markup=False)
        err().print(f"{count} runs in {time.monotonic() - begun:.1f} s", markup=False)
        if wrong:
            raise typer.Exit(2)
    finally:
        db.close()
