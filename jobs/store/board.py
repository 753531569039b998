"""What the detector board needs of the database: labels beside findings, sizes of what was drawn from, openings."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from jobs import board, halves
from jobs.board import Board, Judgement, Labelled, Population, Said
from jobs.draws import Draw
from jobs.errors import NotFound
from jobs.store import counts
from jobs.store.counts import RUN, Found, Sort, bucket
from jobs.store.labels import labeller_name
from jobs.store.runs import one
from jobs.tables import Dialogue, LeakFinding, LeakLabel, LeakScan, Problem, TestOpening, Turn
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from jobs.database import Database

UNNAMED = "unnamed"
"""The tier of a finding that names none."""
_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_turn: Any = Turn.__table__  # type: ignore[attr-defined]
_label: Any = LeakLabel.__table__  # type: ignore[attr-defined]
_finding: Any = LeakFinding.__table__  # type: ignore[attr-defined]
_problem: Any = Problem.__table__  # type: ignore[attr-defined]
_scan: Any = LeakScan.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Scope:
    """Which hints a board is about, and whose findings."""

    run: int | None = None
    environment: str = ""
    source: str = RUN
    """run, or the id of a run that asked detectors again."""
    test: bool = False
    """The test half of the tasks; else the other."""


@dataclass(frozen=True)
class Source:
    """Findings that can be judged."""

    name: str
    """run, or the id of the run that asked."""
    detectors: str
    """In words."""
    runs: tuple[int, ...]
    """The runs that it read; empty for all."""
    time: float | None = None


def sources(db: Database) -> list[Source]:
    """What was found while runs went on, and by each run that asked again, the newest first."""
    with db.read() as session:
        rows = session.execute(select(_scan.c.run_id, _scan.c.target_run_id, _scan.c.detectors, _scan.c.time)).all()
    found: dict[int, Source] = {}
    for run, target, detectors, at in rows:
        held = found.get(run) or Source(str(run), detectors, (), at)
        found[run] = replace(held, runs=(*held.runs, target), time=max(at, held.time or at))
    return [Source(RUN, "as each run was configured", ()), *(found[run] for run in sorted(found, reverse=True))]


def source(db: Database, name: str) -> Source:
    """One of them; raises `NotFound`."""
    known = sources(db)
    for each in known:
        if each.name == name:
            return each
    raise NotFound("There are no findings of this source.", value=name, known=[each.name for each in known][:20])


def read(db: Database, scope: Scope, by: str = "tier") -> Board:
    """The board of a scope; raises as `read_all`, and `ConfigError` for a breakdown that does not exist."""
    return read_all(db, scope, (by,))[by]


def read_all(db: Database, scope: Scope, by: Sequence[str] = board.BY) -> dict[str, Board]:
    """The board of a scope under several breakdowns.

    The test half is read as willingly as the other: who shows it notes that with `open_test`. Raises `NotFound` for a
    run or source that does not exist.
    """
    if unknown := set(by) - set(board.BY):
        raise ConfigError("There is no such breakdown.", value=unknown.pop(), known=board.BY)
    judged = source(db, scope.source)
    if scope.run is not None:
        with db.read() as session:
            one(session, scope.run)
    hints = labelled(db, scope, judged)
    drawn_by = {Draw.parse(a.drawn).source for hint in hints for a in hint.answers if a.drawn is not None}
    draw_source = judged.name if judged.name in drawn_by else RUN
    sizes = population(db, scope, judged, draw_source)
    return {name: board.board(hints, sizes, draw_source, name) for name in by}


def population(db: Database, scope: Scope, judged: Source, draw_source: str = RUN) -> Population:
    """How many hints of the scope the source judged, by sort and judgement."""
    made: Counter[tuple[Sort, Judgement]] = Counter()
    runs = None if judged.name == RUN else judged.runs
    every = counts.during_runs(db, scope.test, scope.run, scope.environment, runs)
    if runs is None:
        for (sort, found), n in every.items():
            if found.checked:
                made[sort, Judgement(found.flagged, _tier(found))] += n
        return made
    own = draw_source == judged.name
    for (sort, during), n in every.items():
        made[sort, Judgement(during.flagged and not own, None)] += n
    for (sort, during, found), n in counts.later(
        db, judged.name, judged.runs, scope.test, scope.run, scope.environment
    ).items():
        made[sort, Judgement(during.flagged and not own, None)] -= n
        made[sort, Judgement(own or during.flagged, _tier(found))] += n
    return made


def labelled(db: Database, scope: Scope, judged: Source | None = None) -> list[Labelled]:
    """All labelled hints of the scope, the last labelled last."""
    judged = judged or source(db, scope.source)
    first, last = _finding.alias("first"), _finding.alias("last")
    statement = (
        select(
            _label.c.run_id, _label.c.event, _label.c.turn, _label.c.labeller, _label.c.label, _label.c.blind,
            _label.c.drawn, _dialogue.c.environment, _dialogue.c.stage, _dialogue.c.step, _dialogue.c.checkpoint,
            _dialogue.c.control, _problem.c.content, _turn.c.teacher, _turn.c.checked, _turn.c.leaked,
            first.c.tier.label("tier"), last.c.turn_id.label("found"), last.c.tier.label("last_tier"),
        )
        .join(_dialogue, (_dialogue.c.run_id == _label.c.run_id) & (_dialogue.c.event == _label.c.event))
        .join(_turn, (_turn.c.dialogue_id == _dialogue.c.id) & (_turn.c.index == _label.c.turn))
        .join(_problem, _problem.c.id == _dialogue.c.problem_id)
        .outerjoin(first, (first.c.turn_id == _turn.c.id) & (first.c.source == RUN))
        .outerjoin(last, (last.c.turn_id == _turn.c.id) & (last.c.source == judged.name))
        .where(counts.says(), counts.among(_label.c.run_id, scope.run))
        .order_by(_label.c.time, _label.c.id)
    )  # fmt: skip
    if scope.environment:
        statement = statement.where(_dialogue.c.environment == scope.environment)
    hints: dict[tuple[int, str, int], Any] = {}
    answers: dict[tuple[int, str, int], list[Said]] = defaultdict(list)
    with db.read() as session:
        for row in session.execute(statement):
            if halves.in_test(row.content) == scope.test:
                hints[row[:3]] = row
                answers[row[:3]].append(Said(row.labeller, row.label, row.blind, row.drawn))
    return [_labelled(row, tuple(answers[key]), judged) for key, row in hints.items()]


def _labelled(row: Any, answers: tuple[Said, ...], judged: Source) -> Labelled:
    sort = Sort(
        row.run_id, row.environment, row.teacher or "", row.stage, bucket(row.step), row.checkpoint or "",
        row.control or "", halves.in_test(row.content),
    )  # fmt: skip
    during = Found(row.checked, row.leaked, row.tier or "")
    found = during
    if judged.name != RUN:
        found = Found(row.run_id in judged.runs, row.found is not None, row.last_tier or "")
    found = replace(found, tier=_tier(found) or "")
    return Labelled(row.run_id, row.event, row.turn, sort, row.content, during, found, answers)


def _tier(found: Found) -> str | None:
    return (found.tier or UNNAMED) if found.flagged else None


def open_test(db: Database, scope: Scope, who: str) -> TestOpening:
    """Note that somebody looks at the test half; raises `ConfigError` where the name is none, `NotFound` as `read`."""
    opening = TestOpening(
        time=time.time(),
        who=labeller_name(who),
        source=scope.source,
        detectors=source(db, scope.source).detectors,
        run_id=scope.run,
        environment=scope.environment,
    )
    with db.write() as session:
        if scope.run is not None:
            one(session, scope.run)
        session.add(opening)
    return opening


def openings(db: Database) -> list[TestOpening]:
    """Every look at the test half, the newest first: tasks are in the same half in all runs and for all sources."""
    with db.read() as session:
        return list(session.scalars(select(TestOpening).order_by(TestOpening.time.desc(), TestOpening.id.desc())))  # type: ignore[union-attr,attr-defined]
