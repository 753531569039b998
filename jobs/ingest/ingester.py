"""From a run's `events.jsonl` to rows: batched, in order, each event once.

The byte offset that was read is kept in the same transaction as the rows, so that nothing is lost or doubled however
often the reader dies. A line that cannot be read is counted and named in the run's log; a last line without its end is
left for the next time. A run's status is not the reader's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session

from jobs import run_kinds
from jobs.db.engine import Database
from jobs.db.errors import StoreError, unknown_run
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.ingest import event_rows
from jobs.workspace import Workspace
from rl2f_core.errors import DataError, RL2FError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, StatusEvent

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
MAX_LOGGED_ERRORS = 20
"""Bad lines of a run that are named in its log; all are counted."""


@dataclass
class _Batch:
    """What was read between two offsets."""

    start: int
    end: int
    lines: int = 0
    """Lines that hold an event."""
    items: list[event_rows.Prepared] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Byte offset of each line that could not be read, and why."""
    restarted: bool = False
    """The file was shorter than what had been read of it."""


def ingest(db: Database, workspace: Workspace, run: Run, limit_bytes: int = 4_000_000) -> int:
    """Read on in a run's event file; returns the number of lines that were read, 0 where there is nothing new.

    Args:
        db: Where rows go.
        workspace: Where the run's folder lies.
        run: Which run; only its number and folder are used.
        limit_bytes: About how much to read; call again while the answer is not 0.

    Raises `UnknownRunError` where the run was deleted, `DataError` where the file cannot be read.
    """
    assert run.id is not None
    offset = runs.get(db, run.id).events_offset
    batch = _read(workspace.folder(run.folder) / "events.jsonl", offset, limit_bytes)
    if batch is None:
        return 0
    with db.write() as session:
        held = session.get(Run, run.id)
        if held is None:
            raise unknown_run(run.id)
        if held.events_offset != offset:  # another reader was quicker: its rows are there, and ours would be the same
            return batch.lines + len(batch.bad)
        _note_what_is_wrong(session, held, batch)
        event_rows.insert_batch(session, held, batch.items)
        held.events_offset = batch.end
    return batch.lines + len(batch.bad)


def _read(path: Path, offset: int, limit: int) -> _Batch | None:
    """Whole lines from `offset` on; None where there is none."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"The event file cannot be opened: {error.strerror}.", value=str(path)) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        restarted = size < offset
        start = 0 if restarted else offset
        file.seek(start)
        data = file.read(max(1, limit))
        if b"\n" not in data:  # one line longer than the limit
            data += file.readline()
    end = data.rfind(b"\n") + 1
    if not end and not restarted:
        return None
    batch = _Batch(start, start + end, restarted=restarted)
    at = start
    for line in data[:end].split(b"\n")[:-1]:
        try:
            item = event_rows.event_to_rows(_parse(line)) if line.strip() else None
            batch.items += [item] if item is not None else []
            batch.lines += 1
        except ValueError as error:  # pydantic's is one
            batch.bad.append((at, _reason(error)))
        at += len(line) + 1
    return batch


def _parse(line: bytes) -> Event:
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        event = _drop_null_metrics(line)
        if event is None:
            raise
        return event


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _drop_null_metrics(line: bytes) -> Event | None:
    """A metric whose undefined numbers (written as null) are left out; None for any other line."""
    if b'"metric"' not in line:
        return None
    try:
        data = json.loads(line)
        data["values"] = {name: value for name, value in data["values"].items() if value is not None}
        return _EVENT.validate_python(data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _note_what_is_wrong(session: Session, run: Run, batch: _Batch) -> None:
    if batch.restarted:
        text = (
            f"The event file became shorter than the {run.events_offset} bytes that were read of it; it is read anew."
        )
        event_rows.add_log(session, run, f"restart:{run.events_offset}", "warning", text, time.time())
    for at, reason in batch.bad[: max(0, MAX_LOGGED_ERRORS - run.invalid_lines)]:
        text = f"A line of the event file was left out: it cannot be read (byte {at}): {reason}"
        event_rows.add_log(session, run, f"bad:{at}", "warning", text[:2000], time.time())
    run.invalid_lines += len(batch.bad)


def reindex(db: Database, workspace: Workspace, folders: tuple[str, ...] | list[str] = ()) -> list[int]:
    """Rebuild everything that events carry from the runs' folders; labels, notes and tags stay.

    Args:
        db: What is rebuilt.
        workspace: Where the folders lie.
        folders: Names below the workspace's `runs/`; by default all. A folder that has no row becomes a run.

    Returns the numbers of the runs that were rebuilt or added. A run whose folder is gone stays as it is.
    Raises, after all others were done, `RunError` where a named folder holds no run, `ConfigError` or `DataError` where
    one cannot be read.
    """
    done: list[int] = []
    wrong: RL2FError | None = None
    for name in list(folders) or run_folders(workspace):
        try:
            done += _reindex_one(db, workspace, name)
        except StoreError:
            raise
        except RL2FError as error:  # one folder that cannot be read keeps none of the others back
            wrong = wrong or error
    if wrong is not None:
        raise wrong
    return done


def _reindex_one(db: Database, workspace: Workspace, name: str) -> list[int]:
    plain = Path(name).name == name and name != ".."
    if not plain or not (workspace.folder(name) / "config.yaml").is_file():
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
    """The names below `runs/` that hold a run."""
    return sorted(path.parent.name for path in workspace.runs.glob("*/config.yaml"))


def _rebuild(db: Database, workspace: Workspace, run: Run) -> None:
    with db.write() as session:
        held = session.get(Run, run.id)
        if held is None:
            raise unknown_run(run.id)
        runs.forget_events(session, held.id)  # type: ignore[arg-type]
        held.events_offset, held.invalid_lines, held.done, held.reward, held.tokens_per_second = 0, 0, 0.0, None, None
        session.add_all(runs.planned_stages(held))
    while ingest(db, workspace, run):
        pass


def import_run(db: Database, workspace: Workspace, folder: str, origin: str = "imported") -> Run | None:
    """Make a row for a run's folder that has none, and read its events; None where another process runs it just now.

    Its status is the last that the run itself noted; one that it never ended is `interrupted`.
    """
    run_kinds.load()  # its configuration may be of a kind that the core does not know
    run_dir = RunDir.open(workspace.folder(folder))
    try:
        with run_dir.lock():
            pass
    except RunError:
        return None
    events = run_dir.events_path
    said = _statuses(events)
    status = said[-1].status if said else "stopped"
    ended = said[-1].time if said else None
    row = runs.of_config(
        run_dir.config(),
        run_dir.config_path.read_text(encoding="utf-8"),
        folder,
        origin=origin,
        status=status if status in ("succeeded", "failed", "stopped") else "interrupted",
        detail=said[-1].detail if said else "It was never started.",
        created=said[0].time if said else run_dir.config_path.stat().st_mtime,
        started=said[0].time if said else None,
        ended=ended,
        sessions=sum(event.status == "running" for event in said),
    )
    run = runs.add(db, row)
    while ingest(db, workspace, run):
        pass
    assert run.id is not None
    return runs.get(db, run.id)


def _statuses(path: Path) -> list[StatusEvent]:
    """The status events of a file."""
    if not path.is_file():
        return []
    found = []
    with open(path, "rb") as file:
        for line in file:
            if b'"type":"status"' in line.replace(b" ", b"")[:400]:
                with contextlib.suppress(ValueError):
                    event = _parse(line)
                    found += [event] if isinstance(event, StatusEvent) else []
    return found
