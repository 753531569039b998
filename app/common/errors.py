"""Errors as JSON with an HTTP status."""

from __future__ import annotations

from rl2f_core.errors import DiskFullError, RL2FError, RunError, shorten


def as_json(error: RL2FError) -> dict[str, object]:
    """Return the response body of a failed request below `/api`."""
    value = None if error.value is None else shorten(str(error.value))
    known = None if error.known is None else list(error.known)
    return {"error": {"what": error.what, "value": value, "known": known, "fix": error.fix}}


def http_status(error: RL2FError) -> int:
    """Return 503 if database or disk fail, 404 for a missing object, 409 for a wrong state, otherwise 400."""
    from jobs.db.errors import NotFoundError, StoreError

    if isinstance(error, DiskFullError | StoreError):
        return 503
    if isinstance(error, NotFoundError):
        return 404
    return 409 if isinstance(error, RunError) else 400
