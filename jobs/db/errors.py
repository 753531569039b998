"""Database errors. Pages answer `NotFoundError` with status 404 and `StoreError` with 503."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from rl2f_core.errors import DataError, RL2FError, RunError


class StoreError(RL2FError, RuntimeError):
    """The database cannot be read or written."""


class StoreLockedError(StoreError):
    """Another process locked the database for longer than the timeout."""


class StoreFullError(StoreError):
    """The disk is full; the transaction was rolled back."""


class StoreReadOnlyError(StoreError):
    """This process or this user has no write access."""


class StoreVersionError(StoreError):
    """The database's schema belongs to another version of the project."""


class NotFoundError(RL2FError, LookupError):
    """The requested item does not exist."""


class UnknownRunError(NotFoundError, RunError):
    """The run does not exist."""


class UnknownDialogueError(NotFoundError, DataError):
    """The run has no such dialogue."""


def unknown_run(run_id: object) -> UnknownRunError:
    """Create the error for a run id that does not exist."""
    return UnknownRunError(
        f"There is no run {run_id}.", fix="It may have been deleted; open the list of runs and pick another."
    )


def unknown_dialogue(run_id: object, event: object) -> UnknownDialogueError:
    """Create the error for an event id that the run does not have."""
    return UnknownDialogueError(
        f"Run {run_id} has no such dialogue.", value=event, fix="Open the run's dialogues and pick another."
    )


def unknown_turn(turn: int, length: int) -> NotFoundError:
    """Create the error for a 0-based turn that a dialogue does not have."""
    return NotFoundError("The dialogue has no such turn.", value=turn, known=[str(i) for i in range(length)])


def unstorable_value(error: BaseException) -> DataError:
    """Create the error for a value that the database rejects: out of range, or a lone surrogate."""
    return DataError(f"A number or text of the request cannot be stored: {error}.", fix="Correct the request.")


def translate_driver_error(error: DBAPIError, where: str) -> StoreError | DataError | None:
    """Translate a driver error; None if the query itself is wrong.

    Args:
        error: SQLAlchemy's error.
        where: The database's file or address, without a password.
    """
    cause = error.orig
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    state = str(getattr(cause, "sqlstate", None) or "")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state in ("55P03", "40P01", "40001", "57014"):
        return StoreLockedError(
            "The database is locked by another process.",
            value=where,
            fix="Wait for the other process to finish, then try again.",
        )
    if code == sqlite3.SQLITE_FULL or state.startswith("53"):
        return StoreFullError(
            "The disk is full: the database could not grow, and nothing of this change was stored.",
            value=where,
            fix="Free space, then try again.",
        )
    if code == sqlite3.SQLITE_READONLY or state in ("25006", "42501"):
        return StoreReadOnlyError("The database is read-only.", value=where, fix="Give this user write access.")
    if code == sqlite3.SQLITE_IOERR:
        return StoreFullError(
            f"Writing to the disk failed ({cause}); nothing of this change was stored.",
            value=where,
            fix="Check that the disk has space and no errors, then try again.",
        )
    if state in ("22003", "22021", "22P02", "22P05"):
        return unstorable_value(cause or error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            "The database file is damaged, or is not a SQLite database.",
            value=where,
            fix="Restore a copy from backups/, then run `rl2f reindex`.",
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(
            "The database file cannot be opened.", value=where, fix="Check the folder and its permissions."
        )
    is_unreachable = isinstance(error, InterfaceError) or state.startswith(("08", "28", "57", "3D"))
    has_no_code = isinstance(error, OperationalError) and not code and not state
    if is_unreachable or has_no_code or error.connection_invalidated:
        return StoreError(f"The database does not answer: {cause}.", value=where, fix="Check RL2F_DATABASE_URL.")
    return None
