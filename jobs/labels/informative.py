"""Hints whose labels teach a detector most: detectors disagree, or `mentions` is uncertain.

A hint is listed if detectors disagree about it or `mentions` gave it a probability. Hints with a disagreement come
first. Within both parts, the distance of the leak probability to the threshold decides, nearest first (uncertainty
sampling, Lewis and Gale 1994). The order depends on the findings, so these labels are no random sample.
"""

from __future__ import annotations

from sqlalchemy import Select, case, exists, func, or_, select
from sqlmodel import Session

from jobs.db.columns import table_of
from jobs.db.dialogue_models import DialogueRow, RescoredHint, RescoreSummary, TurnRow
from jobs.db.models import Run

_dialogue = table_of(DialogueRow)
_turn = table_of(TurnRow)
_run = table_of(Run)
_rescored = table_of(RescoredHint)
_summary = table_of(RescoreSummary)
FAR = 2.0
"""Distance of a hint without a leak probability; larger than any other."""


def most_informative(session: Session, hints: Select[int], size: int) -> list[int]:
    """Return the row ids of up to `size` turns, the most informative first.

    Args:
        session: A transaction.
        hints: Selects row ids of turns, joined with their dialogues.
        size: Maximum number of hints.
    """
    folder = select(_run.c.folder).where(_run.c.id == _dialogue.c.run_id).correlate(_dialogue).scalar_subquery()
    same_hint = (_rescored.c.event_id == _dialogue.c.event_id) & (_rescored.c.turn == _turn.c.index)
    reported = (_rescored.c.target == folder) & same_hint
    flagged_again = exists().where(_rescored.c.run_id == _summary.c.run_id, reported, _rescored.c.leak_found)
    newly_flagged = ~_turn.c.leak_found & exists().where(reported, _rescored.c.leak_found)
    no_longer_flagged = _turn.c.leak_found & exists().where(
        _summary.c.target == folder, ~flagged_again.correlate(_dialogue, _turn, _summary)
    )
    disagree = or_(newly_flagged, no_longer_flagged)
    rescored = select(func.min(_rescored.c.leak_distance)).where(reported).correlate(_dialogue, _turn).scalar_subquery()
    own, other = func.coalesce(_turn.c.leak_distance, FAR), func.coalesce(rescored, FAR)
    distance = case((own < other, own), else_=other)
    statement = (
        hints.where(_turn.c.is_eligible, or_(disagree, distance < FAR))
        .order_by(case((disagree, 0), else_=1), distance, _turn.c.id)
        .limit(size)
    )
    return list(session.scalars(statement))
