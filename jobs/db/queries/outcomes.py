"""Outcome counts of dialogues, for intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from jobs.db.models import Dialogue, Run, TaskRow, table_of
from jobs.db.queries.dialogues import HAS_VERDICT

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue = table_of(Dialogue).c
_run = table_of(Run).c
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
    where = [_dialogue.run_id == run_id, _dialogue.step >= first, _dialogue.phase == "train", _dialogue.stage == stage]
    where += [_dialogue.stop_reason != FAILED, HAS_VERDICT]
    if last is not None:
        where.append(_dialogue.step <= last)
    keys = (_dialogue.stage, _dialogue.step, _dialogue.group, _dialogue.solved_at)
    with db.read() as session:
        rows = session.connection().execute(select(*keys, func.count()).where(*where).group_by(*keys).limit(limit))
        return [GroupCount(*row) for row in rows]


def evaluation(db: Database, run_id: int) -> dict[tuple[str, str], dict[str, dict[int | None, int]]]:
    """Count an evaluation's dialogues by (checkpoint, condition), task and solved turn, in the order of ingestion."""
    task = table_of(TaskRow)
    with db.read() as session:
        run = session.get(Run, run_id)
    steps = [] if run is not None and run.kind == "imported" else [_dialogue.step == 0]  # the index finds them
    keys = (_dialogue.checkpoint, _dialogue.condition, task.c.task, _dialogue.solved_at)
    query = (
        select(*keys, func.count(), func.min(_dialogue.id))
        .join(task, task.c.id == _dialogue.task_id)
        .where(
            _dialogue.run_id == run_id,
            *steps,
            _dialogue.phase == "evaluation",
            _dialogue.stop_reason != FAILED,
            HAS_VERDICT,
        )
        .group_by(*keys)
        .order_by(func.min(_dialogue.id))
    )
    counts: dict[tuple[str, str], dict[str, dict[int | None, int]]] = {}
    with db.read() as session:
        for checkpoint, condition, task_name, solved_at, count, _ in session.connection().execute(query):
            by_task = counts.setdefault((checkpoint or "", condition or ""), {})
            by_task.setdefault(task_name, {})[solved_at] = count
    return counts


def solved_by_task(outcomes: Mapping[str, Mapping[int | None, int]], turns: int) -> dict[str, tuple[float, float]]:
    """Return each task's number of dialogues solved within `turns`, and of dialogues."""
    return {
        task: (float(sum(n for at, n in counts.items() if at is not None and at <= turns)), float(sum(counts.values())))
        for task, counts in outcomes.items()
    }


def child_runs(db: Database, run_id: int) -> list[Run]:
    """Return the clones, evaluations and exports of a run, newest first."""
    return db.fetch_all(select(Run).where(_run.parent == run_id).order_by(_run.id.desc()).limit(100))
