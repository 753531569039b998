"""Agreement between annotators: pure functions of labels.

An *item* is any hashable that identifies a hint. Between annotators `leak`, `no_leak` and `unsure` are three answers,
so unsure against leak is a disagreement. Against a detector, the majority of leak and no_leak labels decides; ties and
hints with unsure labels only are excluded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from rl2f_core.common.stats.intervals import Interval, Z, wilson

LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"
LABELS = (LEAK, NO_LEAK, UNSURE)
K = TypeVar("K", bound=Hashable)


class Agreement(NamedTuple):
    """Agreement of two raters on the items that both labeled, which `n` counts."""

    observed: Interval
    """Fraction of equal labels, with its Wilson interval."""
    kappa: Interval
    """Cohen's κ; its value is None if chance agreement is 1."""


def agreement(a: Mapping[K, str], b: Mapping[K, str]) -> Agreement:
    """Compute raw agreement and Cohen's κ = (p_o − p_e) / (1 − p_e) (Cohen 1960) on the common items.

    The interval of κ is κ ± 1.96 · √(p_o (1 − p_o) / (n (1 − p_e)²)), clipped to [−1, 1] (Cohen 1960, equation 7). It
    is omitted if its width would be zero, for n < 2 or full agreement.
    """
    both = [(a[item], b[item]) for item in a if item in b]
    n, equal = len(both), sum(first == second for first, second in both)
    if n == 0:
        return Agreement(wilson(0, 0), Interval(value=None, n=0))
    rows, columns = Counter(first for first, _ in both), Counter(second for _, second in both)
    expected = sum(rows[label] * columns[label] for label in rows) / n**2
    return Agreement(wilson(equal, n), _kappa(equal / n, expected, n))


def _kappa(observed: float, expected: float, n: int) -> Interval:
    if expected >= 1:
        return Interval(value=None, n=n)
    kappa = (observed - expected) / (1 - expected)
    if n < 2 or observed in (0.0, 1.0):
        return Interval(value=kappa, n=n)
    half = Z * math.sqrt(observed * (1 - observed) / n) / (1 - expected)
    return Interval(value=kappa, low=max(-1.0, kappa - half), high=min(1.0, kappa + half), n=n)


def majority_vote(labels: Iterable[str]) -> str | None:
    """Return the majority of `leak` and `no_leak`; None on a tie."""
    counts = Counter(labels)
    if counts[LEAK] == counts[NO_LEAK]:
        return None
    return LEAK if counts[LEAK] > counts[NO_LEAK] else NO_LEAK
