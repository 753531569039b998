"""Run folders that appear whole and go whole, whatever dies in between.

A new folder is filled in a place where nobody looks for runs, and gets its own name inside the transaction that makes
the run's row. Until that is kept, the folder holds a mark that names its maker; `sweep` tells from it what to finish.
A deleted folder goes to the trash by one rename, from where retention takes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection
from pathlib import Path

import psutil

from jobs.studio import Studio
from rl2f_core.config import BaseRun
from rl2f_core.errors import RunError
from rl2f_core.run import RunDir

STAGED = ".staged"
"""Below the studio's `runs/`: folders that have no name yet."""
MARK = ".staged.json"
"""File in a folder whose row may not have been kept."""
_TRASHED = re.compile(r"(\d{8}-\d{6})-(.+)")
STAMP = "%Y%m%d-%H%M%S"


def slug(name: str) -> str:
    """A run's name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"


def stage(studio: Studio, config: BaseRun) -> Path:
    """A folder with the run's config, under a name that no run has."""
    folder = studio.runs / STAGED / uuid.uuid4().hex
    try:
        folder.mkdir(parents=True)
        own = psutil.Process()
        (folder / MARK).write_text(json.dumps({"pid": own.pid, "started": own.create_time()}))
        RunDir.create(folder, config)
    except OSError as error:
        discard(folder)
        raise RunError(f"The run's folder cannot be made: {error.strerror}.", value=str(studio.runs)) from error
    except BaseException:
        discard(folder)
        raise
    return folder


def place(studio: Studio, staged: Path, name: str) -> Path:
    """Give a staged folder its own name, with a number after it where that is taken. It keeps its mark."""
    target, number = studio.folder(name), 2
    while os.path.lexists(target):
        target, number = studio.folder(f"{name}-{number}"), number + 1
    try:
        os.rename(staged, target)
    except OSError as error:
        raise RunError(f"The run's folder cannot be made: {error.strerror}.", value=str(target)) from error
    return target


def accept(folder: Path) -> None:
    """The run's row is kept: the folder is the run's."""
    with contextlib.suppress(OSError):  # a mark that stays is taken away by the next sweep
        (folder / MARK).unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """The run's row was not kept: remove what was made for it."""
    shutil.rmtree(folder, ignore_errors=True)


def to_trash(studio: Studio, name: str) -> Path | None:
    """Move a run's folder to the trash; None where there is no folder."""
    folder = studio.folder(name)
    if not folder.is_dir():
        return None
    studio.trash.mkdir(parents=True, exist_ok=True)
    stamp, number = time.strftime(STAMP, time.gmtime()), 2
    target = studio.trash / f"{stamp}-{name}"
    while target.exists():
        target, number = studio.trash / f"{stamp}-{name}.{number}", number + 1
    try:
        os.rename(folder, target)
    except OSError as error:
        raise RunError(f"The run cannot be moved to the trash: {error.strerror}.", value=str(folder)) from error
    return target


def from_trash(studio: Studio, trashed: Path, name: str) -> None:
    """Take a move to the trash back."""
    with contextlib.suppress(OSError):
        os.rename(trashed, studio.folder(name))


def in_trash(studio: Studio) -> dict[str, float]:
    """When each entry of the trash was put there, seconds since 1970."""
    found = {}
    for entry in studio.trash.iterdir() if studio.trash.is_dir() else ():
        match = _TRASHED.fullmatch(entry.name)
        try:
            stamp = time.strptime(f"{match[1]} UTC", f"{STAMP} %Z") if match else None
        except ValueError:
            stamp = None
        found[entry.name] = _utc(stamp) if stamp else entry.lstat().st_mtime
    return found


def was_trashed(studio: Studio, name: str) -> bool:
    """Whether a run's folder of this name lies in the trash."""
    there = (_TRASHED.fullmatch(entry) for entry in in_trash(studio))
    return any(match and re.fullmatch(re.escape(name) + r"(\.\d+)?", match[2]) for match in there)


def sweep(studio: Studio, known: Collection[str]) -> list[str]:
    """Finish or remove what a dead process left half-made; returns the names of the folders that were removed.

    Args:
        known: The folders that have a row.
    """
    removed = []
    staged, placed = _folders(studio.runs / STAGED), [f for f in _folders(studio.runs) if (f / MARK).is_file()]
    for folder in [*staged, *placed]:
        if _maker_lives(folder):
            continue
        if folder in placed and folder.name in known:
            accept(folder)
        else:
            discard(folder)
            removed.append(folder.name)
    return removed


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []


def _maker_lives(folder: Path) -> bool:
    try:
        mark = json.loads((folder / MARK).read_text())
        return abs(psutil.Process(int(mark["pid"])).create_time() - float(mark["started"])) <= 1.0
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return False


def _utc(stamp: time.struct_time) -> float:
    import calendar

    return float(calendar.timegm(stamp))
