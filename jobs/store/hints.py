"""Which hints are there to label: all, the flagged ones, or a seeded random sample.

`audit` draws from the unflagged hints. `mixed` draws from the flagged ones and from the others, half and half, so that
a labeller cannot tell which is which. Which hints there are at all is said in `jobs.store.counts`. The order is that of
the dialogues, but for the samples, whose order is random as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlalchemy import exists, func, select
from sqlmodel import Session

from jobs.draws import Draw
from jobs.errors import NotFound
from jobs.store.counts import RUN, among, says
from jobs.tables import Dialogue, LeakFinding, LeakLabel, LeakScan, Run, Turn
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from jobs.database import Database

WHICH = ("all", "flagged", "audit", "mixed")
SAMPLES = ("audit", "mixed")
"""Those that are random draws."""
COUNT_LIMIT = 10_000
"""Counts of hints stop here: nobody labels more, and an exact count would read every turn."""
MAX_SAMPLE = 5_000
_PRIME = 2**31 - 1
_ID_BITS = 32
"""A rank below 2³¹ and a row id below 2³² are one whole number of 63 bits."""
_IN = 500
_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_turn: Any = Turn.__table__  # type: ignore[attr-defined]
_label: Any = LeakLabel.__table__  # type: ignore[attr-defined]
_finding: Any = LeakFinding.__table__  # type: ignore[attr-defined]
_scan: Any = LeakScan.__table__  # type: ignore[attr-defined]
_scans = select(func.count()).select_from(_scan)
_newest = select(func.max(_turn.c.id))
_runs = select(func.count()).select_from(Run.__table__)  # type: ignore[attr-defined]
_drawn: dict[tuple[object, ...], tuple[int, ...]] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class LabelFilter:
    """Which hints."""

    which: str = "all"
    """all, flagged (a detector convicted it), audit (a random sample of those that none convicted), or mixed."""
    run: int | None = None
    environment: str = ""
    todo: bool = False
    """Only hints that the labeller has not answered."""
    size: int = 200
    """Hints in the sample."""
    seed: int = 0
    """Fixes the sample; it stays the same while more dialogues come in, but for the few that enter it."""
    source: str = RUN
    """Whose findings part the hints of a sample: run, or the id of a run that asked again."""

    def __post_init__(self) -> None:
        if self.which not in WHICH:
            raise ConfigError("There is no such choice of hints.", value=self.which, known=WHICH)
        if not 1 <= self.size <= MAX_SAMPLE:
            raise ConfigError(f"A sample has 1 to {MAX_SAMPLE} hints.", value=self.size)
        if not 0 <= self.seed < 2**31:
            raise ConfigError("A seed is a whole number from 0 to 2147483647.", value=self.seed)
        if self.source != RUN and not (self.source.isascii() and self.source.isdigit() and len(self.source) < 10):
            raise ConfigError("There is no such source of findings.", value=self.source, known=[RUN, "17"])

    @property
    def draw(self) -> Draw | None:
        """The population of a sample; None for what is no random draw."""
        return Draw(self.source, self.run, self.environment) if self.which in SAMPLES else None


class HintKey(NamedTuple):
    """Names a hint for good."""

    run: int
    event: str
    turn: int
    """0-based."""


@dataclass(frozen=True)
class HintItem:
    """One hint of a queue. It carries no finding of a detector, so that a labeller stays blind."""

    key: HintKey
    environment: str
    level: str
    label: str | None
    """The labeller's own answer."""


def queue(
    db: Database,
    labeller: str,
    filter: LabelFilter = LabelFilter(),
    limit: int = 50,
    *,
    after: HintKey | None = None,
    before: HintKey | None = None,
) -> list[HintItem]:
    """The first hints, or those that stand just after or before a given one, with the labeller's own answers.

    Fewer than `limit` at an end. Raises `NotFound` where the given one is not there.
    """
    with db.read() as session:
        beside = after or before
        start = _place(session, beside) if beside else None
        if filter.which in SAMPLES:
            turns = _of_sample(session, labeller, filter, limit, start, back=before is not None)
        else:
            turns = _walk(session, labeller, filter, limit, start, back=before is not None)
        return _items(session, turns, labeller)


def progress(db: Database, labeller: str, filter: LabelFilter = LabelFilter()) -> tuple[int, int]:
    """How many of these hints the labeller has answered, and how many there are (at most `COUNT_LIMIT` + 1)."""
    filter = replace(filter, todo=False)
    with db.read() as session:
        if filter.which in SAMPLES:
            turns = sample(session, filter)
            return len(turns) - len(_unanswered(session, turns, labeller)), len(turns)
        hints = _hints(filter)
        total = session.execute(select(func.count()).select_from(hints.limit(COUNT_LIMIT + 1).subquery())).scalar_one()
        answered = hints.join(_label, _is_answer(labeller)).with_only_columns(func.count())
        return (done := session.execute(answered).scalar_one()), max(total, done)


def sample(session: Session, filter: LabelFilter) -> list[int]:
    """Row ids of `filter.size` turns with a hint, in random order; fewer where there are not so many.

    Each turn gets a pseudo-random number from its row id and the seed; the least win. So the choice needs no memory,
    and rows that come later push out only few. A draw ranks every turn's row id, so the last draws are held as long as
    no turn comes, no run goes and nobody asks detectors again.
    """
    newest, *held = session.execute(
        select(select(func.max(_turn.c.id)).scalar_subquery(), _runs.scalar_subquery(), _scans.scalar_subquery())
    ).one()
    key = (str(session.get_bind().engine.url), replace(filter, todo=False), newest, *held)
    with _lock:
        drawn = _drawn.get(key)
    if drawn is None:
        drawn = tuple(_mix(session, filter) if filter.which == "mixed" else _draw(session, filter, filter.size))
        with _lock:
            while len(_drawn) >= 16:
                _drawn.pop(next(iter(_drawn)))
            _drawn[key] = drawn
    return list(drawn)


def _mix(session: Session, filter: LabelFilter) -> list[int]:
    """Half from the flagged hints, where there are so many, and the rest from the others, in random order."""
    flagged = _draw_flagged(session, filter, filter.size // 2)
    both = np.array(flagged + _draw(session, filter, filter.size - len(flagged)), dtype=np.int64)
    return (np.sort(_ranked(both, filter.seed + 1)) & (2**_ID_BITS - 1)).tolist()


def _ranked(ids: np.ndarray, seed: int) -> np.ndarray:
    """Each id below its pseudo-random rank, as one whole number."""
    rng = random.Random(seed)
    mixed = (ids * rng.randrange(2**29, 2**30) + rng.randrange(_PRIME)) % _PRIME
    return ((mixed * mixed % _PRIME * mixed % _PRIME) << _ID_BITS) | ids


def _draw_flagged(session: Session, filter: LabelFilter, size: int) -> list[int]:
    """Few hints are flagged, so that all their row ids are read."""
    flagged = _within(filter, _with_dialogue(select(_turn.c.id)).where(says()))
    if filter.source == RUN:
        flagged = flagged.where(_dialogue.c.leak == 2, _turn.c.leaked)
    else:
        flagged = flagged.join(_finding, (_finding.c.turn_id == _turn.c.id) & (_finding.c.source == filter.source))
    ids = np.fromiter(session.execute(flagged).scalars(), dtype=np.int64)
    return (np.sort(_ranked(ids, filter.seed))[:size] & (2**_ID_BITS - 1)).tolist()


def _draw(session: Session, filter: LabelFilter, size: int) -> list[int]:
    """From the unflagged hints."""
    unflagged = _with_dialogue(select(_turn.c.id)).where(says())
    ends = [select(end(_turn.c.id)) for end in (func.min, func.max)]  # in one query they would read every row
    if filter.source == RUN:
        unflagged = unflagged.where(~_turn.c.leaked)
    else:
        found = exists().where(_finding.c.turn_id == _turn.c.id, _finding.c.source == filter.source)
        scanned = select(_scan.c.target_run_id).where(_scan.c.run_id == int(filter.source))
        unflagged = unflagged.where(~found, func.coalesce(_dialogue.c.run_id, 0).in_(scanned))
    # coalesce: not by the index of all its dialogues, as few are tried
    unflagged = unflagged.where(among(func.coalesce(_dialogue.c.run_id, 0), filter.run))
    if filter.run is not None:
        ends = [_with_dialogue(end).where(_dialogue.c.run_id == filter.run) for end in ends]
    if filter.environment:
        unflagged = unflagged.where(func.coalesce(_dialogue.c.environment, "") == filter.environment)
    first, last = (session.execute(end).scalar() for end in ends)
    # between them are few gaps: to try every number is quicker than to read the row ids
    rest = _ranked(np.arange(first or 1, (last or 0) + 1, dtype=np.int64), filter.seed)
    drawn: list[int] = []
    batch = size + size // 4
    while len(drawn) < size and len(rest):
        batch = min(batch, len(rest))
        rest.partition(batch - 1)  # the least come first
        tried = (np.sort(rest[:batch]) & (2**_ID_BITS - 1)).tolist()
        kept: set[int] = set()
        for part in _parts(tried):
            kept.update(session.execute(unflagged.where(_turn.c.id.in_(part))).scalars())
        drawn += [turn for turn in tried if turn in kept]
        rest, batch = rest[batch:], min(4 * batch, 50_000)
    return drawn[:size]


def _with_dialogue(statement: Any) -> Any:
    """Turns joined with their dialogues."""
    return statement.join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)


def _within(filter: LabelFilter, statement: Any) -> Any:
    """Only the filter's run and environment."""
    statement = statement.where(among(_dialogue.c.run_id, filter.run))
    if filter.environment:
        statement = statement.where(_dialogue.c.environment == filter.environment)
    return statement


def _hints(filter: LabelFilter) -> Any:
    """The row ids of all hints of a filter, joined with their dialogues, in no order."""
    statement = _within(filter, _with_dialogue(select(_turn.c.id)))
    if filter.which == "flagged":
        statement = statement.where(_dialogue.c.leak == 2, _turn.c.leaked)
    return statement.where(says())


def _is_answer(labeller: str) -> Any:
    """The condition under which a label is the labeller's answer on the turn of a joined dialogue."""
    return (
        (_label.c.run_id == _dialogue.c.run_id)
        & (_label.c.event == _dialogue.c.event)
        & (_label.c.turn == _turn.c.index)
        & (_label.c.labeller == labeller)
    )


def _place(session: Session, key: HintKey) -> tuple[int, int, int]:
    """Row ids of dialogue and turn, and the turn's index."""
    statement = (
        select(_dialogue.c.id, _turn.c.id, _turn.c.index)
        .join(_turn, _turn.c.dialogue_id == _dialogue.c.id)
        .where(_dialogue.c.run_id == key.run, _dialogue.c.event == key.event, _turn.c.index == key.turn)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound(
            "There is no such hint.", value=tuple(key), fix="It may have been deleted; start the queue anew."
        )
    return row[0], row[1], row[2]


def _of_sample(
    session: Session, labeller: str, filter: LabelFilter, limit: int, start: tuple[int, int, int] | None, *, back: bool
) -> list[int]:
    turns = sample(session, filter)
    if start is not None and start[1] in turns:
        at = turns.index(start[1])
        turns = turns[:at] if back else turns[at + 1 :]
    if filter.todo:
        turns = _unanswered(session, turns, labeller)
    return turns[-limit:] if back else turns[:limit]


def _walk(
    session: Session, labeller: str, filter: LabelFilter, limit: int, start: tuple[int, int, int] | None, *, back: bool
) -> list[int]:
    """Turns in the order of dialogues: first some dialogues, then their turns, until there are enough.

    One joined query would make the database sort every turn of a large filter.
    """
    found: list[int] = []
    if start is not None:  # the rest of the dialogue that we stand in
        beside = _turn.c.index < start[2] if back else _turn.c.index > start[2]
        found = _turns(session, labeller, filter, [start[0]], back, beside)
    dialogues = _within(filter, select(_dialogue.c.id))
    dialogues = dialogues.order_by(_dialogue.c.id.desc() if back else _dialogue.c.id)
    if filter.which == "flagged":
        dialogues = dialogues.where(_dialogue.c.leak == 2)
    last, batch = (start[0] if start else None), max(limit, 50)
    while len(found) < limit:
        more = dialogues
        if last is not None:
            more = more.where(_dialogue.c.id < last if back else _dialogue.c.id > last)
        ids = [row[0] for row in session.execute(more.limit(batch))]
        found += _turns(session, labeller, filter, ids, back)
        if len(ids) < batch:
            break
        last, batch = ids[-1], min(2 * batch, _IN)
    return found[:limit][::-1] if back else found[:limit]


def _turns(
    session: Session, labeller: str, filter: LabelFilter, dialogues: Sequence[int], back: bool, *conditions: Any
) -> list[int]:
    statement = select(_turn.c.id).where(says(), _turn.c.dialogue_id.in_(dialogues), *conditions)
    if filter.which == "flagged":
        statement = statement.where(_turn.c.leaked)
    order = (_turn.c.dialogue_id, _turn.c.index)
    statement = statement.order_by(*(column.desc() for column in order) if back else order)
    turns = [row[0] for row in session.execute(statement)]
    return _unanswered(session, turns, labeller) if filter.todo else turns


def _unanswered(session: Session, turns: Sequence[int], labeller: str) -> list[int]:
    """Those of the turns that the labeller has not answered, in the same order."""
    answered: set[int] = set()
    for part in _parts(turns):
        statement = (
            select(_turn.c.id)
            .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
            .where(_turn.c.id.in_(part), exists().where(_is_answer(labeller)))
        )
        answered.update(row[0] for row in session.execute(statement))
    return [turn for turn in turns if turn not in answered]


def _items(session: Session, turns: Sequence[int], labeller: str) -> list[HintItem]:
    statement = (
        select(
            _turn.c.id,
            _dialogue.c.run_id,
            _dialogue.c.event,
            _turn.c.index,
            _dialogue.c.environment,
            _dialogue.c.level,
            _label.c.label,
        )
        .select_from(_turn)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .outerjoin(_label, _is_answer(labeller))
    )
    items: dict[int, HintItem] = {}
    for part in _parts(turns):
        for row in session.execute(statement.where(_turn.c.id.in_(part))):
            items[row[0]] = HintItem(HintKey(row[1], row[2], row[3]), row[4], row[5], row[6])
    return [items[turn] for turn in turns if turn in items]


def _parts(turns: Sequence[int]) -> Iterable[Sequence[int]]:
    return (turns[start : start + _IN] for start in range(0, len(turns), _IN))
