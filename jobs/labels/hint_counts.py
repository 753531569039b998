"""Hint counts per group of the detector report, maintained by the ingester so that reads take milliseconds.

`is_eligible` excludes hints without text that could leak, those of demonstrations, and planted leaks. `in_scope`
excludes forks, which continue one dialogue many times under chosen hints: their hints count only if their run is
requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field
from sqlalchemy import ColumnElement, Select, case, false, func, select, text
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
UNNAMED = "unnamed"
"""Detector of a finding without detector name."""
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


class HintScope(FrozenModel):
    """Hints, and the source of their findings."""

    run: int | None = Field(None, ge=1, lt=2**31)
    """Only hints of this run."""
    environment: str = Field("", max_length=1000)
    """Only hints of this environment."""
    source: str = Field(RUN, max_length=20)
    """Findings made during the runs (`run`), or by the rescore run with this id."""
    include_controls: bool = False
    """Include the hints of control conditions, e.g. shuffled ones."""

    def within(self, columns: Any) -> list[ColumnElement[bool]]:
        """Return the conditions on the columns `run_id`, `environment` and `condition` of a table."""
        where = [in_scope(columns.run_id, self.run)]
        where += [columns.environment == self.environment] if self.environment else []
        return where if self.include_controls else [*where, is_own(columns.condition)]


class Scope(HintScope):
    """The hints and the findings of a report."""

    test: bool = False
    """The test set instead of the dev set."""


class Source(FrozenModel):
    """A source of findings."""

    name: str
    """`run`, or the id of a rescore run."""
    detectors: str
    """Configurations of its detectors as JSON."""
    runs: tuple[int, ...] = Field((), exclude=True)
    """The rescored run; empty for all."""
    time: float | None = None
    """Seconds since 1970, UTC; None for the runs' own detectors."""


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
    """Information in the checked hints with one verdict."""

    flagged: bool
    """The source flagged them."""
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

    @property
    def named(self) -> DetectorVerdict:
        """The verdict with a detector if the hint is flagged, which is `UNNAMED` if it is not known, else without."""
        return replace(self, detector=(self.detector or UNNAMED) if self.flagged else "")


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


def count_runtime(db: Database, scope: Scope, runs: Sequence[int] = ()) -> dict[tuple[HintGroup, DetectorVerdict], int]:
    """Count the hints of a scope by run-time verdict; only those of `runs` if given."""
    statement = select(*(_count.c[name] for name in _KEY), _count.c.n)
    statement = statement.where(_count.c.test == scope.test, *scope.within(_count.c))
    if runs:
        statement = statement.where(_count.c.run_id.in_(runs))
    with db.read() as session:
        return {(HintGroup(*row[:8]), DetectorVerdict(*row[8:11])): row[11] for row in session.execute(statement)}


def count_rescored(
    db: Database, scope: Scope, scored: Source
) -> dict[tuple[HintGroup, DetectorVerdict, DetectorVerdict], int]:
    """Count the hints that a rescore flagged or could not check, by group, run-time verdict and rescore verdict."""
    runtime = (_turn.c.leak_checked, _turn.c.leak_found, func.coalesce(_turn.c.detector, ""))
    columns = (*group_columns(), *runtime, _rescored.c.leak_found, func.coalesce(_rescored.c.detector, ""))
    statement = _reported(scope, scored).with_only_columns(*columns)
    with db.read() as session:
        counts = Counter(tuple(row) for row in session.execute(statement))
    return {
        (HintGroup(*(*row[:7], scope.test)), DetectorVerdict(*row[7:10]), DetectorVerdict(row[10], row[10], row[11])): n
        for row, n in counts.items()
    }


def information(db: Database, scope: Scope, scored: Source) -> tuple[InformationRow, InformationRow]:
    """Return the information in the hints of a scope that a source flagged, and in the others that it checked."""
    conditions = [_count.c.test == scope.test, *scope.within(_count.c)]
    conditions.append(_count.c.run_id.in_(scored.runs) if scored.runs else _count.c.checked)
    sums = [func.coalesce(func.sum(_count.c[name]), 0) for name in _SUMS]
    with db.read() as session:
        total = session.execute(select(*sums).where(*conditions)).one()
        if scored.name == RUN:
            flagged = reported = session.execute(select(*sums).where(*conditions, _count.c.flagged)).one()
        else:
            rescored = _reported(scope, scored).with_only_columns(
                func.count(),
                func.count(_turn.c.hint_bits),
                func.coalesce(func.sum(_turn.c.hint_bits), 0.0),
                func.coalesce(func.sum(case((_turn.c.determines_answer, 1), else_=0)), 0),
            )
            reported = session.execute(rescored).one()
            flagged = session.execute(rescored.where(_rescored.c.leak_found)).one()
    rest = [x - y for x, y in zip(total, reported, strict=True)]
    keys = ("hints", "known", "bits", "determining")
    first, second = (
        InformationRow(flagged=f, **dict(zip(keys, row, strict=True))) for f, row in ((True, flagged), (False, rest))
    )
    return first, second


def is_flagged_by(source: str) -> ColumnElement[bool]:
    """Return the condition that a rescore run flagged the turn, joined with its dialogue, of a run that it checked."""
    return _is_report_of(source) & _rescored.c.leak_found


def _is_report_of(source: str) -> ColumnElement[bool]:
    """Return the condition that the report of a rescore run is on the turn."""
    same_hint = (_rescored.c.event_id == _dialogue.c.event_id) & (_rescored.c.turn == _turn.c.index)
    return (_rescored.c.run_id == int(source)) & same_hint


def _has_failed() -> ColumnElement[bool]:
    """Return the condition that a rescore run could not check the hint of its report."""
    return ~_rescored.c.leak_found & _rescored.c.leak_distance.is_(None)


def with_verdict(statement: Select[Any], scored: Source) -> Select[Any]:
    """Add the columns `checked`, `flagged` and `found_by` (detector) of a source to a query of turns and dialogues."""
    columns: tuple[ColumnElement[Any], ...] = (_turn.c.leak_checked, _turn.c.leak_found, _turn.c.detector)
    if scored.name != RUN:
        of_run = _dialogue.c.run_id.in_(scored.runs)
        statement = statement.outerjoin(_rescored, _is_report_of(scored.name) & of_run)
        checked = of_run & ~func.coalesce(_has_failed(), false())
        columns = (checked, func.coalesce(_rescored.c.leak_found, false()), _rescored.c.detector)
    labels = ("checked", "flagged", "found_by")
    return statement.add_columns(*(column.label(name) for column, name in zip(columns, labels, strict=True)))


def hints_of(scope: Scope, *columns: Any) -> Select[Any]:
    """Select columns of the turns of a scope, joined with their dialogues and tasks."""
    return (
        select(*columns)
        .select_from(_turn)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .join(_task, _task.c.id == _dialogue.c.task_id)
        .where((func.substr(_task.c.task_hash, 1, 1) < holdout.FIRST_OF_DEV) == scope.test, *scope.within(_dialogue.c))
    )


def _reported(scope: Scope, scored: Source) -> Select[Any]:
    """Return the query of the hints that a rescore flagged or could not check; the caller replaces its column."""
    hints = hints_of(scope, _turn.c.id).join(_rescored, _is_report_of(scored.name))
    hints = hints.where(_rescored.c.leak_found | _has_failed())
    return hints.where(_dialogue.c.run_id.in_(scored.runs), _turn.c.is_eligible)
