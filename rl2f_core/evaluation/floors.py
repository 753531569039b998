"""Scores beside the best constant answer: what always saying the same would earn.

A curve that ends at this floor has learned nothing about the problems (`shortest_path` published .385, exactly what
always answering "infeasible" earns), so every score is held against it, with the score's own 95 % interval.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.environments.base import Environment
from rl2f_core.errors import shorten
from rl2f_core.evaluation.statistics import Interval
from rl2f_core.types import Value

Standing = Literal["above", "not separated", "below"]


class BestConstant(Value):
    """The best that can be had without looking at the problem."""

    answer: str
    """The constant answer."""
    score: float
    """The share of tasks it solves at one attempt; said again it solves no more, so it holds for any turn."""

    @classmethod
    def of(cls, environment: Environment) -> BestConstant:
        """The environment's own."""
        floor = environment.floor()
        return cls(answer=floor.answer, score=floor.score)


def standing(score: Interval, floor: BestConstant | None) -> Standing | None:
    """Where a share solved stands: `above` and `below` only where the whole interval does; None without a share."""
    if floor is None or score.value is None:
        return None
    return "above" if score.above(floor.score) else "below" if score.below(floor.score) else "not separated"


def standing_words(score: Interval, floor: BestConstant | None) -> str:
    """The same in words, `–` where there is nothing to compare."""
    found = standing(score, floor)
    if found is None or floor is None:
        return "–"
    answer = shorten(floor.answer, 60)
    return {
        "above": "above it",
        "not separated": f"indistinguishable from always answering {answer}",
        "below": f"worse than always answering {answer}",
    }[found]
