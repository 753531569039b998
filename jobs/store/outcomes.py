"""What dialogues came to, counted: the numbers behind intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from jobs.tables import Dialogue, Problem, Run

if TYPE_CHECKING:
    from jobs.database import Database

_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_problem: Any = Problem.__table__  # type: ignore[attr-defined]
_run: Any = Run.__table__  # type: ignore[attr-defined]
FAILED = "failed"
"""The stop reason of dialogues that an error ended; they count nowhere."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Dialogues of one group of a training step that were solved at the same turn."""

    stage: str
    step: int
    group: str
    solved_at: int | None
    count: int


def training(
    db: Database, run_id: int, stage: str, first: int = 1, last: int | None = None, limit: int = 1_000_000
) -> list[GroupCount]:
    """Counts of a stage's training dialogues in the steps from `first` to `last`, without those that failed."""
    table = _dialogue.c
    chosen = [
        table.run_id == run_id, table.step >= first, table.phase == "train", table.stage == stage, table.stop != FAILED
    ]  # fmt: skip
    if last is not None:
        chosen.append(table.step <= last)
    keys = (table.stage, table.step, table.group, table.solved_at)
    with db.read() as session:
        rows = session.connection().execute(select(*keys, func.count()).where(*chosen).group_by(*keys).limit(limit))
        return [GroupCount(*row) for row in rows]


def evaluation(db: Database, run_id: int) -> dict[tuple[str, str], dict[str, dict[int | None, int]]]:
    """Of an evaluation's dialogues, by (checkpoint, control) and task: how many were solved at which turn.

    In the order in which they were played; dialogues that failed are left out. Evaluations are of no step (0).
    """
    table = _dialogue.c
    keys = (table.checkpoint, table.control, _problem.c.task, table.solved_at)
    query = (
        select(*keys, func.count(), func.min(table.id))
        .join(_problem, _problem.c.id == table.problem_id)
        .where(table.run_id == run_id, table.step == 0, table.phase == "evaluation", table.stop != FAILED)
        .group_by(*keys)
        .order_by(func.min(table.id))
    )
    found: dict[tuple[str, str], dict[str, dict[int | None, int]]] = {}
    with db.read() as session:
        for checkpoint, control, task, solved_at, count, _ in session.connection().execute(query):
            by_task = found.setdefault((checkpoint or "", control or ""), {})
            by_task.setdefault(task, {})[solved_at] = count
    return found


def solved_by_task(outcomes: Mapping[str, Mapping[int | None, int]], turns: int) -> dict[str, float]:
    """Share of each task's dialogues solved within `turns`, as `rl2f_core.evaluation.metrics.solved_by_task` has it."""
    return {
        task: sum(n for at, n in counts.items() if at is not None and at <= turns) / sum(counts.values())
        for task, counts in outcomes.items()
    }


def children(db: Database, run_id: int) -> list[Run]:
    """The runs that name this one as their parent (clones, evaluations, exports), newest first."""
    from sqlmodel import col
    from sqlmodel import select as rows

    with db.read() as session:
        return list(session.exec(rows(Run).where(col(Run.parent) == run_id).order_by(col(Run.id).desc()).limit(100)))
