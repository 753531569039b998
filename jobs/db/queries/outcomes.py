"""Outcome counts of dialogues, for intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from jobs.db.models import Dialogue, Run, TaskRow

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_task: Any = TaskRow.__table__  # type: ignore[attr-defined]
_run: Any = Run.__table__  # type: ignore[attr-defined]
FAILED = "failed"
"""Stop reason of dialogues that ended with an error; they are not counted."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Number of dialogues of a group in a training step that were solved at the same turn."""

    stage: str
    step: int
    group: str
    solved_at: int | None
    count: int


def training(
    db: Database, run_id: int, stage: str, first: int = 1, last: int | None = None, limit: int = 1_000_000
) -> list[GroupCount]:
    """Count the training dialogues of a stage in the steps from `first` to `last`."""
    table = _dialogue.c
    where = [table.run_id == run_id, table.step >= first, table.phase == "train", table.stage == stage]
    where.append(table.stop_reason != FAILED)
    if last is not None:
        where.append(table.step <= last)
    keys = (table.stage, table.step, table.group, table.solved_at)
    with db.read() as session:
        rows = session.connection().execute(select(*keys, func.count()).where(*where).group_by(*keys).limit(limit))
        return [GroupCount(*row) for row in rows]


def evaluation(db: Database, run_id: int) -> dict[tuple[str, str], dict[str, dict[int | None, int]]]:
    """Count an evaluation's dialogues by (checkpoint, condition), task and solved turn, in the order of ingestion."""
    table = _dialogue.c
    keys = (table.checkpoint, table.condition, _task.c.task, table.solved_at)
    query = (
        select(*keys, func.count(), func.min(table.id))
        .join(_task, _task.c.id == table.task_id)
        .where(table.run_id == run_id, table.step == 0, table.phase == "evaluation", table.stop_reason != FAILED)
        .group_by(*keys)
        .order_by(func.min(table.id))
    )
    counts: dict[tuple[str, str], dict[str, dict[int | None, int]]] = {}
    with db.read() as session:
        for checkpoint, condition, task, solved_at, count, _ in session.connection().execute(query):
            by_task = counts.setdefault((checkpoint or "", condition or ""), {})
            by_task.setdefault(task, {})[solved_at] = count
    return counts


def solved_by_task(outcomes: Mapping[str, Mapping[int | None, int]], turns: int) -> dict[str, float]:
    """Return the fraction of each task's dialogues solved within `turns`."""
    return {
        task: sum(n for at, n in counts.items() if at is not None and at <= turns) / sum(counts.values())
        for task, counts in outcomes.items()
    }


def child_runs(db: Database, run_id: int) -> list[Run]:
    """Return the clones, evaluations and exports of a run, newest first."""
    with db.read() as session:
        return list(session.scalars(select(Run).where(_run.c.parent == run_id).order_by(_run.c.id.desc()).limit(100)))
