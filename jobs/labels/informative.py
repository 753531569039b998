"""Hints whose labels teach a detector most: detectors disagree, or `mentions` is uncertain.

A hint is listed if detectors disagree about it or `mentions` gave it a probability. Hints with a disagreement come
first. Within both parts, the distance of the leak probability to the threshold decides, nearest first (uncertainty
sampling, Lewis and Gale 1994). The order depends on the findings, so these labels never count in estimates.
"""

from __future__ import annotations

from sqlalchemy import Select, String, case, cast, exists, func, or_, select
from sqlmodel import Session

from jobs.db.label_models import LeakScore
from jobs.db.models import Dialogue, LeakFinding, RescoredRun, Run, Turn, table_of
from jobs.labels.hint_counts import is_teacher_hint

_dialogue = table_of(Dialogue)
_turn = table_of(Turn)
_run = table_of(Run)
_finding = table_of(LeakFinding)
_rescored = table_of(RescoredRun)
_score = table_of(LeakScore)
FAR = 2.0
"""Distance of a hint without a leak probability; larger than any other."""


def most_informative(session: Session, hints: Select[int], size: int) -> list[int]:
    """Return the row ids of up to `size` turns, the most informative first.

    Args:
        session: A transaction.
        hints: Selects row ids of turns, joined with their dialogues.
        size: Maximum number of hints.
    """
    found = (_finding.c.turn_id == _turn.c.id) & (_finding.c.source == cast(_rescored.c.run_id, String))
    of_run = _rescored.c.target_run_id == _dialogue.c.run_id
    newly_flagged = exists().where(of_run, ~_turn.c.leak_found, found)
    no_longer_flagged = _turn.c.leak_found & exists().where(of_run, ~exists().where(found).correlate(_turn, _rescored))
    disagree = or_(newly_flagged, no_longer_flagged)
    distance = (
        select(func.min(func.abs(_score.c.probability - _score.c.threshold)))
        .join(_run, _run.c.folder == _score.c.target)
        .where(
            _run.c.id == _dialogue.c.run_id,
            _score.c.event_id == _dialogue.c.event_id,
            _score.c.turn == _turn.c.index,
        )
        .correlate(_dialogue, _turn)
        .scalar_subquery()
    )
    statement = (
        hints.where(is_teacher_hint(), or_(disagree, distance.is_not(None)))
        .order_by(case((disagree, 0), else_=1), func.coalesce(distance, FAR), _turn.c.id)
        .limit(size)
    )
    return list(session.scalars(statement))
