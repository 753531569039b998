"""What can go wrong with the database, in the project's error vocabulary.

`NotFound` marks what a page should answer with 404, `StoreError` what it should answer with 503.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from rl2f_core.errors import DataError, RL2FError, RunError


class StoreError(RL2FError, RuntimeError):
    """The database cannot be read or written."""


class StoreLockedError(StoreError):
    """Another process held the database for longer than a writer waits."""


class StoreFullError(StoreError):
    """There is no room to write; nothing of the change was kept."""


class StoreReadOnlyError(StoreError):
    """This process, or this user, may only read."""


class StoreVersionError(StoreError):
    """The database's schema is of another version of the project."""


class NotFoundError(RL2FError, LookupError):
    """Something that was asked for by its name or number is not there."""


class UnknownRunError(NotFoundError, RunError):
    """There is no run of this number."""


class UnknownDialogueError(NotFoundError, DataError):
    """There is no such dialogue in the run."""


def unknown_run(run_id: object) -> UnknownRunError:
    """There is no run of this number: it was deleted, or the link is wrong."""
    return UnknownRunError(
        f"There is no run {run_id}.", fix="It may have been deleted; open the list of runs and pick another."
    )


def unknown_dialogue(run_id: object, event: object) -> UnknownDialogueError:
    """There is no such dialogue in the run."""
    return UnknownDialogueError(
        f"Run {run_id} has no such dialogue.", value=event, fix="Open the run's dialogues and pick another."
    )


_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PG_LOCKED = {"55P03", "40P01", "40001", "57014"}
_PG_UNFIT = {"22003", "22021", "22P02", "22P05"}
_PG_READ_ONLY = {"25006", "42501"}


def unstorable_value(error: Exception) -> DataError:
    """A number or a text that no database keeps: out of range, or half a character."""
    return DataError(f"A number or text that was asked for cannot be stored: {error}.", fix="Correct the request.")


def translate_driver_error(error: DBAPIError, where: str) -> StoreError | DataError | None:
    """The database driver's error in plain words; None where it is a mistake in a query, not of the world.

    Args:
        error: As SQLAlchemy raised it.
        where: The database's file or address, without a password.
    """
    cause: Any = error.orig
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    state = str(getattr(cause, "sqlstate", None) or "")
    if code in _LOCKED or state in _PG_LOCKED:
        return StoreLockedError(
            "The database is locked by another process.",
            value=where,
            fix="Wait for the other process to finish, then try again.",
        )
    if code == sqlite3.SQLITE_FULL or state.startswith("53"):
        return StoreFullError(
            "The disk is full: the database could not grow, and nothing of this change was kept.",
            value=where,
            fix="Free space, then try again.",
        )
    if code == sqlite3.SQLITE_READONLY or state in _PG_READ_ONLY:
        return StoreReadOnlyError(
            "The database may only be read.", value=where, fix="Give this user the right to write it."
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreFullError(
            f"The disk did not take what was written ({cause}); nothing of this change was kept.",
            value=where,
            fix="Check that the disk has space and is sound, then try again.",
        )
    if state in _PG_UNFIT:
        return unstorable_value(error.orig or error)  # type: ignore[arg-type]
    if code in _DAMAGED:
        return StoreError(
            "The database file is damaged, or is no SQLite database.",
            value=where,
            fix="Restore a copy from backups/, then run `rl2f reindex`.",
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError("The database file cannot be opened.", value=where, fix="Check the folder and its rights.")
    if isinstance(error, InterfaceError) or state.startswith(("08", "28", "57", "3D")) or error.connection_invalidated:
        return StoreError(f"The database does not answer: {cause}.", value=where, fix="Check RL2F_DATABASE_URL.")
    if isinstance(error, OperationalError) and not code and not state:
        return StoreError(f"The database does not answer: {cause}.", value=where, fix="Check RL2F_DATABASE_URL.")
    return None
