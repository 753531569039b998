"""The one machine of a run's status.

    queued → starting → running → stopping → succeeded | failed | stopped | interrupted

A start for which a cluster has no room after all goes back to queued.

Only `jobs.queue`, and for it `jobs.workers`, changes a status, and through this alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jobs.tables import ENDED, Run
from rl2f_core.errors import RunError

NEXT: dict[str, frozenset[str]] = {
    "queued": frozenset({"starting", "stopped"}),
    "starting": frozenset({"running", "stopping", "failed", "interrupted", "queued"}),
    "running": frozenset({"stopping", *ENDED}),
    "stopping": frozenset(ENDED),
    "failed": frozenset({"queued"}),
    "stopped": frozenset({"queued"}),
    "interrupted": frozenset({"queued"}),
    "succeeded": frozenset(),
}
"""Which status may follow which."""
ABORTING = "aborting"
"""The detail of a run that is being ended at once."""


def change(run: Run, to: str, **values: Any) -> None:
    """Change the status of a run inside a write transaction; raises `RunError` where it cannot follow."""
    if to not in NEXT[run.status]:
        raise RunError(
            f"Run {run.id} is {run.status} and cannot become {to}.",
            known=sorted(NEXT[run.status]),
            fix="Look again: something else may have changed it meanwhile.",
        )
    run.status = to
    for name, value in values.items():
        setattr(run, name, value)


def must_be(run: Run, statuses: Collection[str], done: str) -> None:
    """Raise `RunError` where a run has none of the statuses in which it can be `done` so."""
    if run.status not in statuses:
        raise RunError(
            f"Run {run.id} cannot be {done}: it is {run.status}.", fix=f"Only {', '.join(statuses)} runs can."
        )
