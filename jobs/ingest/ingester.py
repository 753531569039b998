"""Ingestion of a run's `events.jsonl`: in batches, in order, each event once.

The byte offset is committed together with the rows, so a crash loses or duplicates nothing. Invalid lines are counted
and logged; an incomplete last line is read the next time. The status of a run is not ingested.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session

from jobs import run_kinds
from jobs.db.engine import Database
from jobs.db.errors import StoreError
from jobs.db.models import Run
from jobs.db.queries import run_queue, runs
from jobs.ingest import event_rows
from jobs.workspace import Workspace
from rl2f_core.common.file_io import checked_path
from rl2f_core.config.loading import load_config
from rl2f_core.errors import DataError, RL2FError, RunError, stored_settings
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, StatusEvent, read_events

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
MAX_LOGGED_ERRORS = 20
"""Maximum number of invalid lines in a run's log; all are counted."""


@dataclass
class _Batch:
    """The lines between two offsets."""

    end: int
    """Offset after the last line."""
    truncated: bool
    """The file is shorter than the ingested bytes."""
    lines: int = 0
    """Number of lines."""
    items: list[event_rows.Prepared] = field(default_factory=list)
    invalid: list[tuple[int, str]] = field(default_factory=list)
    """Byte offset and error of each invalid line."""


def ingest(db: Database, workspace: Workspace, run: Run, limit_bytes: int = 1_000_000) -> int:
    """Ingest the next lines of a run's event file; return their number, 0 at the end of the file.

    Args:
        db: The database.
        workspace: The workspace of the run directory.
        run: The run; only its id and folder are used.
        limit_bytes: Approximate maximum number of bytes, which take several times as much memory; call again
            until the result is 0.

    Raises `UnknownRunError` if the run was deleted, and `DataError` if the file cannot be read.
    """
    assert run.id is not None
    offset = runs.get(db, run.id).events_offset
    batch = _read(checked_path(workspace.folder(run.folder), "events.jsonl"), offset, limit_bytes)
    if batch is None:
        return 0
    with db.write() as session:
        row = run_queue.get_for_update(session, run.id)
        if row.events_offset == offset:  # otherwise, another process has ingested these lines
            _log_errors(session, row, batch)
            event_rows.insert_batch(session, row, batch.items)
            row.events_offset = batch.end
    return batch.lines


def _read(path: Path, offset: int, limit: int) -> _Batch | None:
    """Read complete lines from `offset` on; None if there are none."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"The event file cannot be opened: {error.strerror}.", value=str(path)) from error
    with file:
        truncated = os.fstat(file.fileno()).st_size < offset
        at = 0 if truncated else offset
        file.seek(at)
        data = file.read(max(1, limit))
        if b"\n" not in data:  # one line longer than the limit
            data += file.readline()
    end = data.rfind(b"\n") + 1
    if not end and not truncated:
        return None
    batch = _Batch(at + end, truncated)
    for line in data[:end].split(b"\n")[:-1]:
        batch.lines += 1
        try:
            item = event_rows.event_to_rows(_EVENT.validate_json(line)) if line.strip() else None
            batch.items += [item] if item is not None else []
        except ValueError as error:  # includes pydantic's ValidationError
            batch.invalid.append((at, invalid_reason(error)))
        at += len(line) + 1
    return batch


def invalid_reason(error: ValueError) -> str:
    """Return the message of an error; of a validation error, the first invalid field and its message."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _log_errors(session: Session, run: Run, batch: _Batch) -> None:
    if batch.truncated:
        text = f"The event file is shorter than the {run.events_offset} bytes that were read; it is read again."
        event_rows.add_log(session, run, f"restart:{run.events_offset}", "warning", text, time.time())
    for at, reason in batch.invalid[: max(0, MAX_LOGGED_ERRORS - run.invalid_lines)]:
        text = f"Skipped an invalid line of the event file (byte {at}): {reason}"
        event_rows.add_log(session, run, f"bad:{at}", "warning", text[:2000], time.time())
    run.invalid_lines += len(batch.invalid)


def reindex(db: Database, workspace: Workspace, folders: Sequence[str] = ()) -> list[int]:
    """Rebuild the rows of events from the run directories; labels, notes and tags remain.

    Args:
        db: The database.
        workspace: The workspace of the run directories.
        folders: Names below the workspace's `runs/`; all by default. Directories without a run are imported.

    Returns the ids of the rebuilt and imported runs. Runs without a directory are not changed.
    Raises, after all other directories, `RunError` if a directory contains no run, and `ConfigError` or `DataError` if
    one cannot be read.
    """
    ids: list[int] = []
    first_error: RL2FError | None = None
    for name in folders or run_folders(workspace):
        try:
            ids += _reindex_one(db, workspace, name)
        except StoreError:
            raise
        except RL2FError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return ids


def _reindex_one(db: Database, workspace: Workspace, name: str) -> list[int]:
    is_name = Path(name).name == name and name != ".."
    if not is_name or not _is_run(workspace.folder(name)):
        raise RunError(
            "The folder contains no run.",
            value=name,
            known=run_folders(workspace)[:20],
            fix=f"Name a folder below {workspace.runs}.",
        )
    run = runs.find(db, folder=name)
    if run is None:
        run = import_run(db, workspace, name)
    else:
        _rebuild(db, workspace, run)
    return [run.id] if run is not None and run.id is not None else []


def run_folders(workspace: Workspace) -> list[str]:
    """Return the names of all run directories below `runs/`, sorted."""
    return sorted(path.name for path in workspace.runs.iterdir() if _is_run(path))


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or RunDir(folder).is_chat


def _rebuild(db: Database, workspace: Workspace, run: Run) -> None:
    run_id = run.id or 0
    with db.write() as session:
        row = run_queue.get_for_update(session, run_id)
        runs.forget_events(session, run_id)
        row.events_offset, row.invalid_lines, row.done, row.reward, row.tokens_per_second = 0, 0, 0.0, None, None
        session.add_all(runs.planned_stages(row))
    while ingest(db, workspace, run):
        pass


def ingest_pending(db: Database, workspace: Workspace) -> None:
    """Ingest the events of ended runs that are not in the database, e.g. after an upgrade of its schema.

    A server does the same in the background (`jobs.queue.queue.Queue.recover`).
    """
    for run in run_queue.ended(db):
        with contextlib.suppress(DataError):  # `rl2f reindex` reports a file that cannot be read
            while ingest(db, workspace, run):
                pass


def import_run(db: Database, workspace: Workspace, folder: str, origin: str = "imported") -> Run | None:
    """Add a run directory without a run to the database; None while another process executes the run.

    The run gets its last recorded status, or `interrupted` if it never ended.
    """
    run_kinds.load()  # the configuration may have a kind that the core does not know
    run_dir = RunDir.open(workspace.folder(folder), needs_config=False)
    try:
        with run_dir.lock():
            pass
    except RunError:
        return None
    row = _configured_run(run_dir, origin) if run_dir.config_path.is_file() else chat_run(run_dir)
    run = runs.add(db, row)
    while ingest(db, workspace, run):
        pass
    return runs.get(db, run.id or 0)


def chat_run(run_dir: RunDir) -> Run:
    """Return the row of a run without a configuration: dialogues of interactive tasks."""
    created = float(run_dir.meta().get("created", time.time()))
    return Run(
        name="Chat", kind="chat", detail="Dialogues of interactive tasks.", folder=run_dir.path.name,
        status="succeeded", origin="app", device="none", created=created, started=created, ended=created,
    )  # fmt: skip


def _configured_run(run_dir: RunDir, origin: str) -> Run:
    events = read_events(run_dir.events_path, having=b'"status"') if run_dir.events_path.is_file() else ()
    statuses = [event for event in events if isinstance(event, StatusEvent)]
    with stored_settings():
        config = load_config(run_dir.config_path)
    row = runs.of_config(
        config,
        run_dir.config_path.read_text(encoding="utf-8"),
        run_dir.path.name,
        origin=origin,
        status="stopped",
        detail="It was never started.",
        created=run_dir.config_path.stat().st_mtime,
        sessions=sum(event.status == "running" for event in statuses),
    )
    if statuses:
        first, last = statuses[0], statuses[-1]
        row.created = row.started = first.time
        row.ended, row.detail = last.time, last.detail
        row.status = last.status if last.status in ("succeeded", "failed", "stopped") else "interrupted"
    return row
