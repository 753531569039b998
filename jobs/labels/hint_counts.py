"""Hint counts per group of the detector report, maintained by the ingester so that reads take milliseconds.

`is_eligible` excludes hints without text that could leak, those of demonstrations, and planted leaks. `in_scope`
excludes forks, which continue one dialogue many times under chosen hints: their hints count only if their run is
requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, case, func, select, text
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, HintCount, RescoredHint, TaskRow, TurnRow
from jobs.db.models import Run
from jobs.labels import holdout
from rl2f_core.run.events import OWN_CONDITIONS
from rl2f_core.types import DEMONSTRATION, FrozenModel, Hint

if TYPE_CHECKING:
    from jobs.db.engine import Database

CONTENTLESS = "contentless"
"""Teacher whose hints cannot leak."""
RUN = "run"
"""Source of the findings made during a run."""
COUNTERFACTUAL = ("fork", "hint_value")
"""Run kinds whose dialogues continue those of other runs."""
STEPS_PER_BUCKET = 10
_count = table_of(HintCount)
_dialogue = table_of(DialogueRow)
_run = table_of(Run)
_turn = table_of(TurnRow)
_task = table_of(TaskRow)
_rescored = table_of(RescoredHint)
_GROUP = ("run_id", "environment", "teacher", "stage", "bucket", "checkpoint", "condition", "test")
_KEY = (*_GROUP, "checked", "flagged", "detector")
_SUMS = ("n", "known", "bits", "determining")
_NAMES = ", ".join(_KEY)
_ADD = text(
    f"INSERT INTO hintcount ({_NAMES}, {', '.join(_SUMS)}) "
    f"VALUES ({', '.join(f':{name}' for name in (*_KEY, *_SUMS))}) "
    f"ON CONFLICT ({_NAMES}) DO UPDATE SET "
    + ", ".join(f"{name} = hintcount.{name} + excluded.{name}" for name in _SUMS)
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class HintGroup:
    """The grouping keys of a hint in the detector report, without findings."""

    run_id: int
    environment: str
    teacher: str
    stage: str
    bucket: int
    """See `bucket`."""
    checkpoint: str
    """Evaluated checkpoint; empty in training."""
    condition: str
    test: bool
    """The task is in the test set."""


class InformationRow(FrozenModel):
    """Information in the checked hints with one verdict; see `rl2f_core.dialogue.rollout.hint_information`."""

    flagged: bool
    hints: int
    known: int
    """Hints with known bits."""
    bits: float
    """Sum of their bits."""
    determining: int
    """Hints that leave the gold answer as the only candidate."""


@dataclass(frozen=True)
class DetectorVerdict:
    """The result of a source of findings for a hint."""

    checked: bool
    flagged: bool
    detector: str


def is_eligible(hint: Hint | None, policy: str) -> bool:
    """Whether a hint of a dialogue of `policy` is a teacher's own to a student, so that it counts in estimates.

    It is neither contentless, nor a fallback after a teacher error, nor planted, nor part of a demonstration.
    """
    is_own = hint is not None and hint.teacher != CONTENTLESS and hint.planted is None and not hint.is_fallback
    return is_own and policy != DEMONSTRATION


def is_own(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the dialogue condition in `column` is not a control."""
    return func.coalesce(column, "").in_(OWN_CONDITIONS)


def in_scope(column: ColumnElement[Any], run: int | None) -> ColumnElement[bool]:
    """Return the condition that the run id in `column` is `run`; for None, that it is not counterfactual."""
    if run is not None:
        return column == run
    return column.not_in(select(_run.c.id).where(_run.c.kind.in_(COUNTERFACTUAL)))


def bucket(step: int) -> int:
    """Return the bucket of a step: 1 for the steps 1 to 10 of a stage, 0 for step 0."""
    return (step + STEPS_PER_BUCKET - 1) // STEPS_PER_BUCKET


def group_columns() -> tuple[ColumnElement[Any], ...]:
    """Return the columns of `HintGroup` without `test`, from the tables of dialogues and turns."""
    return (
        _dialogue.c.run_id,
        _dialogue.c.environment,
        func.coalesce(_turn.c.teacher, ""),
        _dialogue.c.stage,
        (_dialogue.c.step + (STEPS_PER_BUCKET - 1)) // STEPS_PER_BUCKET,
        func.coalesce(_dialogue.c.checkpoint, ""),
        func.coalesce(_dialogue.c.condition, ""),
    )


def add(session: Session, run_id: int, items: Iterable[tuple[Row, Row, Sequence[Row]]]) -> None:
    """Count new hints. Each item has the rows of a dialogue, of its task and of its turns."""
    sums: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0, 0, 0.0, 0])
    for dialogue, task, turns in items:
        before = (run_id, dialogue["environment"])
        after = (dialogue["stage"], bucket(dialogue["step"]), dialogue["checkpoint"] or "", dialogue["condition"] or "",
                 holdout.is_test(task["task_hash"]))  # fmt: skip
        for turn in turns:
            if turn["is_eligible"]:
                verdict = (turn["leak_checked"], turn["leak_found"], turn["detector"] or "")
                added = (1, turn["hint_bits"] is not None, turn["hint_bits"] or 0.0, turn["determines_answer"])
                total = sums[(*before, turn["teacher"], *after, *verdict)]
                total[:] = [x + y for x, y in zip(total, added, strict=True)]
    if sums:
        rows = [dict(zip((*_KEY, *_SUMS), (*key, *total), strict=True)) for key, total in sums.items()]
        session.connection().execute(_ADD, rows)


def count_runtime(
    db: Database, test: bool, run: int | None = None, environment: str = "", runs: Sequence[int] | None = None
) -> dict[tuple[HintGroup, DetectorVerdict], int]:
    """Count the hints of the dev or test set by run-time verdict; only those of `runs` if given."""
    statement = select(*(_count.c[name] for name in _KEY), _count.c.n)
    statement = statement.where(_count.c.test == test, in_scope(_count.c.run_id, run))
    if environment:
        statement = statement.where(_count.c.environment == environment)
    if runs is not None:
        statement = statement.where(_count.c.run_id.in_(runs))
    with db.read() as session:
        return {(HintGroup(*row[:8]), DetectorVerdict(*row[8:11])): row[11] for row in session.execute(statement)}


def count_rescored(
    db: Database, source: str, runs: Sequence[int], test: bool, run: int | None = None, environment: str = ""
) -> dict[tuple[HintGroup, DetectorVerdict, DetectorVerdict], int]:
    """Count the hints of `runs` that a rescore flagged, by group, run-time verdict and rescore verdict."""
    runtime = (_turn.c.leak_checked, _turn.c.leak_found, func.coalesce(_turn.c.detector, ""))
    columns = (*group_columns(), *runtime, func.coalesce(_rescored.c.detector, ""))
    statement = _flagged(source, runs, test, run, environment).with_only_columns(*columns)
    with db.read() as session:
        counts = Counter(tuple(row) for row in session.execute(statement))
    return {
        (HintGroup(*(*row[:7], test)), DetectorVerdict(*row[7:10]), DetectorVerdict(True, True, row[10])): n
        for row, n in counts.items()
    }


def information(
    db: Database,
    source: str,
    runs: Sequence[int],
    test: bool,
    run: int | None = None,
    environment: str = "",
    *,
    with_controls: bool = True,
) -> tuple[InformationRow, InformationRow]:
    """Return the information in the hints that a source flagged, and in the others that it checked.

    Args:
        db: The database.
        source: `run`, or the id of a rescore run.
        runs: The rescored runs; ignored for `run`.
        test: The test set instead of the dev set.
        run: As in `in_scope`.
        environment: Only hints of this environment.
        with_controls: Count the hints of control conditions.
    """
    conditions = [_count.c.test == test, in_scope(_count.c.run_id, run)]
    conditions += [_count.c.environment == environment] if environment else []
    conditions += [] if with_controls else [is_own(_count.c.condition)]
    conditions.append(_count.c.checked if source == RUN else _count.c.run_id.in_(runs))
    sums = [func.coalesce(func.sum(_count.c[name]), 0) for name in _SUMS]
    with db.read() as session:
        total = session.execute(select(*sums).where(*conditions)).one()
        if source == RUN:
            flagged = session.execute(select(*sums).where(*conditions, _count.c.flagged)).one()
        else:
            rescored = _flagged(source, runs, test, run, environment).with_only_columns(
                func.count(),
                func.count(_turn.c.hint_bits),
                func.coalesce(func.sum(_turn.c.hint_bits), 0.0),
                func.coalesce(func.sum(case((_turn.c.determines_answer, 1), else_=0)), 0),
            )
            own = rescored if with_controls else rescored.where(is_own(_dialogue.c.condition))
            flagged = session.execute(own).one()
    rest = [x - y for x, y in zip(total, flagged, strict=True)]
    keys = ("hints", "known", "bits", "determining")
    first, second = (
        InformationRow(flagged=f, **dict(zip(keys, row, strict=True))) for f, row in ((True, flagged), (False, rest))
    )
    return first, second


def is_flagged_by(source: str) -> ColumnElement[bool]:
    """Return the condition that a rescore run flagged the turn, joined with its dialogue, of a run that it checked."""
    same_hint = (_rescored.c.event_id == _dialogue.c.event_id) & (_rescored.c.turn == _turn.c.index)
    return (_rescored.c.run_id == int(source)) & _rescored.c.leak_found & same_hint


def with_verdict(statement: Select[Any], source: str, runs: Sequence[int]) -> Select[Any]:
    """Add the columns `checked`, `flagged` and `found_by` (detector) of a source to a query of turns and dialogues.

    Args:
        statement: The query.
        source: `run`, or the id of a rescore run.
        runs: The rescored runs; ignored for `run`.
    """
    columns: tuple[ColumnElement[Any], ...] = (_turn.c.leak_checked, _turn.c.leak_found, _turn.c.detector)
    if source != RUN:
        checked = _dialogue.c.run_id.in_(runs)
        statement = statement.outerjoin(_rescored, is_flagged_by(source) & checked)
        columns = (checked, _rescored.c.run_id.is_not(None), _rescored.c.detector)
    labels = ("checked", "flagged", "found_by")
    return statement.add_columns(*(column.label(name) for column, name in zip(columns, labels, strict=True)))


def _flagged(source: str, runs: Sequence[int], test: bool, run: int | None, environment: str) -> Select[Any]:
    """Return the query of the hints that a rescore flagged; the caller replaces its column."""
    statement = (
        select(_turn.c.id)
        .select_from(_dialogue)
        .join(_turn, _turn.c.dialogue_id == _dialogue.c.id)
        .join(_rescored, is_flagged_by(source))
        .join(_task, _task.c.id == _dialogue.c.task_id)
        .where(_dialogue.c.run_id.in_(runs), _turn.c.is_eligible, in_scope(_dialogue.c.run_id, run))
        .where((func.substr(_task.c.task_hash, 1, 1) < holdout.FIRST_OF_DEV) == test)
    )
    return statement.where(_dialogue.c.environment == environment) if environment else statement
