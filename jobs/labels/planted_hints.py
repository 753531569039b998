"""Planted hints: leaks of known kind that teacher `leaky` wrote, and which of them a source of findings flagged.

The recall on planted hints needs no labels. They are in no queue of labels and in no other number of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Select, func, select

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, TaskRow, TurnRow
from jobs.labels import holdout
from jobs.labels.hint_counts import DetectorVerdict, HintGroup, group_columns, in_scope, is_own, with_verdict
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.types import DEMONSTRATION, FrozenModel

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue = table_of(DialogueRow)
_turn = table_of(TurnRow)
_task = table_of(TaskRow)


PlantedGroup = Literal["all", "detector", "kind", "checkpoint"]


class PlantedRow(FrozenModel):
    """Recall on a group of planted hints that the source checked."""

    group: PlantedGroup
    name: str
    """`all`, or the name of the detector, kind or checkpoint."""
    hints: int
    flagged: int
    """Flagged hints; in the row of a detector, those that it flagged first."""
    recall: Interval
    """With the Wilson interval."""


@dataclass(frozen=True)
class PlantedHint:
    """The grouping keys of a planted hint."""

    group: HintGroup
    kind: str
    verdict: DetectorVerdict
    """By the source of findings."""


PlantedCounts = Mapping[PlantedHint, int]
"""Number of planted hints that the source checked."""


def count_planted(
    db: Database,
    source: str,
    runs: Sequence[int],
    test: bool,
    run: int | None = None,
    environment: str = "",
    *,
    with_controls: bool = True,
) -> PlantedCounts:
    """Count the planted hints that a source checked; the arguments are those of `hint_counts.information`."""
    statement: Select[Any] = (
        select(*group_columns(), _turn.c.planted)
        .select_from(_turn)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .join(_task, _task.c.id == _dialogue.c.task_id)
        .where(_turn.c.planted.is_not(None), _dialogue.c.policy != DEMONSTRATION, in_scope(_dialogue.c.run_id, run))
        .where((func.substr(_task.c.task_hash, 1, 1) < holdout.FIRST_OF_DEV) == test)
    )
    statement = with_verdict(statement, source, runs)
    if environment:
        statement = statement.where(_dialogue.c.environment == environment)
    if not with_controls:
        statement = statement.where(is_own(_dialogue.c.condition))
    counts: Counter[PlantedHint] = Counter()
    with db.read() as session:
        for row in session.execute(statement):
            if row.checked:
                verdict = DetectorVerdict(True, row.flagged, row.found_by or "")
                counts[PlantedHint(HintGroup(*(*row[:7], test)), row.planted, verdict)] += 1
    return counts
