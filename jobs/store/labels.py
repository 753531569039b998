"""What people say of hints. A label is keyed by run, event, turn and labeller, so it outlives a rebuild of the rest.

A labeller's changes are remembered, newest last, in the setting `labels.undo.NAME`, so that each can be taken back.
"""

from __future__ import annotations

import json
import time
import unicodedata
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update
from sqlmodel import Session

from jobs.agreement import LABELS
from jobs.errors import NotFound
from jobs.store.hints import COUNT_LIMIT, HintItem, HintKey, LabelFilter, progress, queue, sample
from jobs.tables import Dialogue, LeakLabel, Setting, Turn
from rl2f_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from jobs.database import Database

__all__ = [
    "COUNT_LIMIT",
    "HintItem",
    "HintKey",
    "LabelFilter",
    "labeller_name",
    "labellers",
    "of_hint",
    "progress",
    "put",
    "queue",
    "undo",
]  # fmt: skip
MAX_NAME, MAX_NOTE, MAX_UNDO = 60, 4_000, 100
_ANSWER = ("label", "start", "end", "note", "blind", "drawn", "time")
_dialogue: Any = Dialogue.__table__  # type: ignore[attr-defined]
_turn: Any = Turn.__table__  # type: ignore[attr-defined]
_label: Any = LeakLabel.__table__  # type: ignore[attr-defined]


def labeller_name(name: str) -> str:
    """The name in the form in which it is kept; raises `ConfigError` where it is none."""
    clean = " ".join(unicodedata.normalize("NFC", name).split())
    if not clean or len(clean) > MAX_NAME or not clean.isprintable():
        raise ConfigError(
            f"A labeller's name has 1 to {MAX_NAME} printable characters.", value=name, fix="Type who you are."
        )
    return clean


def put(
    db: Database,
    run_id: int,
    event: str,
    turn: int,
    labeller: str,
    label: str,
    start: int | None = None,
    end: int | None = None,
    note: str = "",
    blind: bool = True,
    draw: LabelFilter | None = None,
) -> LeakLabel:
    """Store an answer, in place of the labeller's earlier one on the same hint.

    Args:
        db: The database.
        run_id: The run.
        event: The dialogue's event.
        turn: 0-based; the hint after this attempt is meant.
        labeller: Who says so.
        label: leak, no_leak or unsure.
        start: First character of the words that leak, in the hint as the teacher wrote it; None for no span.
        end: One past the last.
        note: Why.
        blind: The detectors' finding was hidden.
        draw: The queue that the hint came from. Where that is a random sample that holds the hint, the label says so,
            and goes on saying so when it is changed.

    Raises:
        ConfigError: not a label, not a name, or a note that is too long.
        NotFound: there is no such turn.
        DataError: no hint stands after the attempt, or the span is not in it.
    """
    labeller = labeller_name(labeller)
    if label not in LABELS:
        raise ConfigError("There is no such label.", value=label, known=LABELS)
    if len(note) > MAX_NOTE:
        raise ConfigError(f"A note has at most {MAX_NOTE} characters.", value=f"{len(note)} characters")
    values: dict[str, Any] = {"label": label, "start": start, "end": end, "note": note, "blind": blind}
    with db.write() as session:
        number, hint = _hint(session, run_id, event, turn)
        _check_span(start, end, hint)
        held = _held(session, run_id, event, turn, labeller)
        values["drawn"] = held.drawn if held is not None else None
        if draw is not None and draw.draw is not None and number in sample(session, draw):
            values["drawn"] = draw.draw.text()
        if held is not None and all(getattr(held, name) == value for name, value in values.items()):
            return held
        before = None if held is None else {name: getattr(held, name) for name in _ANSWER}
        row = held or LeakLabel(run_id=run_id, event=event, turn=turn, labeller=labeller, label=label, time=0.0)
        row.sqlmodel_update({**values, "time": time.time()})
        session.add(row)
        stack = _stack(session, labeller)
        _keep(session, labeller, [*stack, {"run": run_id, "event": event, "turn": turn, "before": before}])
        _recount(session, run_id, event)
        return row


def undo(db: Database, labeller: str) -> LeakLabel | None:
    """Take back the labeller's last change and return the label as it was until now; None where nothing is left.

    An earlier answer on the same hint stands again. Up to `MAX_UNDO` changes can be taken back, one by one.
    """
    labeller = labeller_name(labeller)
    with db.write() as session:
        stack = _stack(session, labeller)
        while stack:
            last = stack.pop()
            held = _held(session, last["run"], last["event"], last["turn"], labeller)
            if held is None:  # its run was deleted meanwhile
                continue
            taken = LeakLabel(**held.model_dump())
            if last["before"] is None:
                session.delete(held)
            else:
                held.sqlmodel_update(last["before"])
                session.add(held)
            _keep(session, labeller, stack)
            _recount(session, taken.run_id, taken.event)
            return taken
        _keep(session, labeller, [])
        return None


def of_hint(db: Database, run_id: int, event: str, turn: int) -> list[LeakLabel]:
    """All labels of one hint, by labeller."""
    wanted = (_label.c.run_id == run_id, _label.c.event == event, _label.c.turn == turn)
    with db.read() as session:
        return list(session.scalars(select(LeakLabel).where(*wanted).order_by(_label.c.labeller)))


def labellers(db: Database) -> list[str]:
    """Everybody who has labelled."""
    with db.read() as session:
        return [row[0] for row in session.execute(select(_label.c.labeller).distinct().order_by(_label.c.labeller))]


def _hint(session: Session, run_id: int, event: str, turn: int) -> tuple[int, str]:
    """The turn's row id, and its hint as the teacher wrote it."""
    statement = (
        select(_turn.c.hint, _turn.c.original, _turn.c.id)
        .join(_dialogue, _dialogue.c.id == _turn.c.dialogue_id)
        .where(_dialogue.c.run_id == run_id, _dialogue.c.event == event, _turn.c.index == turn)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("There is no such turn.", value=(run_id, event, turn), fix="Its run may have been deleted.")
    if row[0] is None:
        raise DataError("No hint stands after this attempt, so there is nothing to label.", value=(run_id, event, turn))
    return row[2], row[0] if row[1] is None else row[1]


def _check_span(start: int | None, end: int | None, hint: str) -> None:
    if start is None and end is None:
        return
    if start is None or end is None or not 0 <= start < end <= len(hint):
        raise DataError(f"The span does not lie in the hint of {len(hint)} characters.", value=(start, end))


def _held(session: Session, run_id: int, event: str, turn: int, labeller: str) -> LeakLabel | None:
    wanted = {"run_id": run_id, "event": event, "turn": turn, "labeller": labeller}
    return session.scalars(select(LeakLabel).filter_by(**wanted)).first()


def _recount(session: Session, run_id: int, event: str) -> None:
    """Count the labelled hints of the dialogue anew."""
    session.flush()
    labelled = select(func.count(_label.c.turn.distinct())).where(_label.c.run_id == run_id, _label.c.event == event)
    mine = (_dialogue.c.run_id == run_id, _dialogue.c.event == event)
    session.execute(update(Dialogue).where(*mine).values(labels=labelled.scalar_subquery()))


def _stack(session: Session, labeller: str) -> list[dict[str, Any]]:
    held = session.get(Setting, f"labels.undo.{labeller}")
    return [] if held is None else json.loads(held.value)


def _keep(session: Session, labeller: str, stack: list[dict[str, Any]]) -> None:
    name = f"labels.undo.{labeller}"
    held = session.get(Setting, name) or Setting(name=name, value="")
    held.value = json.dumps(stack[-MAX_UNDO:], ensure_ascii=False)
    session.add(held)
