"""HTTP statuses of errors."""

from __future__ import annotations

from jobs.db.errors import NotFoundError, StoreError
from rl2f_core.errors import DiskFullError, RL2FError, RunError

STATUS = "rl2f_status"
"""Key of a request's state: status of the response if Gradio, which answers each failed event with 500, sends it."""


def http_status(error: RL2FError) -> int:
    """Return 503 if database or disk fail, 404 for a missing object, 409 for a wrong state, otherwise 400."""
    if isinstance(error, DiskFullError | StoreError):
        return 503
    if isinstance(error, NotFoundError):
        return 404
    return 409 if isinstance(error, RunError) else 400
