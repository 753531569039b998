"""Outcome counts of dialogues, for intervals and paired differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select

from jobs.db.columns import table_of
from jobs.db.dialogue_models import HAS_VERDICT, LEAKED, DialogueRow, TaskRow, TurnRow
from jobs.db.models import Run
from rl2f_core.run.events import OWN_CONDITIONS
from rl2f_core.types import DEMONSTRATION

if TYPE_CHECKING:
    from jobs.db.engine import Database

_dialogue = table_of(DialogueRow).c
_run = table_of(Run).c
_turn = table_of(TurnRow).c
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


Outcomes = Mapping[tuple[str, str], Mapping[str, Mapping[int | None, int]]]
"""By (checkpoint, condition), task and turn: how many dialogues were solved at the turn, minus those whose last answer
became incorrect, which only happens if correct answers do not end dialogues. None counts those that end unsolved."""


LeakCounts = Mapping[tuple[int, int], tuple[int, int]]
"""By 0-based turn and task: leaks that the student read, and checked hints."""
READS_LEAK = _turn.leak_read | (_turn.planted.is_not(None) & ~_turn.leak_found)
"""Condition that the student read a leak in a hint, planted or flagged: only flagged hints are replaced."""


class CleanStep(NamedTuple):
    """Means over a step's dialogues in which no leak was read; None without such dialogues."""

    reward: float | None
    solved: float | None


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


def evaluation(db: Database, run_id: int) -> Outcomes:
    """Return the outcomes of an evaluation; see `evaluation_outcomes`."""
    with db.read() as session:
        return evaluation_outcomes(session.connection(), run_id)


def evaluation_outcomes(connection: Connection, run_id: int) -> Outcomes:
    """Return the outcomes of an evaluation's dialogues, which are those of its report, in the order of ingestion."""
    task = table_of(TaskRow)
    kind = connection.scalar(select(_run.kind).where(_run.id == run_id))
    steps = [] if kind == "imported" else [_dialogue.step == 0]  # the index finds them
    keys = (_dialogue.checkpoint, _dialogue.condition, task.c.task, _dialogue.solved_at, _dialogue.outcomes)
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
    outcomes: dict[tuple[str, str], dict[str, Counter[int | None]]] = {}
    for checkpoint, condition, task_name, solved_at, attempts, count, _ in connection.execute(query):
        by_task = outcomes.setdefault((checkpoint or "", condition or ""), {})
        counts = by_task.setdefault(task_name, Counter())
        for turn, change in _changes(attempts, solved_at).items():
            counts[turn] += count * change
    return outcomes


def _changes(attempts: str, solved_at: int | None) -> dict[int | None, int]:
    """Return the turns at which the last answer becomes correct (1) or incorrect (−1); with None they add up to 1."""
    correct = [False, *(letter == "1" for letter in attempts[:-1]), solved_at is not None]
    changes: dict[int | None, int] = {t: b - a for t, (a, b) in enumerate(pairwise(correct), 1) if a != b}
    return changes | ({None: 1} if solved_at is None else {})


def without_leaks(db: Database, run_id: int, stage: str, first: int, last: int, turns: int) -> dict[int, CleanStep]:
    """Summarize the training dialogues of a stage's steps in which no leak was read, by step.

    Args:
        db: The database.
        run_id: The run.
        stage: The stage.
        first: First step.
        last: Last step.
        turns: Turns within which a dialogue counts as solved.
    """
    read = select(_turn.id).where(_turn.dialogue_id == _dialogue.id, READS_LEAK).exists()
    where = [*_sampled(run_id), _dialogue.step.between(first, last), _dialogue.stage == stage, ~read]
    solved = case((_dialogue.solved_at <= turns, 1.0), (HAS_VERDICT, 0.0))  # without a verdict null, which avg omits
    query = select(_dialogue.step, func.avg(_dialogue.reward), func.avg(solved)).where(*where)
    with db.read() as session:
        rows = session.connection().execute(query.group_by(_dialogue.step))
        return {step: CleanStep(*means) for step, *means in rows}


def has_leaks(db: Database, run_id: int) -> bool:
    """Return whether the student read a leak in the training dialogues of a run."""
    turns = select(_turn.id).join(table_of(DialogueRow), _dialogue.id == _turn.dialogue_id).where(*_sampled(run_id))
    flagged = turns.where(_dialogue.leak_state == LEAKED, _turn.leak_read)  # the indexes find both
    planted = turns.where(_turn.planted.is_not(None), READS_LEAK)
    with db.read() as session:
        return any(session.execute(query.limit(1)).first() is not None for query in (flagged, planted))


def _sampled(run_id: int) -> list[ColumnElement[bool]]:
    """Return the conditions on the training dialogues of a run that the student sampled and that did not fail."""
    own = _dialogue.policy != DEMONSTRATION
    return [_dialogue.run_id == run_id, _dialogue.phase == "train", _dialogue.stop_reason != FAILED, own]


def leaks_by_turn(db: Database, run_id: int, phase: str, after: int) -> tuple[int, LeakCounts]:
    """Count the checked hints of a run and the leaks among them that the student read, as `leak_rate` does.

    Planted leaks, controls, demonstrations and failed dialogues are not counted.

    Args:
        db: The database.
        run_id: The run.
        phase: Phase of the dialogues.
        after: Only dialogues with a larger row id.

    Returns:
        The last row id of the run's dialogues, and the counts.
    """
    where = [_dialogue.run_id == run_id, _dialogue.id > after, _dialogue.phase == phase]
    where += [_dialogue.policy != DEMONSTRATION, func.coalesce(_dialogue.condition, "").in_(OWN_CONDITIONS)]
    where += [_dialogue.stop_reason != FAILED, _turn.leak_checked, _turn.planted.is_(None)]
    keys = (_turn.index, _dialogue.task_id)
    counts = select(*keys, func.sum(case((_turn.leak_read, 1), else_=0)), func.count())
    counts = counts.join(table_of(DialogueRow), _dialogue.id == _turn.dialogue_id).where(*where).group_by(*keys)
    last = select(func.max(_dialogue.id)).where(_dialogue.run_id == run_id)
    with db.read() as session:
        newest = session.scalars(last).one() or 0
        rows = session.execute(counts.where(_dialogue.id <= newest))
        return newest, {(index, task): (read, checked) for index, task, read, checked in rows}


def solved_by_task(outcomes: Mapping[str, Mapping[int | None, int]], turns: int) -> dict[str, tuple[float, float]]:
    """Return each task's number of dialogues solved within `turns`, and of dialogues."""
    return {
        task: (float(sum(n for at, n in counts.items() if at is not None and at <= turns)), float(sum(counts.values())))
        for task, counts in outcomes.items()
    }


def child_runs(db: Database, run_id: int) -> list[Run]:
    """Return the clones, evaluations and exports of a run, newest first."""
    return db.fetch_all(select(Run).where(_run.parent == run_id).order_by(_run.id.desc()).limit(100))
