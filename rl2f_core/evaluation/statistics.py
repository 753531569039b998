"""Intervals for shares, means and differences, all at 95 %, with no number made up where there are too few data.

Tasks are the units of chance: several dialogues on one task, or several attempts in one dialogue, are not independent,
so every interval here treats a task as one cluster.  Nothing returns NaN: what cannot be said is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from rl2f_core.errors import DataError
from rl2f_core.types import Value

LEVEL = 0.95
"""Coverage of every interval."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Two-sided normal quantile, 1.95996."""
_CHUNK = 2_000_000
_DIGITS = 12  # sums of thirds that cancel must be 0, not 1e-17, or an end at 0 would look separated from it


class Interval(Value):
    """An estimate with its 95 % interval."""

    value: float | None
    """The estimate; None where there is nothing to estimate it from."""
    low: float | None = None
    """Lower end; None where no interval can be given."""
    high: float | None = None
    """Upper end; None where no interval can be given."""
    n: int
    """How many observations (shares, means), tasks (differences) or seeds it rests on."""

    def above(self, x: float) -> bool:
        """The whole interval lies above `x`."""
        return self.low is not None and self.low > x

    def below(self, x: float) -> bool:
        """The whole interval lies below `x`."""
        return self.high is not None and self.high < x

    @property
    def separated(self) -> bool:
        """The interval leaves 0 out."""
        return self.above(0) or self.below(0)


def wilson(successes: float, n: float) -> Interval:
    """The Wilson score interval of one share (Wilson 1927; Newcombe 1998, method 3).

    `n` may be fractional (an effective number). For n = 0 the value is None and the interval is [0, 1].
    """
    if n < 0 or not 0 <= successes <= n * (1 + 1e-9):
        raise DataError("A share needs 0 ≤ successes ≤ n.", value=(successes, n))
    if n == 0:
        return Interval(value=None, low=0.0, high=1.0, n=0)
    p = min(1.0, successes / n)
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    low = 0.0 if p == 0 else max(0.0, middle - half)
    high = 1.0 if p == 1 else min(1.0, middle + half)
    return Interval(value=p, low=low, high=high, n=round(n))


def wilson_clustered(successes: Sequence[float], counts: Sequence[float]) -> Interval:
    """The Wilson interval of a pooled share whose observations come in clusters: entry i is task i.

    The number of observations is divided by Kish's design effect (the ratio of the between-cluster variance of the
    pooled share to that of independent observations; Dean and Pagano 2015), at least 1. With one observation a
    cluster this is exactly `wilson`. At shares of 0 and 1 the design effect cannot be estimated; each cluster then
    counts as one observation. `n` of the result is the number of observations.
    """
    share, effective = effective_number(successes, counts)
    found = wilson(share * effective, effective)
    return found.model_copy(update={"value": share if effective else None, "n": round(sum(counts))})


def effective_number(successes: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """The pooled share of clustered observations, and how many independent ones would say as much (see above).

    Both are 0 where there are no observations.
    """
    y, m = _clusters(successes, counts)
    n = float(m.sum())
    if n == 0:
        return 0.0, 0.0
    share = min(1.0, float(y.sum()) / n)
    clusters = len(m)
    if clusters == 1 or share in (0.0, 1.0):
        return share, float(clusters)
    spread = float(((y - share * m) ** 2).sum()) / (n * share * (1 - share))
    return share, n / max(1.0, round(spread * clusters * (n - 1) / ((clusters - 1) * n), _DIGITS))


def ratio_bootstrap(
    numerators: Sequence[float], denominators: Sequence[float], resamples: int = 2000, seed: int = 0
) -> Interval:
    """Σ numerators / Σ denominators with a percentile interval from resampling clusters (entry i is task i).

    Clusters with a denominator of 0 are left out. No cluster: all None. One cluster, or `resamples` 0: no interval.
    `n` of the result is Σ denominators, rounded.
    """
    y, m = _clusters(numerators, denominators)
    if not len(m):
        return Interval(value=None, n=0)
    value, n = round(float(y.sum() / m.sum()), _DIGITS), round(float(m.sum()))
    if len(m) == 1 or resamples == 0:
        return Interval(value=value, n=n)
    rng = np.random.default_rng(seed)
    draws = []
    for size in _chunks(resamples, len(m)):
        index = rng.integers(0, len(m), (size, len(m)))
        draws.append(y[index].sum(axis=1) / m[index].sum(axis=1))
    low, high = np.quantile(np.concatenate(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=value, low=round(float(low), _DIGITS), high=round(float(high), _DIGITS), n=n)


def mean_bootstrap(clusters: Sequence[Sequence[float]], resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean over all values, with an interval from resampling clusters; `clusters[i]` are task i's values.

    Same rules as `ratio_bootstrap`; `n` is the number of values.
    """
    return ratio_bootstrap([float(sum(c)) for c in clusters], [float(len(c)) for c in clusters], resamples, seed)


def paired_bootstrap(a: Sequence[float], b: Sequence[float], resamples: int = 2000, seed: int = 0) -> Interval:
    """mean(a) − mean(b) with a percentile interval from resampling tasks; entry i of both is task i's mean.

    No task: all None. One task: no interval. `n` of the result is the number of tasks.
    Raises `DataError` where the lengths differ.
    """
    if len(a) != len(b):
        raise DataError("A paired difference needs the same tasks on both sides.", value=(len(a), len(b)))
    differences = (np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).tolist()
    return ratio_bootstrap(differences, [1.0] * len(differences), resamples, seed)


def t_interval(values: Sequence[float], support: tuple[float, float] | None = None) -> Interval:
    """The mean of independent values (seeds) with Student's t interval, mean ± t(n − 1) · s / √n.

    No value: all None. One value: no interval. `support` cuts the interval to where values can lie, e.g. (0, 1).
    """
    n = len(values)
    if n == 0:
        return Interval(value=None, n=0)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(value=mean, n=1)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile((1 + LEVEL) / 2, n - 1) * deviation / math.sqrt(n)
    low, high = mean - half, mean + half
    if support is not None:
        low, high = max(low, support[0]), min(high, support[1])
    return Interval(value=mean, low=low, high=high, n=n)


def t_quantile(p: float, df: int) -> float:
    """Student's t quantile for 0.5 ≤ p < 1 and whole degrees of freedom ≥ 1, by bisection of the exact distribution."""
    if not 0.5 <= p < 1 or df < 1:
        raise DataError("t_quantile needs 0.5 ≤ p < 1 and df ≥ 1.", value=(p, df))
    inside = 2 * p - 1
    low, high = 0.0, 1.0
    while _t_inside(high, df) < inside:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, df) < inside else (low, middle)
    return (low + high) / 2


def _t_inside(t: float, df: int) -> float:
    """P(|T| < t) for whole df (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = df % 2 == 1
    total, term = 0.0, cos if odd else 1.0
    for k in range(3 if odd else 2, df + 1, 2):
        total += term
        term *= cos * cos * (k - 1) / k
    return 2 / math.pi * (angle + sin * total) if odd else sin * total


def _clusters(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if len(numerators) != len(denominators):
        raise DataError("Clusters need one count for each sum.", value=(len(numerators), len(denominators)))
    y, m = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    return y[m > 0], m[m > 0]


def _chunks(resamples: int, width: int) -> list[int]:
    size = max(1, min(resamples, _CHUNK // width))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def auc(
    scores: Sequence[float], positive: Sequence[bool], clusters: Sequence[object], resamples: int = 2000, seed: int = 0
) -> Interval:
    """The area under the ROC curve with a percentile interval from resampling clusters.

    It is P(score of a positive > score of a negative) + ½ P(equal) (Mann and Whitney). Resamples that hold no positive
    or no negative say nothing and are left out.

    Args:
        scores: One an item.
        positive: Whether it is a positive.
        clusters: What it belongs to; items on the same task are not independent.
        resamples: How many; 0 gives no interval.
        seed: Of the resampling.

    `n` of the result is the number of items. Without a positive or a negative the value is None.
    """
    if not len(scores) == len(positive) == len(clusters):
        raise DataError("Every score needs a class and a cluster.", value=(len(scores), len(positive), len(clusters)))
    n = len(scores)
    labels = np.asarray(positive, dtype=bool)
    if labels.all() or not labels.any():
        return Interval(value=None, n=n)
    order = np.argsort(np.asarray(scores, dtype=float), kind="stable")
    ordered, labels = np.asarray(scores, dtype=float)[order], labels[order]
    ties = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    member = np.asarray([names[name] for name in clusters])[order]

    def area(weights_RN: np.ndarray) -> np.ndarray:
        up_RG = np.add.reduceat(weights_RN * labels, ties, axis=1)
        down_RG = np.add.reduceat(weights_RN * ~labels, ties, axis=1)
        below_RG = down_RG.cumsum(axis=1) - down_RG / 2
        pairs_R = up_RG.sum(axis=1) * down_RG.sum(axis=1)
        kept = pairs_R > 0
        return (up_RG * below_RG).sum(axis=1)[kept] / pairs_R[kept]

    value = round(float(area(np.ones((1, n)))[0]), _DIGITS)
    if len(names) == 1 or resamples == 0:
        return Interval(value=value, n=n)
    rng = np.random.default_rng(seed)
    draws = []
    for size in _chunks(resamples, n):
        counts_RC = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size)
        draws.append(area(counts_RC[:, member].astype(float)))
    low, high = np.quantile(np.concatenate(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=value, low=round(float(low), _DIGITS), high=round(float(high), _DIGITS), n=n)
