"""State machine of a run's status.

    queued → starting → running → stopping → succeeded | failed | stopped | interrupted

Only `jobs.queue` changes a status, always through `transition`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from jobs.db.models import ENDED, Run, RunStatus
from rl2f_core.errors import RunError

TRANSITIONS: dict[str, frozenset[str]] = {
    "queued": frozenset({"starting", "stopped"}),
    "starting": frozenset({"running", "stopping", "failed", "interrupted"}),
    "running": frozenset({"stopping", *ENDED}),
    "stopping": frozenset(ENDED),
    "failed": frozenset({"queued"}),
    "stopped": frozenset({"queued"}),
    "interrupted": frozenset({"queued"}),
    "succeeded": frozenset(),
}
"""Allowed next statuses."""
ABORTING = "aborting"
"""Detail of a run that is being aborted."""


def transition(run: Run, to: str, **values: object) -> None:
    """Change a run's status and columns in a write transaction; raises `RunError` if the change is not allowed."""
    if to not in TRANSITIONS[run.status]:
        raise RunError(
            f"Run {run.id} is {run.status} and cannot become {to}.",
            known=sorted(TRANSITIONS[run.status]),
            fix="Reload: another process may have changed it.",
        )
    run.status = cast(RunStatus, to)
    for name, value in values.items():
        setattr(run, name, value)


def require_status(run: Run, statuses: Collection[str], action: str) -> None:
    """Raise `RunError` if the run's status does not allow the action."""
    if run.status not in statuses:
        raise RunError(
            f"Run {run.id} cannot be {action}: it is {run.status}.", fix=f"Only {', '.join(statuses)} runs can."
        )
