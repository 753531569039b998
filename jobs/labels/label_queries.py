"""Annotators' labels of hints, keyed by run, event, turn and annotator, so that they survive a rebuild.

The setting `labels.undo.NAME` stores an annotator's latest changes, newest last, for `undo`.
"""

from __future__ import annotations

import json
import time
import unicodedata
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from sqlalchemy import func, select, update
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, RecordRow, TurnRow
from jobs.db.errors import NotFoundError
from jobs.db.models import LeakLabel, Setting
from jobs.labels import opened_hints
from jobs.labels.annotation_queue import HintKey, QueueFilter, sample
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.types import Dialogue, FrozenModel, JsonObject

if TYPE_CHECKING:
    from jobs.db.engine import Database

MAX_NAME, MAX_NOTE, MAX_UNDO = 60, 4_000, 100
_CONTENT = ("label", "start", "end", "note", "blind", "sampling_frame", "time")
_dialogue = table_of(DialogueRow)
_turn = table_of(TurnRow)
_record = table_of(RecordRow)
_label = table_of(LeakLabel)


def annotator_name(name: str) -> str:
    """Normalize an annotator's name; raises `ConfigError` if it is invalid."""
    clean = " ".join(unicodedata.normalize("NFC", name).split())
    if not clean or len(clean) > MAX_NAME or not clean.isprintable():
        raise ConfigError(
            f"An annotator's name must have 1 to {MAX_NAME} printable characters.", value=name, fix="Enter your name."
        )
    return clean


class LabelAnswer(FrozenModel):
    """The content of a label."""

    label: Literal["leak", "no_leak", "unsure"]
    start: int | None = Field(None, ge=0, lt=2**31)
    """Start of the leaking span in the teacher's message."""
    end: int | None = Field(None, ge=0, lt=2**31)
    """End of the span, exclusive."""
    note: str = Field("", max_length=MAX_NOTE)
    """A note."""


def put(
    db: Database,
    run_id: int,
    event: str,
    turn: int,
    annotator: str,
    answer: LabelAnswer,
    queue_filter: QueueFilter | None = None,
) -> LeakLabel:
    """Store a label; it replaces the annotator's earlier label of the hint.

    The label is blind if the annotator has not opened the findings of the hint before (`opened_hints`). Storing it
    opens them, so that a later change of the answer is not blind; a change of span or note alone keeps the state.

    Args:
        db: The database.
        run_id: The run.
        event: The dialogue's event id.
        turn: 0-based turn of the hint.
        annotator: The annotator's name.
        answer: The label.
        queue_filter: The queue of the hint. If it is a random sample that contains the hint, the label stores its
            sampling frame; later changes of the label keep it.

    Raises:
        ConfigError: The name is invalid.
        NotFoundError: The turn does not exist.
        DataError: The turn has no hint, or the span is outside of it.
    """
    annotator = annotator_name(annotator)
    values: JsonObject = answer.model_dump()
    with db.write() as session:
        turn_id, hint = _hint(session, run_id, event, turn)
        _check_span(answer.start, answer.end, hint)
        stored = _stored(session, run_id, event, turn, annotator)
        values["sampling_frame"] = stored.sampling_frame if stored is not None else None
        frame = None if queue_filter is None else queue_filter.frame
        if queue_filter is not None and frame is not None and turn_id in sample(session, queue_filter):
            values["sampling_frame"] = frame.text()
        key = HintKey(run_id, event, turn)
        values["blind"] = not opened_hints.is_opened(session, key, annotator)
        if stored is not None and stored.label == answer.label:
            values["blind"] = stored.blind
        opened_hints.add(session, key, annotator)
        if stored is not None and all(getattr(stored, name) == value for name, value in values.items()):
            return stored
        before = None if stored is None else {name: getattr(stored, name) for name in _CONTENT}
        row = stored or LeakLabel(
            run_id=run_id, event_id=event, turn=turn, annotator=annotator, label=answer.label, time=0.0
        )
        row.sqlmodel_update({**values, "time": time.time()})
        session.add(row)
        change = {"run": run_id, "event": event, "turn": turn, "before": before}
        _save_changes(session, annotator, [*_changes(session, annotator), change])
        _update_count(session, run_id, event)
        return row


def undo(db: Database, annotator: str) -> LeakLabel | None:
    """Undo the annotator's last change and return the removed label; None if no change is left.

    An earlier label of the hint is restored. Up to `MAX_UNDO` changes can be undone.
    """
    annotator = annotator_name(annotator)
    with db.write() as session:
        changes = _changes(session, annotator)
        while changes:
            last = changes.pop()
            stored = _stored(session, last["run"], last["event"], last["turn"], annotator)
            if stored is None:  # its run was deleted
                continue
            removed = LeakLabel(**dict(stored))
            if last["before"] is None:
                session.delete(stored)
            else:
                stored.sqlmodel_update(last["before"])
                session.add(stored)
            _save_changes(session, annotator, changes)
            _update_count(session, removed.run_id, removed.event_id)
            return removed
        _save_changes(session, annotator, [])
        return None


def of_hint(db: Database, run_id: int, event: str, turn: int) -> list[LeakLabel]:
    """Return all labels of a hint, by annotator."""
    where = (_label.c.run_id == run_id, _label.c.event_id == event, _label.c.turn == turn)
    return db.fetch_all(select(LeakLabel).where(*where).order_by(_label.c.annotator))


def annotators(db: Database) -> list[str]:
    """Return the names of all annotators, sorted."""
    return db.fetch_all(select(_label.c.annotator).distinct().order_by(_label.c.annotator))


def labels_per_run(db: Database) -> dict[int, int]:
    """Return the number of labeled hints by run, newest run first."""
    hints = select(_label.c.run_id, _label.c.event_id, _label.c.turn).distinct().subquery()
    counts = select(hints.c.run_id, func.count()).group_by(hints.c.run_id).order_by(hints.c.run_id.desc())
    with db.read() as session:
        return {row[0]: row[1] for row in session.execute(counts)}


def _hint(session: Session, run_id: int, event: str, turn: int) -> tuple[int, str]:
    """Return the turn's row id and the teacher's feedback."""
    statement = (
        select(_turn.c.id, _record.c.content)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .join(_record, _record.c.dialogue_id == _dialogue.c.id)
        .where(_dialogue.c.run_id == run_id, _dialogue.c.event_id == event, _turn.c.index == turn)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFoundError("Turn not found.", value=(run_id, event, turn), fix="Its run may have been deleted.")
    hint = Dialogue.model_validate_json(row.content).turns[turn].hint
    if hint is None:
        raise DataError("This attempt has no hint to label.", value=(run_id, event, turn))
    return row.id, hint.feedback


def _check_span(start: int | None, end: int | None, hint: str) -> None:
    if start is None and end is None:
        return
    if start is None or end is None or not 0 <= start < end <= len(hint):
        raise DataError(f"The span is outside of the hint, which has {len(hint)} characters.", value=(start, end))


def _stored(session: Session, run_id: int, event: str, turn: int, annotator: str) -> LeakLabel | None:
    key = {"run_id": run_id, "event_id": event, "turn": turn, "annotator": annotator}
    return session.scalars(select(LeakLabel).filter_by(**key)).first()


def _update_count(session: Session, run_id: int, event: str) -> None:
    """Update `DialogueRow.label_count`."""
    session.flush()
    count = select(func.count(_label.c.turn.distinct())).where(_label.c.run_id == run_id, _label.c.event_id == event)
    where = (_dialogue.c.run_id == run_id, _dialogue.c.event_id == event)
    session.execute(update(DialogueRow).where(*where).values(label_count=count.scalar_subquery()))


def _changes(session: Session, annotator: str) -> list[JsonObject]:
    setting = session.get(Setting, f"labels.undo.{annotator}")
    return [] if setting is None else json.loads(setting.value)


def _save_changes(session: Session, annotator: str, changes: list[JsonObject]) -> None:
    name = f"labels.undo.{annotator}"
    setting = session.get(Setting, name) or Setting(name=name, value="")
    setting.value = json.dumps(changes[-MAX_UNDO:], ensure_ascii=False)
    session.add(setting)
