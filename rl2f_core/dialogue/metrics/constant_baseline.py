"""Comparison of scores with the constant baseline, the best constant answer.

A policy at this baseline has learned nothing about the tasks. On `shortest_path`, for example, always answering
"infeasible" earns the published score of .385. Every score is therefore compared by its 95 % interval.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.common.stats.intervals import MIN_PROBLEMS, TOO_FEW, Interval
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Baselines
from rl2f_core.errors import shorten
from rl2f_core.types import ConstantBaseline

BaselineComparison = Literal["above", "not separated", "below", "too few to tell"]


def constant_baseline(environment: Environment) -> ConstantBaseline | None:
    """Return the environment's constant baseline, or None if it has no `Baselines`."""
    return environment.constant_baseline() if isinstance(environment, Baselines) else None


def compare_to_baseline(
    score: Interval, baseline: ConstantBaseline | None, problems: int | None = None
) -> BaselineComparison | None:
    """Compare a solve rate with the baseline.

    The result is `above` or `below` only if the whole interval is. It is None without a score or baseline.

    Args:
        score: The solve rate.
        baseline: The constant baseline.
        problems: Number of problems of the solve rate; None if the interval is not over problems.
    """
    if baseline is None or score.value is None:
        return None
    if problems is not None and problems < MIN_PROBLEMS:
        return TOO_FEW
    return "above" if score.above(baseline.score) else "below" if score.below(baseline.score) else "not separated"


def is_above_baseline(score: Interval, baseline: ConstantBaseline | None, problems: int | None = None) -> bool:
    """Return whether a score beats the baseline, or cannot be compared with one."""
    return compare_to_baseline(score, baseline, problems) in ("above", TOO_FEW, None)


def describe_comparison(score: Interval, baseline: ConstantBaseline | None, problems: int | None = None) -> str:
    """Describe the result of `compare_to_baseline`; `–` if there is none."""
    result = compare_to_baseline(score, baseline, problems)
    if result is None or baseline is None:
        return "–"
    answer = shorten(baseline.answer, 60)
    return {
        "above": "above it",
        "not separated": f"indistinguishable from always answering {answer}",
        "below": f"worse than always answering {answer}",
        TOO_FEW: TOO_FEW,
    }[result]
