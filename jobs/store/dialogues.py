"""Dialogues: filtered pages, one dialogue turn by turn, and its group."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, column, func, literal_column, select, table
from sqlmodel import Session, col

from jobs.database import Database
from jobs.errors import unknown_dialogue
from jobs.migrations import FULL_TEXT
from jobs.store import search as full_text
from jobs.store import worth as hint_worth
from jobs.store.paging import LIMIT, Key, Page, beyond, cursor_after, page_of
from jobs.store.runs import one
from jobs.tables import Dialogue, HintWorth, LeakFinding, LeakLabel, Note, Problem, RewardTerm, Turn
from rl2f_core.errors import DataError

_texts = table(FULL_TEXT, column("rowid", Integer))
_ID: ColumnElement[Any] = getattr(Dialogue, "id")  # noqa: B009  (typed as a column, not as a number)
_WORTH: ColumnElement[Any] = getattr(Dialogue, "worth")  # noqa: B009
ORDERS = ("played", "worth", "-worth")
"""As they were played; or by the worth of their best hint, least or most first: then only those with a measured one."""


@dataclass(frozen=True)
class DialogueFilter:
    """Which dialogues. Empty fields filter nothing."""

    run: int | None = None
    phase: str = ""
    stage: str = ""
    step_from: int | None = None
    step_to: int | None = None
    environment: str = ""
    level: str = ""
    checkpoint: str = ""
    control: str = ""
    solved: str = ""
    """`never`, `any`, or the 1-based turn of the right answer."""
    reward_from: float | None = None
    reward_to: float | None = None
    leak: int | None = None
    """0 unchecked, 1 clean, 2 leaked."""
    labelled: bool | None = None
    error: bool = False
    """Only dialogues that an error ended."""
    group: str = ""
    task: str = ""
    order: str = "played"
    """One of `ORDERS`."""
    search: str = ""
    """Words and `"phrases"` that attempts, hints and problem hold together."""


@dataclass(frozen=True)
class TurnView:
    """A turn with everything that is said of it."""

    row: Turn
    terms: list[RewardTerm]
    findings: list[LeakFinding]
    labels: list[LeakLabel]
    worth: list[HintWorth]
    """Every measurement of what the hint was worth, the one that counts first."""


@dataclass(frozen=True)
class DialogueView:
    """A dialogue, whole."""

    row: Dialogue
    problem: Problem
    turns: list[TurnView]
    notes: list[Note]


def page(
    db: Database,
    filter: DialogueFilter,
    cursor: str | None = None,
    limit: int = LIMIT,
    newest_first: bool = False,
) -> Page[Dialogue]:
    """One page of dialogues in the filter's order, turned round where `newest_first`."""
    with db.read() as session:
        query = _filtered(session, filter, select(Dialogue))
        return page_of(session, query, _keys(filter, newest_first), cursor, limit, _count(session, filter))


def _keys(filter: DialogueFilter, back: bool = False) -> list[Key]:
    if filter.order == "played":
        return [Key(_ID, back)]
    return [Key(_WORTH, (filter.order == "-worth") != back), Key(_ID, back)]


def locate(db: Database, filter: DialogueFilter, event: str, limit: int = LIMIT) -> Page[Dialogue]:
    """The page that holds a dialogue, counted from the start of the list.

    Raises `UnknownDialogueError` where the dialogue is not in the filtered list.
    """
    with db.read() as session:
        keys = _keys(filter)
        values = _filtered(session, filter, select(*(key.column for key in keys)))
        wanted = session.execute(values.where(col(Dialogue.event) == event).order_by(_ID).limit(1)).one_or_none()
        if wanted is None:
            raise unknown_dialogue(filter.run, event)
        counted = _filtered(session, filter, select(func.count())).where(beyond(keys, tuple(wanted), forward=False))
        skipped = session.execute(counted).scalar_one() // limit * limit
        cursor = None
        if skipped:
            order = [k.column.desc() if k.descending else k.column.asc() for k in keys]
            last = session.execute(values.order_by(*order).offset(skipped - 1).limit(1)).one()
            cursor = cursor_after(skipped, list(last))
        query = _filtered(session, filter, select(Dialogue))
        return page_of(session, query, keys, cursor, limit, _count(session, filter))


def _count(session: Session, filter: DialogueFilter) -> int:
    return int(session.execute(_filtered(session, filter, select(func.count()))).scalar_one())


def _filtered(session: Session, filter: DialogueFilter, query: Select[Any]) -> Select[Any]:
    """The query with the filter's conditions."""
    where = _where(filter)
    if filter.search.strip() and session.get_bind().dialect.name == "sqlite":
        where.append(_found(session, filter))
    else:
        where += full_text.contains(filter.search)
    query = query.select_from(Dialogue)
    if filter.task:
        query = query.join(Problem, col(Problem.id) == Dialogue.problem_id)
        where.append(col(Problem.task) == filter.task)
    return query.where(*where)


def _found(session: Session, filter: DialogueFilter) -> ColumnElement[bool]:
    """The dialogue is among those that the full-text index finds.

    The set is made once, from the range of ids that the run's dialogues lie in. The plus sign keeps SQLite from walking
    the set, or asking the index for one dialogue after another: it walks the other filters' index and looks up each.
    """
    hits = select(_texts.c.rowid).where(full_text.matches(filter.search))
    if filter.run is not None:
        ends = select(func.min(Dialogue.id), func.max(Dialogue.id)).where(col(Dialogue.run_id) == filter.run)
        low, high = session.execute(ends).one()
        hits = hits.where(_texts.c.rowid.between(low or 0, high or 0))
    return literal_column("+dialogue.id", Integer).in_(hits)


def _where(filter: DialogueFilter) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = []
    equal = {
        "run_id": filter.run, "phase": filter.phase, "stage": filter.stage, "environment": filter.environment,
        "level": filter.level, "checkpoint": filter.checkpoint, "control": filter.control, "group": filter.group,
        "leak": filter.leak,
    }  # fmt: skip
    where += [col(getattr(Dialogue, name)) == wanted for name, wanted in equal.items() if wanted not in ("", None)]
    bounds = (
        (Dialogue.step, filter.step_from, filter.step_to),
        (Dialogue.reward, filter.reward_from, filter.reward_to),
    )
    for field, low, high in bounds:
        where += [col(field) >= low] if low is not None else []
        where += [col(field) <= high] if high is not None else []
    if filter.solved == "never":
        where.append(col(Dialogue.solved_at).is_(None))
    elif filter.solved == "any":
        where.append(col(Dialogue.solved_at).is_not(None))
    elif filter.solved:
        if not (filter.solved.isascii() and filter.solved.isdigit() and len(filter.solved) < 6):
            raise DataError(
                "The turn of the right answer is a number.", value=filter.solved, known=["never", "any", "1"]
            )
        where.append(col(Dialogue.solved_at) == int(filter.solved))
    if filter.labelled is not None:
        where.append(col(Dialogue.labels) > 0 if filter.labelled else col(Dialogue.labels) == 0)
    if filter.error:
        where.append(col(Dialogue.error).is_not(None))
    if filter.order not in ORDERS:
        raise DataError("Dialogues cannot be sorted by this.", value=filter.order, known=ORDERS)
    if filter.order != "played":
        where.append(_WORTH.is_not(None))
    return where


def get(db: Database, run_id: int, event: str) -> DialogueView:
    """One dialogue; raises `UnknownRunError` or `UnknownDialogueError`."""
    with db.read() as session:
        query = select(Dialogue).where(col(Dialogue.run_id) == run_id, col(Dialogue.event) == event)
        row = session.execute(query).scalar_one_or_none()
        if row is None:
            one(session, run_id)
            raise unknown_dialogue(run_id, event)
        return _views(session, run_id, [row])[0]


def group(db: Database, run_id: int, dialogue: Dialogue) -> list[DialogueView]:
    """A dialogue with the others on the same task in the same step (or of the same checkpoint and control)."""
    same = ("phase", "stage", "step", "checkpoint", "control", "group")
    with db.read() as session:
        query = select(Dialogue).where(
            col(Dialogue.run_id) == run_id,
            *(col(getattr(Dialogue, name)).is_not_distinct_from(getattr(dialogue, name)) for name in same),
        )
        rows = list(session.execute(query.order_by(col(Dialogue.index), col(Dialogue.id))).scalars())
        return _views(session, run_id, rows)


def views(db: Database, run_id: int, events: Sequence[str]) -> list[DialogueView]:
    """Several dialogues of a run at once, in the order they were played; unknown ones are left out."""
    with db.read() as session:
        query = select(Dialogue).where(col(Dialogue.run_id) == run_id, col(Dialogue.event).in_(events))
        return _views(session, run_id, list(session.execute(query.order_by(col(Dialogue.id))).scalars()))


def _views(session: Session, run_id: int, rows: list[Dialogue]) -> list[DialogueView]:
    """Nine queries, however many dialogues."""
    ids, events = [row.id for row in rows], [row.event for row in rows]
    turns: dict[Any, list[Turn]] = defaultdict(list)
    query = select(Turn).where(col(Turn.dialogue_id).in_(ids)).order_by(col(Turn.dialogue_id), col(Turn.index))
    for turn in session.execute(query).scalars():
        turns[turn.dialogue_id].append(turn)
    turn_ids = [turn.id for found in turns.values() for turn in found]
    terms: dict[Any, list[RewardTerm]] = defaultdict(list)
    for term in session.execute(select(RewardTerm).where(col(RewardTerm.turn_id).in_(turn_ids))).scalars():
        terms[term.turn_id].append(term)
    findings: dict[Any, list[LeakFinding]] = defaultdict(list)
    for finding in session.execute(select(LeakFinding).where(col(LeakFinding.turn_id).in_(turn_ids))).scalars():
        findings[finding.turn_id].append(finding)
    labels: dict[Any, list[LeakLabel]] = defaultdict(list)
    of_run = select(LeakLabel).where(col(LeakLabel.run_id) == run_id, col(LeakLabel.event).in_(events))
    for label in session.execute(of_run.order_by(col(LeakLabel.id))).scalars():
        labels[label.event, label.turn].append(label)
    notes: dict[Any, list[Note]] = defaultdict(list)
    noted = select(Note).where(col(Note.run_id) == run_id, col(Note.event).in_(events)).order_by(col(Note.id))
    for note in session.execute(noted).scalars():
        notes[note.event].append(note)
    measured = hint_worth.of_dialogues(session, one(session, run_id), events) if rows else {}
    wanted = {row.problem_id for row in rows}
    problems = {p.id: p for p in session.execute(select(Problem).where(col(Problem.id).in_(wanted))).scalars()}

    def view(row: Dialogue, turn: Turn) -> TurnView:
        said = labels[row.event, turn.index]
        held = [w for w in measured.get(row.event, []) if w.turn == turn.index]
        counts = hint_worth.best(held, row.policy, row.checkpoint)
        held.sort(key=lambda each: each is not counts)
        return TurnView(row=turn, terms=terms[turn.id], findings=findings[turn.id], labels=said, worth=held)

    return [
        DialogueView(row, problems[row.problem_id], [view(row, turn) for turn in turns[row.id]], notes[row.event])
        for row in rows
    ]


def facets(db: Database, run_id: int | None) -> dict[str, Any]:
    """What there is to filter by, in one run or in all.

    Lists `phases`, `stages`, `levels`, `environments`, `checkpoints`, `controls`; `steps` as (least, greatest);
    `longest`, the most turns of a dialogue; `measured`, whether the worth of any hint is known.
    """
    where = [] if run_id is None else [col(Dialogue.run_id) == run_id]
    named = {
        "phases": Dialogue.phase, "stages": Dialogue.stage, "levels": Dialogue.level,
        "environments": Dialogue.environment, "checkpoints": Dialogue.checkpoint, "controls": Dialogue.control,
    }  # fmt: skip
    with db.read() as session:
        if run_id is not None:
            one(session, run_id)
        rows = session.execute(select(*named.values()).where(*where).distinct()).all()  # type: ignore[call-overload]
        ends = select(func.min(Dialogue.step), func.max(Dialogue.step), func.max(Dialogue.length)).where(*where)
        low, high, longest = session.execute(ends).one()
        measured = session.execute(select(_ID).where(*where, _WORTH.is_not(None)).limit(1)).first() is not None
    found: dict[str, Any] = {
        name: sorted({row[i] for row in rows if row[i] not in (None, "")}) for i, name in enumerate(named)
    }
    return {**found, "steps": (low or 0, high or 0), "longest": longest or 0, "measured": measured}


def tokens(blob: bytes | None) -> tuple[list[int], list[float]]:
    """Token ids and their log-probabilities; the second is empty where they are not known."""
    if not blob:
        return [], []
    (n,) = struct.unpack_from("<I", blob)
    ids = list(struct.unpack_from(f"<{n}i", blob, 4))
    known = len(blob) >= 4 + 8 * n
    return ids, list(struct.unpack_from(f"<{n}f", blob, 4 + 4 * n)) if known else []


def pack(token_ids: Sequence[int], logprobs: Sequence[float]) -> bytes:
    """The stored form of tokens; raises `ValueError` where both differ in length, or a number is too large."""
    n = len(token_ids)
    if logprobs and len(logprobs) != n:
        raise ValueError(f"{n} tokens have {len(logprobs)} log-probabilities")
    try:
        return struct.pack(f"<I{n}i{len(logprobs)}f", n, *token_ids, *logprobs)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a token or its log-probability is too large: {error}") from error
