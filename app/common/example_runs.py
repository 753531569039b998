"""The example runs that come with the program."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from app.common.context import Context
from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import StoreError
from jobs.db.models import LeakLabel
from jobs.db.queries import runs
from jobs.ingest.ingester import reindex, run_folders
from jobs.labels.sampling import SamplingFrame
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.errors import RL2FError

_log = logging.getLogger(__name__)
LABELS = "labels.json"
"""File in an example with labels of its hints: rows of `LeakLabel` without `run_id`, which is 0 in sampling frames."""


def add_examples(context: Context, source: Path = EXAMPLE_RUNS, again: bool = False) -> list[int]:
    """Copy the shipped example runs into a new workspace and ingest them with their labels; returns their ids.

    Args:
        context: The workspace.
        source: Folder of the example runs.
        again: Add those that were deleted, too.
    """
    was_added = bool(settings.get(context.db, "examples.added", ""))
    if (was_added and not again) or not source.is_dir():
        return []
    folders, new = [], []
    for example in sorted(path for path in source.iterdir() if (path / "config.yaml").is_file()):
        folder = context.workspace.folder(example.name)
        if not folder.exists():
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(example, part)
            part.rename(folder)
            new.append(folder.name)
        folders.append(folder.name)
    if folders:
        reindex(context.db, context.workspace, folders)
    others = [] if was_added else [name for name in run_folders(context.workspace) if name not in folders]
    for name in others:  # e.g. after the database was lost
        try:
            reindex(context.db, context.workspace, [name])
        except StoreError:
            raise
        except (RL2FError, OSError) as error:
            _log.warning("The run in %s could not be read: %s", context.workspace.folder(name), error)
    ids = []
    for name in folders:
        run = runs.find(context.db, folder=name)
        if run is not None and run.id is not None:
            runs.update(context.db, run.id, origin="example")
            if name in new:
                _add_labels(context.db, run.id, context.workspace.folder(name) / LABELS)
            ids.append(run.id)
    settings.put(context.db, "examples.added", "yes")
    return ids


@cache
def example_annotators(source: Path = EXAMPLE_RUNS) -> frozenset[str]:
    """Return the annotators whose labels come with the examples."""
    files = source.glob(f"*/{LABELS}")
    return frozenset(row["annotator"] for file in files for row in json.loads(file.read_text(encoding="utf-8")))


def _add_labels(db: Database, run_id: int, file: Path) -> None:
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    for row in rows:
        row["run_id"] = run_id
        if row.get("sampling_frame"):
            row["sampling_frame"] = replace(SamplingFrame.parse(row["sampling_frame"]), run=run_id).text()
    with db.write() as session:
        session.add_all(map(LeakLabel.model_validate, rows))
