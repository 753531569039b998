"""What is thrown away in time, and what is copied before: trash, backups, old lines of the job log.

retention.trash_days     days that a deleted run stays in the trash (default 14)
retention.backup_days    days that a copy of the database is kept (default 14); the newest three always are
retention.log_days       days that the job log reaches back (default 90)
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from jobs import folders
from jobs.database import Database
from jobs.store import joblog, settings
from jobs.studio import Studio
from rl2f_core.errors import ConfigError

DAY = 86400.0
KEPT_BACKUPS = 3
DEFAULTS = {"retention.trash_days": 14, "retention.backup_days": 14, "retention.log_days": 90}
_BACKUP = re.compile(r"rl2f-\d{8}-\d{6}\.sqlite")


def days(db: Database, name: str) -> float:
    """A setting in days; raises `ConfigError` where it is no whole number."""
    text = settings.get(db, name, str(DEFAULTS[name]))
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"The setting {name} is no whole number of days.", value=text, fix="Set it to e.g. 14.")
    return float(text)


def retain(db: Database, studio: Studio, now: float) -> str:
    """Remove what is older than the settings allow; returns in words what went."""
    trash = clear_trash(studio, now - days(db, "retention.trash_days") * DAY)
    copies = clear_backups(studio, now - days(db, "retention.backup_days") * DAY)
    lines = joblog.prune(db, now - days(db, "retention.log_days") * DAY)
    return f"{len(trash)} from the trash, {len(copies)} backups, {lines} lines of the job log"


def clear_trash(studio: Studio, before: float) -> list[str]:
    """Remove entries of the trash that were put there before a moment; returns their names."""
    old = [name for name, moment in folders.in_trash(studio).items() if moment < before]
    for name in old:
        entry = studio.trash / name
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        else:
            shutil.rmtree(entry, ignore_errors=True)
    return old


def backups(studio: Studio) -> list[Path]:
    """The copies of the database, oldest first."""
    if not studio.backups.is_dir():
        return []
    return sorted(path for path in studio.backups.iterdir() if _BACKUP.fullmatch(path.name))


def clear_backups(studio: Studio, before: float) -> list[Path]:
    """Remove copies from before a moment, but never the newest three; returns those that went."""
    old = [path for path in backups(studio)[:-KEPT_BACKUPS] if path.stat().st_mtime < before]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def backup(db: Database, studio: Studio, now: float) -> Path | None:
    """Copy the database into `backups/`; None where it is no SQLite file. Raises `StoreError`."""
    if not db.sqlite:
        return None
    name = time.strftime(f"rl2f-{folders.STAMP}.sqlite", time.gmtime(now))
    return db.backup(studio.backups / name)


def backup_is_due(studio: Studio, now: float) -> bool:
    """Whether the newest copy is older than a day, e.g. because the server was down at night."""
    there = backups(studio)
    return not there or now - there[-1].stat().st_mtime > DAY
