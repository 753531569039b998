"""Retention of trash, backups, the job log and the audit log.

retention.trash_days     days that a deleted run can be restored (default 30)
retention.backup_days    days that a backup is kept (default 14); the newest three always are
retention.log_days       days of the job log (default 90)
retention.audit_days     days of the audit log (default 365)
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.queries import audit_log, job_log
from jobs.queue import run_dirs
from jobs.workspace import Workspace
from rl2f_core.errors import ConfigError

DAY_SECONDS = 86400.0
MIN_BACKUPS = 3
_BACKUP = re.compile(r"rl2f-\d{8}-\d{6}\.sqlite")


def cutoff(db: Database, name: str, now: float) -> float:
    """Return the time before which a setting removes data; raises `ConfigError` for a malformed setting."""
    text = settings.get(db, name)
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"The setting {name} is not a whole number of days.", value=text, fix="Set it to e.g. 14.")
    return now - float(text) * DAY_SECONDS


def retain(db: Database, workspace: Workspace, now: float) -> str:
    """Remove what is older than the settings allow; returns a summary."""
    trash = clear_trash(workspace, cutoff(db, "retention.trash_days", now))
    copies = clear_backups(workspace, cutoff(db, "retention.backup_days", now))
    lines = job_log.prune(db, cutoff(db, "retention.log_days", now))
    actions = audit_log.prune(db, cutoff(db, "retention.audit_days", now))
    return (
        f"{len(trash)} from the trash, {len(copies)} backups, {lines} lines of the job log, "
        f"{actions} entries of the audit log"
    )


def clear_trash(workspace: Workspace, before: float) -> list[str]:
    """Remove the entries of the trash from before a time; returns their names."""
    old = [name for name, deleted in run_dirs.list_trash(workspace).items() if deleted < before]
    for name in old:
        entry = workspace.trash / name
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink(missing_ok=True)
        else:
            shutil.rmtree(entry, ignore_errors=True)
    return old


def backups(workspace: Workspace) -> list[Path]:
    """Return the backups, oldest first."""
    if not workspace.backups.is_dir():
        return []
    return sorted(path for path in workspace.backups.iterdir() if _BACKUP.fullmatch(path.name))


def clear_backups(workspace: Workspace, before: float) -> list[Path]:
    """Remove backups from before a time, except the newest three; returns them."""
    old = [path for path in backups(workspace)[:-MIN_BACKUPS] if path.stat().st_mtime < before]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def backup(db: Database, workspace: Workspace, now: float) -> Path | None:
    """Copy the database into `backups/`; None if it is not SQLite. Raises `StoreError`."""
    if not db.sqlite:
        return None
    name = time.strftime(f"rl2f-{run_dirs.STAMP}.sqlite", time.gmtime(now))
    return db.backup(workspace.backups / name)


def backup_is_due(workspace: Workspace, now: float) -> bool:
    """Return whether the newest backup is older than a day."""
    copies = backups(workspace)
    return not copies or now - copies[-1].stat().st_mtime > DAY_SECONDS
