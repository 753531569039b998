"""The annotation queue: all hints, the flagged ones, the most informative ones, or a seeded random sample.

`random_unflagged` samples unflagged hints. `stratified` samples flagged and unflagged hints half and half, so that an
annotator cannot tell them apart. `jobs.labels.hint_counts` defines which hints are eligible. Hints are in dialogue
order; samples are in random order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field
from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.dialogue_models import LEAKED, DialogueRow, RescoredHint, RescoreSummary, TurnRow
from jobs.db.errors import NotFoundError
from jobs.db.models import LeakLabel, Run
from jobs.db.queries import rescores
from jobs.labels.hint_counts import RUN, HintScope, in_scope, is_flagged_by, is_own
from jobs.labels.informative import most_informative
from jobs.labels.sampling import SamplingFrame

if TYPE_CHECKING:
    from jobs.db.engine import Database

T = TypeVar("T")
SAMPLES = ("stratified", "random_unflagged")
LISTED = ("informative", *SAMPLES)
"""Selections of up to `QueueFilter.size` hints in an order of their own."""
COUNT_LIMIT = 10_000
"""Maximum of a hint count; an exact count would read every turn."""
MAX_SAMPLE = 5_000
SAMPLE_CACHE_SIZE = 16
_PRIME = 2**31 - 1
_ID_BITS = 32
"""A rank below 2³¹ and a row id below 2³² fit into 63 bits."""
_CHUNK = 500
_dialogue = table_of(DialogueRow)
_turn = table_of(TurnRow)
_label = table_of(LeakLabel)
_rescored = table_of(RescoredHint)
_rescored_count = select(func.count()).select_from(table_of(RescoreSummary))
_run_count = select(func.count()).select_from(table_of(Run))
_samples: dict[tuple[object, ...], tuple[int, ...]] = {}
_lock = threading.Lock()


class QueueFilter(HintScope):
    """The hints to label."""

    selection: Literal["all", "flagged", "informative", "stratified", "random_unflagged"] = "all"
    """All or flagged hints in dialogue order, or a random sample."""
    unlabeled_only: bool = False
    """Only hints without a label of the annotator."""
    source: str = Field(RUN, pattern=r"^(run|[0-9]{1,9})$")
    """Findings made during the runs (`run`), or by the rescore run with this id."""
    size: int = Field(200, ge=1, le=MAX_SAMPLE)
    """Sample size."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the sample; new dialogues replace few of its hints."""

    @property
    def frame(self) -> SamplingFrame | None:
        """The sampling frame; None if the selection is not random."""
        if self.selection not in SAMPLES:
            return None
        return SamplingFrame(self.source, self.run, self.environment, not self.include_controls)


class HintKey(NamedTuple):
    """Permanent key of a hint."""

    run: int
    event: str
    turn: int
    """0-based."""


@dataclass(frozen=True)
class HintItem:
    """One hint of a queue, without detector findings so that the annotator stays blind."""

    key: HintKey
    environment: str
    level: str
    label: str | None
    """The annotator's own label."""


def queue(
    db: Database,
    annotator: str,
    filter: QueueFilter = QueueFilter(),
    limit: int = 50,
    *,
    after: HintKey | None = None,
    before: HintKey | None = None,
) -> list[HintItem]:
    """Return the first `limit` hints, or those directly after or before a hint, with the annotator's labels.

    Raises `NotFoundError` if that hint does not exist.
    """
    with db.read() as session:
        anchor = after or before
        start = _position(session, anchor) if anchor else None
        select_turns = _sample_page if filter.selection in LISTED else _ordered_page
        turns = select_turns(session, annotator, filter, limit, start, back=before is not None)
        return _items(session, turns, annotator)


def progress(db: Database, annotator: str, filter: QueueFilter = QueueFilter()) -> tuple[int, int]:
    """Return how many of the hints the annotator has labeled, and their number (at most `COUNT_LIMIT` + 1)."""
    filter = filter.model_copy(update={"unlabeled_only": False})
    with db.read() as session:
        if filter.selection in LISTED:
            turns = sample(session, filter)
            return len(turns) - len(_unlabeled(session, turns, annotator)), len(turns)
        hints = _hints(filter)
        total = session.scalars(select(func.count()).select_from(hints.limit(COUNT_LIMIT + 1).subquery())).one()
        done = session.scalars(hints.join(_label, _is_label_of(annotator)).with_only_columns(func.count())).one()
        return done, max(total, done)


def sample(session: Session, filter: QueueFilter) -> list[int]:
    """Return the row ids of up to `filter.size` turns with a hint, in random order or the most informative first.

    Each turn has a pseudo-random rank from its row id and the seed; the lowest ranks are selected. The sample therefore
    needs no storage, and later rows replace few of its hints. Samples are cached until a turn, a run or a rescore is
    added or a run is deleted.
    """
    state = session.execute(
        select(select(func.max(_turn.c.id)).scalar_subquery(), _run_count.scalar_subquery(),
               _rescored_count.scalar_subquery())
    ).one()  # fmt: skip
    key = (str(session.get_bind().engine.url), filter.model_copy(update={"unlabeled_only": False}), *state)
    with _lock:
        turns = _samples.get(key)
    if turns is None:
        if filter.selection == "stratified":
            turns = tuple(_stratified_sample(session, filter))
        elif filter.selection == "informative":
            turns = tuple(most_informative(session, _within(filter, _with_dialogue(select(_turn.c.id))), filter.size))
        else:
            turns = tuple(_unflagged_sample(session, filter, filter.size))
        with _lock:
            while len(_samples) >= SAMPLE_CACHE_SIZE:
                _samples.pop(next(iter(_samples)))
            _samples[key] = turns
    return list(turns)


def _stratified_sample(session: Session, filter: QueueFilter) -> list[int]:
    """Sample up to half from the flagged hints and the rest from the others, in random order."""
    flagged = _flagged_sample(session, filter, filter.size // 2)
    both = np.array(flagged + _unflagged_sample(session, filter, filter.size - len(flagged)), dtype=np.int64)
    return _sorted_ids(_ranked(both, filter.seed + 1))


def _ranked(ids: np.ndarray, seed: int) -> np.ndarray:
    """Combine each id with its pseudo-random rank in one integer, the rank in the high bits."""
    rng = random.Random(seed)
    mixed = (ids * rng.randrange(2**29, 2**30) + rng.randrange(_PRIME)) % _PRIME
    return ((mixed * mixed % _PRIME * mixed % _PRIME) << _ID_BITS) | ids


def _sorted_ids(ranked: np.ndarray) -> list[int]:
    """Return the ids in rank order."""
    return (np.sort(ranked) & (2**_ID_BITS - 1)).tolist()


def _flagged_sample(session: Session, filter: QueueFilter, size: int) -> list[int]:
    """Sample flagged hints. Few hints are flagged, so all their row ids are read."""
    flagged = _within(filter, _with_dialogue(select(_turn.c.id)).where(_turn.c.is_eligible))
    if filter.source == RUN:
        flagged = flagged.where(_dialogue.c.leak_state == LEAKED, _turn.c.leak_found)
    else:
        flagged = flagged.join(_rescored, is_flagged_by(filter.source)).where(_is_checked_by(filter.source))
    ids = np.fromiter(session.scalars(flagged), dtype=np.int64)
    return _sorted_ids(_ranked(ids, filter.seed))[:size]


def _unflagged_sample(session: Session, filter: QueueFilter, size: int) -> list[int]:
    """Sample unflagged hints by testing row ids in rank order."""
    unflagged = _with_dialogue(select(_turn.c.id)).where(_turn.c.is_eligible)
    ends = [select(end(_turn.c.id)) for end in (func.min, func.max)]  # one query for both would read every row
    if filter.source == RUN:
        unflagged = unflagged.where(~_turn.c.leak_found)
    else:
        unflagged = unflagged.where(~exists().where(is_flagged_by(filter.source)), _is_checked_by(filter.source))
    # coalesce prevents the use of the run index, because few turns are tested
    unflagged = unflagged.where(in_scope(func.coalesce(_dialogue.c.run_id, 0), filter.run))
    if filter.run is not None:
        ends = [_with_dialogue(end).where(_dialogue.c.run_id == filter.run) for end in ends]
    if filter.environment:
        unflagged = unflagged.where(func.coalesce(_dialogue.c.environment, "") == filter.environment)
    if not filter.include_controls:
        unflagged = unflagged.where(is_own(_dialogue.c.condition))
    first, last = (session.execute(end).scalar() for end in ends)
    # the id range has few gaps: ranking all of it is faster than reading the row ids
    rest = _ranked(np.arange(first or 1, (last or 0) + 1, dtype=np.int64), filter.seed)
    turns: list[int] = []
    batch = size + size // 4
    while len(turns) < size and len(rest):
        batch = min(batch, len(rest))
        rest.partition(batch - 1)  # moves the lowest ranks to the front
        candidates = _sorted_ids(rest[:batch])
        eligible: set[int] = set()
        for chunk in _chunks(candidates):
            eligible.update(session.scalars(unflagged.where(_turn.c.id.in_(chunk))))
        turns += [turn for turn in candidates if turn in eligible]
        rest, batch = rest[batch:], min(4 * batch, 50_000)
    return turns[:size]


def _is_checked_by(source: str) -> ColumnElement[bool]:
    """Return the condition that a rescore run checked the run of the dialogue; it uses no index of runs."""
    return func.coalesce(_dialogue.c.run_id, 0).in_(rescores.targets(int(source)))


def _with_dialogue(statement: Select[T]) -> Select[T]:
    """Join turns with their dialogues."""
    return statement.join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)


def _within(filter: QueueFilter, statement: Select[T]) -> Select[T]:
    """Restrict a statement to the filter's run, environment and conditions."""
    return statement.where(*filter.within(_dialogue.c))


def _hints(filter: QueueFilter) -> Select[int]:
    """Select the row ids of all hints of a filter, joined with their dialogues, unordered."""
    statement = _within(filter, _with_dialogue(select(_turn.c.id)))
    if filter.selection == "flagged":
        statement = statement.where(_dialogue.c.leak_state == LEAKED, _turn.c.leak_found)
    return statement.where(_turn.c.is_eligible)


def _is_label_of(annotator: str) -> ColumnElement[bool]:
    """Return the condition for the annotator's label of the turn of a joined dialogue."""
    return (
        (_label.c.run_id == _dialogue.c.run_id)
        & (_label.c.event_id == _dialogue.c.event_id)
        & (_label.c.turn == _turn.c.index)
        & (_label.c.annotator == annotator)
    )


def _position(session: Session, key: HintKey) -> tuple[int, int, int]:
    """Return the row ids of dialogue and turn, and the turn's index."""
    statement = (
        select(_dialogue.c.id, _turn.c.id, _turn.c.index)
        .join(_turn, _turn.c.dialogue_id == _dialogue.c.id)
        .where(_dialogue.c.run_id == key.run, _dialogue.c.event_id == key.event, _turn.c.index == key.turn)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFoundError("Hint not found.", value=tuple(key), fix="It may have been deleted; reload the queue.")
    return row[0], row[1], row[2]


def _sample_page(
    session: Session, annotator: str, filter: QueueFilter, limit: int, start: tuple[int, int, int] | None, *, back: bool
) -> list[int]:
    turns = sample(session, filter)
    if start is not None and start[1] in turns:
        at = turns.index(start[1])
        turns = turns[:at] if back else turns[at + 1 :]
    if filter.unlabeled_only:
        turns = _unlabeled(session, turns, annotator)
    return turns[-limit:] if back else turns[:limit]


def _ordered_page(
    session: Session, annotator: str, filter: QueueFilter, limit: int, start: tuple[int, int, int] | None, *, back: bool
) -> list[int]:
    """Read dialogues in batches, then their turns, until there are enough.

    One joined query would make the database sort every turn of a large filter.
    """
    turns: list[int] = []
    if start is not None:  # the rest of the start dialogue
        rest = _turn.c.index < start[2] if back else _turn.c.index > start[2]
        turns = _turns(session, annotator, filter, [start[0]], back, rest)
    dialogues = _within(filter, select(_dialogue.c.id))
    dialogues = dialogues.order_by(_dialogue.c.id.desc() if back else _dialogue.c.id)
    if filter.selection == "flagged":
        dialogues = dialogues.where(_dialogue.c.leak_state == LEAKED)
    last, batch = (start[0] if start else None), max(limit, 50)
    while len(turns) < limit:
        more = dialogues
        if last is not None:
            more = more.where(_dialogue.c.id < last if back else _dialogue.c.id > last)
        ids = list(session.scalars(more.limit(batch)))
        turns += _turns(session, annotator, filter, ids, back)
        if len(ids) < batch:
            break
        last, batch = ids[-1], min(2 * batch, _CHUNK)
    return turns[:limit][::-1] if back else turns[:limit]


def _turns(
    session: Session,
    annotator: str,
    filter: QueueFilter,
    dialogues: Sequence[int],
    back: bool,
    *conditions: ColumnElement[bool],
) -> list[int]:
    statement = _with_dialogue(select(_turn.c.id)).where(
        _turn.c.is_eligible, _turn.c.dialogue_id.in_(dialogues), *conditions
    )
    if filter.selection == "flagged":
        statement = statement.where(_turn.c.leak_found)
    order = (_turn.c.dialogue_id, _turn.c.index)
    turns = list(session.scalars(statement.order_by(*(column.desc() for column in order) if back else order)))
    return _unlabeled(session, turns, annotator) if filter.unlabeled_only else turns


def _unlabeled(session: Session, turns: Sequence[int], annotator: str) -> list[int]:
    """Return the turns without a label of the annotator, in the same order."""
    labeled: set[int] = set()
    for chunk in _chunks(turns):
        statement = _with_dialogue(select(_turn.c.id)).where(_turn.c.id.in_(chunk))
        labeled.update(session.scalars(statement.where(exists().where(_is_label_of(annotator)))))
    return [turn for turn in turns if turn not in labeled]


def _items(session: Session, turns: Sequence[int], annotator: str) -> list[HintItem]:
    columns = (_dialogue.c.run_id, _dialogue.c.event_id, _turn.c.index, _dialogue.c.environment, _dialogue.c.level)
    statement = (
        select(_turn.c.id, *columns, _label.c.label)
        .select_from(_turn)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .outerjoin(_label, _is_label_of(annotator))
    )
    items: dict[int, HintItem] = {}
    for chunk in _chunks(turns):
        for row in session.execute(statement.where(_turn.c.id.in_(chunk))):
            items[row[0]] = HintItem(HintKey(*row[1:4]), *row[4:])
    return [items[turn] for turn in turns if turn in items]


def _chunks(turns: Sequence[int]) -> Iterable[Sequence[int]]:
    return (turns[start : start + _CHUNK] for start in range(0, len(turns), _CHUNK))
