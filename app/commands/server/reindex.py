"""`rl2f reindex`: rebuild what events contain from the runs' folders; labels and notes remain."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from app.commands.options import Root, migrated
from app.common.console import err, fail, out
from rl2f_core.errors import RL2FError


def reindex(
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER…", help="Names below the workspace's runs/; by default all.")
    ] = None,
    workspace: Root = None,
) -> None:
    """Ingest all events of the workspace's runs into its database again, and add unknown run folders.

    Labels, notes, tags, chats and schedules are kept. The studio may run at the same time.
    """
    from jobs.db.errors import StoreError
    from jobs.db.queries import runs
    from jobs.ingest import ingester

    with migrated(workspace) as (opened, db):
        start, num_done, num_failed = time.monotonic(), 0, 0
        for name in folders or ingester.run_folders(opened):
            is_known = runs.find(db, folder=name) is not None
            try:
                ids = ingester.reindex(db, opened, [name])
            except StoreError:
                raise
            except RL2FError as error:
                num_failed += 1
                fail(f"{name}: {error}")
                continue
            if not ids:
                err().print(f"{name}: skipped, because another process executes this run", markup=False)
                continue
            run = runs.get(db, ids[0])
            num_done += 1
            action = "rebuilt" if is_known else f"added as run {run.id}"
            skipped = f", invalid lines: {run.invalid_lines}" if run.invalid_lines else ""
            out().print(f"{name}: {action}, {run.events_offset:,} bytes of events{skipped}", markup=False)
        err().print(f"Reindexed runs: {num_done}, in {time.monotonic() - start:.1f} s.", markup=False)
    if num_failed:
        raise typer.Exit(2)
