"""Dialogues: filtered pages, single dialogues with their turns, and groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from sqlalchemy import ColumnElement, Integer, Select, func, literal_column, select
from sqlmodel import Session, col

from jobs.db import search as full_text
from jobs.db.columns import table_of
from jobs.db.dialogue_models import HAS_VERDICT, DialogueRow, HintValue, RecordRow, RescoredHint, TaskRow, TurnRow
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, unknown_dialogue, unknown_turn
from jobs.db.models import LeakLabel, Note
from jobs.db.paging import LIMIT, Key, Page, after_key, cursor_after, page_of
from jobs.db.queries import hint_values
from jobs.db.queries.runs import get_in_session
from rl2f_core.run.events import CONTROL_TEACHERS, OWN_CONDITIONS, DialogueEvent, Number, Phase, Text
from rl2f_core.types import DEMONSTRATION, Dialogue, FrozenModel, Hint, JsonObject, LeakReport, Split, Task, Turn

T = TypeVar("T")
_dialogue = table_of(DialogueRow).c
RewardBound = Annotated[float, Field(allow_inf_nan=False)]
Order = Literal[
    "played", "reward", "-reward", "hint_value", "-hint_value", "task", "-task", "seed", "-seed", "turns", "-turns",
    "solved", "-solved", "leak", "-leak", "bits", "-bits", "tokens", "-tokens"
]  # fmt: skip
_ORDERS: dict[str, ColumnElement[Any]] = {
    "reward": _dialogue.reward,
    "hint_value": _dialogue.best_hint_value,
    "task": _dialogue.task,
    "seed": _dialogue.seed,
    "turns": _dialogue.length,
    "solved": func.coalesce(_dialogue.solved_at, 2**31),
    "leak": _dialogue.leak_state,
    "bits": func.coalesce(_dialogue.bits_used, -1.0),
    "tokens": _dialogue.tokens,
}


class DialogueFilter(FrozenModel):
    """Conditions on dialogues, all optional; an empty field matches all."""

    run: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Only dialogues of this run."""
    phase: Literal[Phase, ""] = ""
    """Only dialogues of this phase."""
    stage: Text = ""
    """Only dialogues of this stage."""
    step_from: Number | None = None
    """First step."""
    step_to: Number | None = None
    """Last step."""
    environment: Text = ""
    """Only tasks of this environment."""
    split: Literal[Split, ""] = ""
    """Only tasks of this split."""
    level: Text = ""
    """Only tasks of this difficulty."""
    checkpoint: Text = ""
    """Only this student's checkpoint, in an evaluation, fork or chat."""
    condition: Text = ""
    """Only this condition of an evaluation, arm of a fork or outcome of a distillation."""
    without_controls: bool = False
    """Exclude control conditions."""
    without_control_hints: bool = False
    """Exclude dialogues with a hint of a control teacher."""
    demonstrations: bool = False
    """Include demonstrations, which no model sampled. A chosen stage or group includes its demonstrations."""
    solved: str = Field("", pattern=r"^(never|any|unknown|[1-9][0-9]{0,3})?$")
    """`never`, `any`, `unknown` (no verdict), or the 1-based turn of the first correct attempt."""
    reward_from: RewardBound | None = None
    """Lowest reward."""
    reward_to: RewardBound | None = None
    """Highest reward."""
    leak_state: Annotated[int, Field(ge=0, le=2)] | None = None
    """0 unchecked, 1 checked without leak, 2 at least one hint leaked."""
    labeled: bool | None = None
    """Only dialogues with labeled hints, or only those without."""
    used_hints: bool = False
    """Only dialogues in which an attempt changes and respects all information of the hint before it."""
    error: bool = False
    """Only dialogues that ended with an error."""
    group: Text = ""
    """Only dialogues of this group."""
    task: Text = ""
    """Only dialogues on the task with this id."""
    order: Order = "played"
    """Chronological (`played`) or by a column, with `-` descending; `reward` and `hint_value` exclude dialogues
    without one. Unsolved dialogues are the last by `solved`, those without known `bits` the first."""
    search: Text = ""
    """Words and `"phrases"` that must all occur in attempts, hints or task."""

    @model_serializer(mode="wrap")
    def _write_given(self, write: SerializerFunctionWrapHandler) -> JsonObject:
        """Write the fields that were given."""
        return {name: value for name, value in write(self).items() if name in self.model_fields_set}

    def but(self, **changes: object) -> DialogueFilter:
        """Return the filter with changed fields."""
        return DialogueFilter.model_validate({**self.model_dump(), **changes})


@dataclass(frozen=True)
class DialogueView:
    """A stored dialogue, and what people and other runs added to it; mappings have 0-based turns as keys."""

    row: DialogueRow
    event: DialogueEvent
    """Its record: the event of the run's event file."""
    findings: Mapping[int, Mapping[str, LeakReport]]
    """Reports of leaks by source: `run`, or the id of a rescore run."""
    labels: Mapping[int, list[LeakLabel]]
    hint_values: Mapping[int, list[HintValue]]
    """All measurements of a hint; the one to show comes first."""
    notes: list[Note]

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the record."""
        return self.event.dialogue.turns

    def turn(self, index: int) -> Turn:
        """Return a turn; raises `NotFoundError`."""
        if index >= len(self.turns):
            raise unknown_turn(index, len(self.turns))
        return self.turns[index]

    def hint(self, index: int) -> Hint:
        """Return the hint of a turn; raises `NotFoundError`."""
        if (hint := self.turn(index).hint) is None:
            known = [str(turn.index) for turn in self.turns if turn.hint is not None]
            raise NotFoundError("The attempt of this turn has no hint.", value=index, known=known)
        return hint


def page(
    db: Database,
    filter: DialogueFilter,
    cursor: str | None = None,
    limit: int = LIMIT,
    newest_first: bool = False,
) -> Page[DialogueRow]:
    """Return one page of dialogues in the filter's order, reversed for `newest_first`."""
    with db.read() as session:
        query = _filtered(session, filter, select(DialogueRow))
        return page_of(session, query, _keys(filter, newest_first), cursor, limit, _count(session, filter))


def matching(db: Database, filter: DialogueFilter) -> list[DialogueRow]:
    """Return all dialogues of a filter in its order."""
    with db.read() as session:
        query = _filtered(session, filter, select(DialogueRow))
        return list(session.scalars(query.order_by(*(key.order() for key in _keys(filter)))))


def _keys(filter: DialogueFilter, back: bool = False) -> list[Key]:
    if filter.order == "played":
        return [Key(_dialogue.id, back)]
    return [Key(_order_column(filter), filter.order.startswith("-") != back), Key(_dialogue.id, back)]


def _order_column(filter: DialogueFilter) -> ColumnElement[Any]:
    return _ORDERS[filter.order.removeprefix("-")]


def key_values(db: Database, filter: DialogueFilter, row_id: int) -> list[object]:
    """Return the position of a dialogue in the filter's order, for `cursor_after`; empty if the order excludes it."""
    with db.read() as session:
        row = session.execute(select(*(key.column for key in _keys(filter))).where(_dialogue.id == row_id)).one()
    return [] if None in row else list(row)


def page_containing(db: Database, filter: DialogueFilter, event: str, limit: int = LIMIT) -> Page[DialogueRow]:
    """Return the page that contains a dialogue.

    Raises `UnknownDialogueError` if the dialogue is not in the filtered list.
    """
    with db.read() as session:
        keys = _keys(filter)
        values = _filtered(session, filter, select(*(key.column for key in keys)))
        position = session.execute(
            values.where(_dialogue.event_id == event).order_by(_dialogue.id).limit(1)
        ).one_or_none()
        if position is None:
            raise unknown_dialogue(filter.run, event)
        earlier = _filtered(session, filter, select(func.count())).where(after_key(keys, position, forward=False))
        skipped = session.scalars(earlier).one() // limit * limit
        cursor = None
        if skipped:
            last = session.execute(values.order_by(*(key.order() for key in keys)).offset(skipped - 1).limit(1)).one()
            cursor = cursor_after(skipped, last)
        query = _filtered(session, filter, select(DialogueRow))
        return page_of(session, query, keys, cursor, limit, _count(session, filter))


def count(db: Database, filter: DialogueFilter) -> int:
    """Count the dialogues of a filter."""
    with db.read() as session:
        return _count(session, filter)


def _count(session: Session, filter: DialogueFilter) -> int:
    return session.scalars(_filtered(session, filter, select(func.count()))).one()


def count_policies(db: Database, filter: DialogueFilter) -> dict[tuple[str, str], int]:
    """Count the dialogues of a filter by split and policy."""
    split = select(col(TaskRow.split)).where(col(TaskRow.id) == _dialogue.task_id).scalar_subquery().label("split")
    with db.read() as session:
        query = _filtered(session, filter, select(split, _dialogue.policy, func.count()))
        rows = session.execute(query.group_by(split, _dialogue.policy))
        return {(split, policy): number for split, policy, number in rows}


def _filtered(session: Session, filter: DialogueFilter, query: Select[T]) -> Select[T]:
    """Add the filter's conditions to a query."""
    where = _where(filter)
    if filter.search.strip():
        where.append(_in_texts(session, filter))
    query = query.select_from(DialogueRow)
    if filter.task:
        query = query.join(TaskRow, col(TaskRow.id) == _dialogue.task_id)
        where.append(col(TaskRow.task) == filter.task)
    return query.where(*where)


def _in_texts(session: Session, filter: DialogueFilter) -> ColumnElement[bool]:
    """Return the condition that the dialogue's texts match the search.

    The subquery is limited to the id range of the run and runs once. The unary plus keeps SQLite from iterating over
    the matches or querying the index per dialogue: it iterates over the other filters' index and looks up each row.
    """
    hits = full_text.matching_dialogues(filter.search, has_index=session.get_bind().dialect.name == "sqlite")
    if filter.run is not None:
        ends = select(func.min(_dialogue.id), func.max(_dialogue.id)).where(_dialogue.run_id == filter.run)
        low, high = session.execute(ends).one()
        hits = hits.where(full_text.TEXTS.c.rowid.between(low or 0, high or 0))
    return literal_column("+dialogue.id", Integer).in_(hits)


def _where(filter: DialogueFilter) -> list[ColumnElement[bool]]:
    equal = {
        "run_id": filter.run, "phase": filter.phase, "stage": filter.stage, "environment": filter.environment,
        "level": filter.level, "checkpoint": filter.checkpoint, "condition": filter.condition, "group": filter.group,
        "leak_state": filter.leak_state,
    }  # fmt: skip
    where = [_dialogue[name] == value for name, value in equal.items() if value not in ("", None)]
    bounds = (
        (_dialogue.step, filter.step_from, filter.step_to),
        (_dialogue.reward, filter.reward_from, filter.reward_to),
    )
    for field, low, high in bounds:
        where += [field >= low] if low is not None else []
        where += [field <= high] if high is not None else []
    if filter.split:
        where.append(_dialogue.task_id.in_(select(col(TaskRow.id)).where(col(TaskRow.split) == filter.split)))
    if filter.without_controls:
        where.append(_dialogue.condition.is_(None) | _dialogue.condition.in_(OWN_CONDITIONS))
    if filter.without_control_hints:
        of_control = select(col(TurnRow.id)).where(
            col(TurnRow.dialogue_id) == _dialogue.id, col(TurnRow.teacher).in_(CONTROL_TEACHERS)
        )
        where.append(~of_control.exists())
    if not (filter.demonstrations or filter.stage or filter.group):
        where.append(_dialogue.policy != DEMONSTRATION)
    if filter.solved == "never":
        where += [_dialogue.solved_at.is_(None), HAS_VERDICT]
    elif filter.solved == "unknown":
        where.append(~HAS_VERDICT)
    elif filter.solved == "any":
        where.append(_dialogue.solved_at.is_not(None))
    elif filter.solved:
        where.append(_dialogue.solved_at == int(filter.solved))
    if filter.labeled is not None:
        where.append(_dialogue.label_count > 0 if filter.labeled else _dialogue.label_count == 0)
    if filter.used_hints:
        where.append(_dialogue.bits_used > 0)
    if filter.error:
        where.append(_dialogue.error.is_not(None))
    if filter.order != "played":
        where.append(_order_column(filter).is_not(None))
    return where


def get(db: Database, run_id: int, event: str) -> DialogueView:
    """Return a dialogue; raises `UnknownRunError` or `UnknownDialogueError`."""
    with db.read() as session:
        query = select(DialogueRow).where(_dialogue.run_id == run_id, _dialogue.event_id == event)
        row = session.scalars(query).one_or_none()
        if row is None:
            get_in_session(session, run_id)
            raise unknown_dialogue(run_id, event)
        return _views(session, run_id, [row])[0]


def group(db: Database, run_id: int, dialogue: DialogueRow) -> list[DialogueView]:
    """Return a dialogue's group: all dialogues on its task in its step, or with its checkpoint and condition."""
    same = ("phase", "stage", "step", "checkpoint", "condition", "group")
    with db.read() as session:
        query = select(DialogueRow).where(
            _dialogue.run_id == run_id,
            *(_dialogue[name].is_not_distinct_from(getattr(dialogue, name)) for name in same),
        )
        return _views(session, run_id, list(session.scalars(query.order_by(_dialogue.index, _dialogue.id))))


def next_views(db: Database, filter: DialogueFilter, *, after: int, limit: int) -> list[DialogueView]:
    """Return the first dialogues of the filter's run with a row id above `after`, in ingestion order."""
    assert filter.run is not None
    with db.read() as session:
        query = _filtered(session, filter, select(DialogueRow)).where(_dialogue.id > after)
        return _views(session, filter.run, list(session.scalars(query.order_by(_dialogue.id).limit(limit))))


def _views(session: Session, run_id: int, rows: list[DialogueRow]) -> list[DialogueView]:
    """Load dialogues with seven queries in total."""
    if not rows:
        return []
    run, events = get_in_session(session, run_id), [row.event_id for row in rows]
    stored = select(RecordRow).where(col(RecordRow.dialogue_id).in_([row.id for row in rows]))
    records = {record.dialogue_id: record.content for record in session.scalars(stored)}
    task_query = select(TaskRow).where(col(TaskRow.id).in_({row.task_id for row in rows}))
    tasks = {row.id: as_task(row) for row in session.scalars(task_query)}
    rescored = select(RescoredHint).where(col(RescoredHint.target) == run.folder, col(RescoredHint.leak_found))
    reports = _grouped(session, rescored.where(col(RescoredHint.event_id).in_(events)), "event_id")
    label_query = select(LeakLabel).where(col(LeakLabel.run_id) == run_id, col(LeakLabel.event_id).in_(events))
    labels = _grouped(session, label_query.order_by(col(LeakLabel.id)), "event_id")
    note_query = select(Note).where(col(Note.run_id) == run_id, col(Note.event_id).in_(events)).order_by(col(Note.id))
    notes = _grouped(session, note_query, "event_id")
    measured = hint_values.of_dialogues(session, run, events)
    return [
        DialogueView(
            row,
            event := _event(row, tasks[row.task_id], records[row.id or 0]),
            _findings(event.dialogue, reports[row.event_id]),
            _by_turn(labels[row.event_id]),
            _values(row, measured.get(row.event_id, [])),
            notes[row.event_id],
        )
        for row in rows
    ]


def as_task(row: TaskRow) -> Task:
    """Return the engine's task of a row."""
    return Task(id=row.task, **row.model_dump(include={*Task.model_fields} - {"id"}))


def _event(row: DialogueRow, task: Task, record: str) -> DialogueEvent:
    setting = {"fork": "arm", "distill": "outcome"}.get(row.phase, "condition")
    columns = row.model_dump(include={"phase", "stage", "step", "checkpoint", "time"})
    dialogue = Dialogue.model_validate_json(record)
    return DialogueEvent(id=row.event_id, task=task, dialogue=dialogue, **columns, **{setting: row.condition})


def _findings(dialogue: Dialogue, rescored: list[RescoredHint]) -> dict[int, dict[str, LeakReport]]:
    """Return the leaks that the run found, and those that rescore runs found, by turn and source."""
    findings: dict[int, dict[str, LeakReport]] = defaultdict(dict)
    for row in sorted(rescored, key=lambda row: str(row.run_id)):
        findings[row.turn][str(row.run_id)] = LeakReport.model_validate_json(row.report)
    for turn in dialogue.turns:
        if turn.hint is not None and turn.hint.leak is not None and turn.hint.leak.leaked:
            findings[turn.index]["run"] = turn.hint.leak
    return findings


def _values(row: DialogueRow, measured: list[HintValue]) -> dict[int, list[HintValue]]:
    """Return the measurements of each hint, the one to show first."""
    values = _by_turn(measured)
    for measurements in values.values():
        first = hint_values.pick_measurement(measurements, row.policy, row.checkpoint)
        measurements.sort(key=lambda value: value is not first)
    return values


def _by_turn(rows: list[Any]) -> dict[int, list[Any]]:
    turns: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        turns[row.turn].append(row)
    return turns


def _grouped(session: Session, query: Select[T], name: str) -> dict[Any, list[T]]:
    """Group the rows of a query by an attribute."""
    rows: dict[Any, list[T]] = defaultdict(list)
    for row in session.scalars(query):
        rows[getattr(row, name)].append(row)
    return rows


def facets(db: Database, run_id: int | None) -> JsonObject:
    """Return the filter choices of one run or of all.

    Contains `phases`, `stages`, `levels`, `environments`, `checkpoints`, `conditions`; `steps` as (first, last);
    `longest`, the maximum number of turns; `measured`, whether any hint value is known.
    """
    where = [] if run_id is None else [_dialogue.run_id == run_id]
    names = ("phase", "stage", "level", "environment", "checkpoint", "condition")
    with db.read() as session:
        if run_id is not None:
            get_in_session(session, run_id)
        rows = session.execute(select(*(_dialogue[name] for name in names)).where(*where).distinct()).all()
        ends = select(func.min(_dialogue.step), func.max(_dialogue.step), func.max(_dialogue.length)).where(*where)
        low, high, longest = session.execute(ends).one()
        measured = select(_dialogue.id).where(*where, _dialogue.best_hint_value.is_not(None)).limit(1)
        is_measured = session.execute(measured).first() is not None
    choices = {f"{name}s": sorted({row[i] for row in rows} - {None, ""}) for i, name in enumerate(names)}
    return {**choices, "steps": (low or 0, high or 0), "longest": longest or 0, "measured": is_measured}
