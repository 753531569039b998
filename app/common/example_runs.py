"""The example runs that come with the program."""

from __future__ import annotations

import shutil
from pathlib import Path

from app.common.context import Context
from jobs.db import settings
from jobs.db.queries import runs
from jobs.ingest.ingester import reindex
from rl2f_core.common.paths import EXAMPLE_RUNS


def add_examples(context: Context, source: Path = EXAMPLE_RUNS, again: bool = False) -> list[int]:
    """Copy the shipped example runs into a new workspace and ingest them; returns their ids.

    Args:
        context: The workspace.
        source: Folder of the example runs.
        again: Add those that were deleted, too.
    """
    was_added = bool(settings.get(context.db, "examples.added", ""))
    if (was_added and not again) or not source.is_dir():
        return []
    folders = []
    for example in sorted(path for path in source.iterdir() if (path / "config.yaml").is_file()):
        folder = context.workspace.folder(example.name)
        if not folder.exists():
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(example, part)
            part.rename(folder)
        folders.append(folder.name)
    reindex(context.db, context.workspace, folders if was_added else ())
    ids = []
    for name in folders:
        run = runs.find(context.db, folder=name)
        if run is not None and run.id is not None:
            runs.update(context.db, run.id, origin="example")
            ids.append(run.id)
    settings.put(context.db, "examples.added", "yes")
    return ids
