"""Deleted runs: what the database had about them is in their directory in the trash, so they can be restored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlmodel import Session, SQLModel

from jobs.db.columns import table_of
from jobs.db.engine import Database
from jobs.db.errors import UnknownRunError
from jobs.db.models import LeakLabel, Note, OpenedHint, Run, Tag
from jobs.db.queries import runs
from jobs.queue import run_dirs
from jobs.workspace import Workspace
from rl2f_core.common.file_io import checked_path
from rl2f_core.errors import RunError
from rl2f_core.types import FrozenModel

RECORD = ".deleted.json"
"""File in a run directory with the rows that only the database had."""
ENTERED: tuple[type[SQLModel], ...] = (LeakLabel, OpenedHint, Note, Tag)
"""Tables of what people entered about a run."""
REBUILT = {"position", "pid", "pid_started", "worker_location", "events_offset", "invalid_lines"}


class DeletedRun(FrozenModel):
    """A run in the trash."""

    run: int
    """Its number, which it has again when it is restored."""
    name: str
    kind: str
    """Kind of the run, e.g. `train`."""
    environment: str
    method: str
    """Method of the last stage."""
    status: str
    origin: str
    """app, cli, example, imported, or `schedule:ID`."""
    deleted: float
    """When it was deleted, in seconds since 1970, UTC."""
    labels: int
    """Number of its leak labels."""
    notes: int
    """Number of notes on it and its dialogues."""
    tags: list[str]
    """Its tags."""


def write_record(session: Session, run: Run, folder: Path) -> None:
    """Write the rows of a run that its events do not contain into its directory."""
    rows: dict[str, Any] = {"run": run.model_dump(mode="json", exclude=REBUILT, by_alias=False)}
    for model in ENTERED:
        of_run = session.scalars(select(model).where(table_of(model).c.run_id == run.id))
        rows[model.__name__] = [row.model_dump(mode="json", exclude={"id"}, by_alias=False) for row in of_run]
    (folder / RECORD).write_text(json.dumps(rows), encoding="utf-8")


def deleted_runs(workspace: Workspace) -> list[DeletedRun]:
    """Return the runs in the trash that can be restored, the last deleted first."""
    found = [_read(workspace.trash / name, time) for name, time in run_dirs.list_trash(workspace).items()]
    return sorted((item for item in found if item is not None), key=lambda item: -item.deleted)


def _read(folder: Path, time: float) -> DeletedRun | None:
    """Return the run of a directory; None for one without a readable record."""
    try:
        rows = json.loads(checked_path(folder, RECORD).read_text(encoding="utf-8"))
        shown = {name: rows["run"][name] for name in ("name", "kind", "environment", "method", "status", "origin")}
        counts = {"labels": len(rows["LeakLabel"]), "notes": len(rows["Note"])}
        tags = [row["tag"] for row in rows["Tag"]]
        return DeletedRun(run=rows["run"]["id"], deleted=time, tags=tags, **shown, **counts)
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def restore(db: Database, workspace: Workspace, run_id: int) -> Run:
    """Move a run out of the trash and store its rows again; its events are read afterwards.

    Its directory gets another name if a new run has its name. Raises `UnknownRunError` if the trash has no such run,
    `RunError` if a run has its number.
    """
    times = run_dirs.list_trash(workspace)
    entries = [name for name in sorted(times, key=lambda name: -times[name]) if _is_run(workspace, name, run_id)]
    if not entries:
        known: Sequence[str] = [str(item.run) for item in deleted_runs(workspace)]
        fix = "The trash is emptied after the days of the setting retention.trash_days."
        raise UnknownRunError(f"Run {run_id} is not in the trash.", value=run_id, known=known, fix=fix)
    trashed = workspace.trash / entries[0]
    rows = json.loads(checked_path(trashed, RECORD).read_text(encoding="utf-8"))
    run = Run.model_validate(rows["run"])
    target = run_dirs.unused(workspace.runs, run.folder, "-")
    run.folder = target.name
    moved = False
    try:
        with db.write() as session:
            if session.get(Run, run_id) is not None:
                raise RunError(f"Run {run_id} exists already.", value=run_id, fix="Reload the page.")
            runs.add_in_session(session, run)
            for model in ENTERED:
                session.add_all(model.model_validate(row) for row in rows[model.__name__])
            trashed.rename(target)
            moved = True
    except BaseException:
        if moved:
            target.rename(trashed)
        raise
    (target / RECORD).unlink(missing_ok=True)
    return run


def _is_run(workspace: Workspace, name: str, run_id: int) -> bool:
    item = _read(workspace.trash / name, 0.0)
    return item is not None and item.run == run_id
