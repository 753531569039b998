"""95 % confidence intervals for proportions, means and differences.

Several dialogues on one task, or attempts in one dialogue, are not independent, so every interval treats a task as one
cluster. Undefined values are None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np

from rl2f_core.errors import DataError
from rl2f_core.types import FrozenModel

LEVEL = 0.95
"""Coverage of every interval."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Two-sided normal quantile, 1.95996."""
_CHUNK = 2_000_000
_DIGITS = 12  # rounding makes canceling sums exactly 0, so that an interval ending at 0 does not exclude it


class Interval(FrozenModel):
    """An estimate with its 95 % interval."""

    value: float | None
    """The estimate; None without data."""
    low: float | None = None
    """Lower end; None if undefined."""
    high: float | None = None
    """Upper end; None if undefined."""
    n: int
    """Number of observations (proportions, means), tasks (differences) or seeds."""

    def above(self, x: float) -> bool:
        """Return whether the whole interval is above `x`."""
        return self.low is not None and self.low > x

    def below(self, x: float) -> bool:
        """Return whether the whole interval is below `x`."""
        return self.high is not None and self.high < x

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.above(0) or self.below(0)


@dataclass(frozen=True)
class Bootstrap:
    """Number of bootstrap resamples and their seed."""

    resamples: int = 2000
    seed: int = 0


def wilson(successes: float, n: float) -> Interval:
    """Compute the Wilson score interval of a proportion (Wilson 1927; Newcombe 1998, method 3).

    `n` may be fractional (an effective number). For n = 0 the value is None and the interval is [0, 1].
    """
    if n < 0 or not 0 <= successes <= n * (1 + 1e-9):
        raise DataError("A proportion needs 0 ≤ successes ≤ n.", value=(successes, n))
    if n == 0:
        return Interval(value=None, low=0.0, high=1.0, n=0)
    p = min(1.0, successes / n)
    center = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    low = 0.0 if p == 0 else max(0.0, center - half)
    high = 1.0 if p == 1 else min(1.0, center + half)
    return Interval(value=p, low=low, high=high, n=round(n))


def wilson_clustered(successes: Sequence[float], counts: Sequence[float]) -> Interval:
    """Compute the Wilson interval of a pooled proportion of clustered observations; entry i is task i.

    The number of observations is divided by Kish's design effect, at least 1: the between-cluster variance of the
    pooled proportion over that of independent observations (Dean and Pagano 2015). With one observation per cluster
    this equals `wilson`. At proportions of 0 and 1 the design effect is undefined, and each cluster counts as one
    observation. `n` of the result is the number of observations.
    """
    share, effective = effective_number(successes, counts)
    interval = wilson(share * effective, effective)
    return interval.model_copy(update={"value": share if effective else None, "n": round(sum(counts))})


def effective_number(successes: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Return the pooled proportion and the equivalent number of independent observations; both are 0 without data."""
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
    """Compute Σ numerators / Σ denominators with a percentile bootstrap interval over clusters; entry i is task i.

    Clusters with a denominator of 0 are ignored. No cluster: all None. One cluster, or `resamples` 0: no interval.
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
    return Interval(value=value, n=n, **_percentiles(draws))


def paired_bootstrap(a: Sequence[float], b: Sequence[float], resamples: int = 2000, seed: int = 0) -> Interval:
    """Compute mean(a) − mean(b) with a bootstrap interval over tasks; entry i of both is task i's mean.

    No task: all None. One task: no interval. `n` of the result is the number of tasks.
    Raises `DataError` if the lengths differ.
    """
    if len(a) != len(b):
        raise DataError("A paired difference needs the same tasks on both sides.", value=(len(a), len(b)))
    differences = (np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).tolist()
    return ratio_bootstrap(differences, [1.0] * len(differences), resamples, seed)


def t_interval(values: Sequence[float], support: tuple[float, float] | None = None) -> Interval:
    """Compute the mean of independent values (seeds) with Student's t interval, mean ± t(n − 1) · s / √n.

    No value: all None. One value: no interval. `support` clips the interval, e.g. to (0, 1).
    """
    n = len(values)
    if n == 0:
        return Interval(value=None, n=0)
    mean = fmean(values)
    if n == 1:
        return Interval(value=mean, n=1)
    from scipy.special import stdtrit  # import takes 0.3 s

    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * stdev(values) / math.sqrt(n)
    low, high = mean - half, mean + half
    if support is not None:
        low, high = max(low, support[0]), min(high, support[1])
    return Interval(value=mean, low=low, high=high, n=n)


def _clusters(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if len(numerators) != len(denominators):
        raise DataError("Clusters need one count for each sum.", value=(len(numerators), len(denominators)))
    y, m = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    return y[m > 0], m[m > 0]


def _percentiles(draws: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the percentile interval of all draws."""
    low, high = np.quantile(np.concatenate(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"low": round(float(low), _DIGITS), "high": round(float(high), _DIGITS)}


def _chunks(resamples: int, width: int) -> list[int]:
    size = max(1, min(resamples, _CHUNK // width))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def auc(
    scores: Sequence[float], positive: Sequence[bool], clusters: Sequence[object], resamples: int = 2000, seed: int = 0
) -> Interval:
    """Compute the area under the ROC curve with a percentile bootstrap interval over clusters.

    The area is P(score of a positive > score of a negative) + ½ P(equal) (Mann and Whitney 1947). Resamples without
    both classes are ignored. `n` of the result is the number of items. The value is None without both classes.

    Args:
        scores: One per item.
        positive: Class of each item.
        clusters: Task of each item.
        resamples: Number of resamples; 0 gives no interval.
        seed: Seed of the resampling.
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
    return Interval(value=value, n=n, **_percentiles(draws))
