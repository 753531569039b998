"""Atomic creation and deletion of run directories.

A new directory is filled below `runs/.staged`, and renamed inside the transaction that adds the run's row. Until the
commit it contains a marker that names its process; `complete_staged` uses the marker after a crash. A deleted directory
is renamed into the trash, which retention clears.
"""

from __future__ import annotations

import calendar
import contextlib
import itertools
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection
from pathlib import Path

import psutil

from jobs.workspace import Workspace
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RunError
from rl2f_core.run.directory import RunDir

STAGED = ".staged"
"""Directory below the workspace's `runs/` with unnamed run directories."""
STAGED_MARKER = ".staged.json"
"""File in a run directory whose row may not be committed."""
_TRASHED = re.compile(r"(\d{8}-\d{6})-(.+)")
STAMP = "%Y%m%d-%H%M%S"


def slug(name: str) -> str:
    """Return a run's name in a form for directory names."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"


def create_staged(workspace: Workspace, config: BaseRun) -> Path:
    """Create an unnamed run directory with its config."""
    folder = workspace.runs / STAGED / uuid.uuid4().hex
    try:
        folder.mkdir(parents=True)
        process = psutil.Process()
        (folder / STAGED_MARKER).write_text(json.dumps({"pid": process.pid, "started": process.create_time()}))
        RunDir.create(folder, config)
    except BaseException as error:
        rollback(folder)
        if isinstance(error, OSError):
            raise _not_created(error, workspace.runs) from error
        raise
    return folder


def publish(workspace: Workspace, staged: Path, name: str) -> Path:
    """Rename a staged directory, with a number appended if the name is taken. The marker remains."""
    target = unused(workspace.runs, name, "-")
    try:
        os.rename(staged, target)
    except OSError as error:
        raise _not_created(error, target) from error
    return target


def _not_created(error: OSError, path: Path) -> RunError:
    return RunError(f"The run directory cannot be created: {error.strerror}.", value=str(path))


def unused(parent: Path, name: str, separator: str) -> Path:
    """Return a path that does not exist: the name, or the name with a number from 2."""
    names = itertools.chain([name], (f"{name}{separator}{number}" for number in itertools.count(2)))
    return next(path for path in (parent / candidate for candidate in names) if not os.path.lexists(path))


def confirm(folder: Path) -> None:
    """Remove the marker after the commit of the run's row."""
    with contextlib.suppress(OSError):  # `complete_staged` removes a remaining marker
        (folder / STAGED_MARKER).unlink(missing_ok=True)


def rollback(folder: Path) -> None:
    """Remove the directory of a run whose row was not committed."""
    shutil.rmtree(folder, ignore_errors=True)


def move_to_trash(workspace: Workspace, name: str) -> Path | None:
    """Move a run directory to the trash; returns None if there is none."""
    folder = workspace.folder(name)
    if not folder.is_dir():
        return None
    workspace.trash.mkdir(parents=True, exist_ok=True)
    target = unused(workspace.trash, f"{time.strftime(STAMP, time.gmtime())}-{name}", ".")
    try:
        os.rename(folder, target)
    except OSError as error:
        raise RunError(f"The run cannot be moved to the trash: {error.strerror}.", value=str(folder)) from error
    return target


def restore(workspace: Workspace, trashed: Path, name: str) -> None:
    """Move a directory from the trash back to the runs."""
    with contextlib.suppress(OSError):
        os.rename(trashed, workspace.folder(name))


def list_trash(workspace: Workspace) -> dict[str, float]:
    """Return the deletion time of each entry of the trash, seconds since 1970."""
    times = {}
    for entry in workspace.trash.iterdir() if workspace.trash.is_dir() else ():
        times[entry.name] = entry.lstat().st_mtime
        if match := _TRASHED.fullmatch(entry.name):
            with contextlib.suppress(ValueError):
                times[entry.name] = float(calendar.timegm(time.strptime(match[1], STAMP)))
    return times


def was_trashed(workspace: Workspace, name: str) -> bool:
    """Return whether the trash has a run directory of this name."""
    matches = (_TRASHED.fullmatch(entry) for entry in list_trash(workspace))
    return any(match and re.fullmatch(re.escape(name) + r"(\.\d+)?", match[2]) for match in matches)


def complete_staged(workspace: Workspace, known: Collection[str]) -> list[str]:
    """Confirm or remove the marked directories of dead processes; returns the removed ones.

    Args:
        known: The directories that have a row.
    """
    removed = []
    published = [path for path in _list_dirs(workspace.runs) if (path / STAGED_MARKER).is_file()]
    for folder in [*_list_dirs(workspace.runs / STAGED), *published]:
        if _is_maker_alive(folder):
            continue
        if folder in published and folder.name in known:
            confirm(folder)
        else:
            rollback(folder)
            removed.append(folder.name)
    return removed


def _list_dirs(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []


def _is_maker_alive(folder: Path) -> bool:
    try:
        marker = json.loads((folder / STAGED_MARKER).read_text())
        return abs(psutil.Process(int(marker["pid"])).create_time() - float(marker["started"])) <= 1.0
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return False
