"""Which hints are labelled and counted, and how many there are of each sort: kept as they come in and read in
milliseconds however many there are.

What `says` leaves out holds no words that could leak. What `among` leaves out are forks, in which one dialogue goes on
many times over under hints that were chosen for it: their hints count only where their run is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, func, select, text
from sqlmodel import Session

from jobs import halves
from jobs.tables import Dialogue, HintCount, LeakFinding, Problem, Run, Turn

if TYPE_CHECKING:
    from jobs.database import Database

CONTENTLESS = "contentless"
"""The teacher whose hints say nothing that could leak."""
RUN = "run"
"""The source of what was found while the run went on."""
COUNTERFACTUAL = ("fork", "hint_value")
"""Kinds of runs whose dialogues are branches of others'."""
STEPS = 10
"""Steps of a stage that are counted together."""
_count: Any = HintCount.__table__  # type: ignore[attr-defined]
_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_run: Any = Run.__table__  # type: ignore[attr-defined]
_turn: Any = Turn.__table__  # type: ignore[attr-defined]
_problem: Any = Problem.__table__  # type: ignore[attr-defined]
_finding: Any = LeakFinding.__table__  # type: ignore[attr-defined]
_NAMED = ("run_id", "environment", "teacher", "stage", "bucket", "checkpoint", "control", "test")
_KEY = [column.name for column in _count.primary_key.columns]
_NAMES = ", ".join(_KEY)
_ADD = text(
    f"INSERT INTO hintcount ({_NAMES}, n) VALUES ({', '.join(f':{name}' for name in _KEY)}, :n) "
    f"ON CONFLICT ({_NAMES}) DO UPDATE SET n = hintcount.n + excluded.n"
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sort:
    """What the board divides hints by, apart from what a detector says of them."""

    run_id: int
    environment: str
    teacher: str
    stage: str
    bucket: int
    """Tens of steps: 1 for the steps 1 to 10; 0 for step 0."""
    checkpoint: str
    """Of an evaluation; empty in training."""
    control: str
    test: bool
    """The task is in the test half."""


@dataclass(frozen=True)
class Found:
    """What a source says of hints."""

    checked: bool
    flagged: bool
    tier: str


def says() -> ColumnElement[bool]:
    """The condition under which a turn holds a hint: no contentless one, and none that stands in for a failed one."""
    written = _turn.c.hint_error.is_(None) | _turn.c.original.is_not(None)
    return _turn.c.hint.is_not(None) & (func.coalesce(_turn.c.teacher, "") != CONTENTLESS) & written


def among(column: Any, run: int | None) -> ColumnElement[bool]:
    """The condition under which hints of the run with the id in `column` are meant: it is `run`, or where that is None
    any but a counterfactual one."""
    if run is not None:
        return column == run  # type: ignore[no-any-return]
    return column.not_in(select(_run.c.id).where(_run.c.kind.in_(COUNTERFACTUAL)))  # type: ignore[no-any-return]


def bucket(step: int) -> int:
    """In which ten steps a step lies."""
    return (step + STEPS - 1) // STEPS


def add(session: Session, run_id: int, made: Iterable[tuple[Row, Row, Sequence[Row], Sequence[Row | None]]]) -> None:
    """Count new hints, where they say something: each dialogue's row, its problem's, its turns' and their findings'."""
    tally: Counter[tuple[Any, ...]] = Counter()
    for dialogue, problem, turns, findings in made:
        sort = (
            run_id, dialogue["environment"], dialogue["stage"], bucket(dialogue["step"]),
            dialogue["checkpoint"] or "", dialogue["control"] or "", halves.in_test(problem["content"]),
        )  # fmt: skip
        for turn, finding in zip(turns, findings, strict=True):
            if turn["hint"] is None or turn["teacher"] == CONTENTLESS:
                continue
            if turn["hint_error"] is not None and turn["original"] is None:
                continue
            tier = (finding or {}).get("tier") or ""
            tally[(*sort, turn["teacher"] or "", turn["checked"], turn["leaked"], tier)] += 1
    names = "run_id environment stage bucket checkpoint control test teacher checked flagged tier".split()
    rows = [{**dict(zip(names, key, strict=True)), "n": n} for key, n in tally.items()]
    if rows:
        session.connection().execute(_ADD, rows)


def during_runs(
    db: Database, test: bool, run: int | None = None, environment: str = "", runs: Sequence[int] | None = None
) -> dict[tuple[Sort, Found], int]:
    """How many hints of a half there are by what was found during their run; of `runs` only, where they are given."""
    statement = select(
        *(_count.c[name] for name in _NAMED), _count.c.checked, _count.c.flagged, _count.c.tier, _count.c.n
    )
    statement = statement.where(_count.c.test == test, among(_count.c.run_id, run))
    if environment:
        statement = statement.where(_count.c.environment == environment)
    if runs is not None:
        statement = statement.where(_count.c.run_id.in_(runs))
    with db.read() as session:
        found = {(Sort(*row[:8]), Found(*row[8:11])): row[11] for row in session.execute(statement)}
    return found


def later(
    db: Database, source: str, runs: Sequence[int], test: bool, run: int | None = None, environment: str = ""
) -> dict[tuple[Sort, Found, Found], int]:
    """Hints of a half of `runs` that a later source flagged: sort, what was found at run time, and what it said."""
    first, last = _finding.alias("first"), _finding.alias("last")
    none = func.coalesce
    divided = [
        _dialogue.c.run_id, _dialogue.c.environment, none(_turn.c.teacher, ""), _dialogue.c.stage,
        (_dialogue.c.step + (STEPS - 1)) // STEPS, none(_dialogue.c.checkpoint, ""), none(_dialogue.c.control, ""),
        _turn.c.checked, _turn.c.leaked, none(first.c.tier, ""), none(last.c.tier, ""),
    ]  # fmt: skip
    statement = (
        select(*divided)
        .select_from(last)
        .join(_turn, _turn.c.id == last.c.turn_id)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .join(_problem, _problem.c.id == _dialogue.c.problem_id)
        .outerjoin(first, (first.c.turn_id == _turn.c.id) & (first.c.source == RUN))
        .where(last.c.source == source, _dialogue.c.run_id.in_(runs))
        .where(says(), among(_dialogue.c.run_id, run))
    )
    first_digit = func.substr(_problem.c.content, 1, 1)
    statement = statement.where((first_digit < halves.FIRST_OF_DEV) == test)
    if environment:
        statement = statement.where(_dialogue.c.environment == environment)
    with db.read() as session:
        tally = Counter(tuple(row) for row in session.execute(statement))
    made: dict[tuple[Sort, Found, Found], int] = {}
    for row, n in tally.items():
        sort = Sort(**dict(zip(_NAMED[:-1], row, strict=False)), test=test)
        made[sort, Found(*row[7:10]), Found(True, True, row[10])] = n
    return made
