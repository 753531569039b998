"""Planted hints: leaks of known kind that teacher `leaky` wrote, and which of them a source of findings flagged.

The recall on planted hints needs no labels. They are in no queue of labels and in no other number of the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, TaskRow, TurnRow
from jobs.db.queries.outcomes import FAILED
from jobs.labels.hint_counts import DetectorVerdict, HintGroup, Scope, Source, group_columns, hints_of, with_verdict
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.types import DEMONSTRATION, FrozenModel

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue = table_of(DialogueRow)
_task = table_of(TaskRow)
_turn = table_of(TurnRow)


PlantedGroup = Literal["all", "detector", "kind", "checkpoint"]


class PlantedRow(FrozenModel):
    """Recall on a group of planted hints that the source checked."""

    group: PlantedGroup
    """What the row groups by."""
    name: str
    """`all`, or the name of the detector, kind or checkpoint."""
    hints: int
    """Number of planted hints."""
    flagged: int
    """Flagged hints; in the row of a detector, those that it flagged first."""
    recall: Interval
    """With the Wilson interval; the hints of a task are a cluster."""


@dataclass(frozen=True)
class PlantedHint:
    """The grouping keys of a planted hint."""

    group: HintGroup
    task: str
    """Hash of the task."""
    kind: str
    verdict: DetectorVerdict
    """By the source of findings."""


PlantedCounts = Mapping[PlantedHint, int]
"""Number of planted hints that the source checked."""


def count_planted(db: Database, scope: Scope, scored: Source) -> PlantedCounts:
    """Count the planted hints of a scope that a source checked, in dialogues that did not fail."""
    statement = hints_of(scope, *group_columns(), _task.c.task_hash, _turn.c.planted)
    statement = statement.where(
        _turn.c.planted.is_not(None), _dialogue.c.policy != DEMONSTRATION, _dialogue.c.stop_reason != FAILED
    )
    counts: Counter[PlantedHint] = Counter()
    with db.read() as session:
        for row in session.execute(with_verdict(statement, scored)):
            if row.checked:
                verdict = DetectorVerdict(True, row.flagged, row.found_by or "")
                group = HintGroup(*(*row[:7], scope.test))
                counts[PlantedHint(group, row.task_hash, row.planted, verdict.named)] += 1
    return counts
