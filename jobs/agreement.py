"""How far labellers agree with each other: pure functions of plain answers.

An *item* is anything hashable that names a hint. An answer is `leak`, `no_leak` or `unsure`. Between labellers all
three count as answers, so an unsure against a leak is a disagreement. Against a detector, which is never unsure, a
hint counts by what most of its decided answers say; where they tie, or nobody decided, it does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rl2f_core.evaluation.statistics import Interval, Z, wilson

LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"
LABELS = (LEAK, NO_LEAK, UNSURE)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Agreement:
    """Two raters on the items that both answered."""

    n: int
    """Items that both answered."""
    observed: Interval
    """Share of equal answers, with its Wilson interval."""
    expected: float | None
    """Share of equal answers by chance, from how often each rater gives each answer; None for n = 0."""
    kappa: Interval
    """Cohen's κ; its value is None where chance alone would give full agreement."""
    table: dict[tuple[str, str], int]
    """How often the first gave the one answer and the second the other."""


def agreement(a: Mapping[K, str], b: Mapping[K, str]) -> Agreement:
    """Raw agreement and Cohen's κ = (p_o − p_e) / (1 − p_e) (Cohen 1960) on the items that are in both.

    The interval of κ is κ ± 1.96 · √(p_o (1 − p_o) / (n (1 − p_e)²)), cut to [−1, 1] (Cohen 1960, equation 7); none is
    given where it would have no width, for n < 2 or for full agreement.
    """
    both = [(a[item], b[item]) for item in a if item in b]
    n, table = len(both), Counter(both)
    equal = sum(first == second for first, second in both)
    observed = wilson(equal, n)
    if n == 0:
        return Agreement(0, observed, None, Interval(value=None, n=0), {})
    rows, columns = Counter(first for first, _ in both), Counter(second for _, second in both)
    expected = sum(rows[label] * columns[label] for label in rows) / n**2
    return Agreement(n, observed, expected, _kappa(equal / n, expected, n), dict(table))


def _kappa(observed: float, expected: float, n: int) -> Interval:
    if expected >= 1:
        return Interval(value=None, n=n)
    kappa = (observed - expected) / (1 - expected)
    if n < 2 or observed in (0.0, 1.0):
        return Interval(value=kappa, n=n)
    half = Z * math.sqrt(observed * (1 - observed) / n) / (1 - expected)
    return Interval(value=kappa, low=max(-1.0, kappa - half), high=min(1.0, kappa + half), n=n)


def consensus(answers: Iterable[str]) -> str | None:
    """What most of the decided answers say: `leak` or `no_leak`; None on a tie or where nobody decided."""
    counts = Counter(answers)
    if counts[LEAK] == counts[NO_LEAK]:
        return None
    return LEAK if counts[LEAK] > counts[NO_LEAK] else NO_LEAK
