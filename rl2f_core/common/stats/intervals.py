"""95 % confidence intervals for proportions, ratios, means and differences.

Several dialogues on one problem, or attempts in one dialogue, are not independent, so every interval treats a problem
as one cluster. With several training seeds, problems and seeds are crossed: each seed is evaluated on the same
problems. Undefined values are None, never NaN. `data/results/calibration/` contains the simulated coverage.

Sums and counts are arrays (problems,) or (problems × seeds); entry i belongs to problem i. A count of 0 is a missing
value. With seeds, the estimate is the mean of the seeds' estimates, which all have the same weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from rl2f_core.common.stats.significance import holm, sign_flip_p
from rl2f_core.errors import DataError
from rl2f_core.types import FrozenModel

LEVEL = 0.95
"""Coverage of every interval."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Two-sided normal quantile, 1.95996."""
MIN_PROBLEMS = 10
"""With fewer problems, no comparison has a finding but `TOO_FEW`."""
TOO_FEW: Final = "too few to tell"
EXACT_BELOW = 20
"""With fewer problems that differ, a difference also needs a significant exact test."""
POWER = 0.8
"""Probability of finding the effect of `detectable_effect`."""
_CHUNK = 2_000_000
ItemT = TypeVar("ItemT", bound=FrozenModel)
_DIGITS = 12  # rounding makes canceling sums exactly 0, so that an interval ending at 0 does not exclude it


def _is_missing(value: object) -> bool:
    return value is None


class Interval(FrozenModel):
    """An estimate with its 95 % interval."""

    value: float | None
    """The estimate; None without data."""
    low: float | None = None
    """Lower end; None if undefined."""
    high: float | None = None
    """Upper end; None if undefined."""
    n: int
    """Number of observations (proportions, means), problems (differences) or seeds."""
    p_value: float | None = Field(None, exclude_if=_is_missing)
    """Of a difference: two-sided, of the hypothesis 0; at most .05 exactly if the interval excludes 0."""
    holm_p: float | None = Field(None, exclude_if=_is_missing)
    """p-value after Holm's correction in the family of the comparison; see `correct_family`."""

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


def wilson_clustered(successes: ArrayLike, counts: ArrayLike) -> Interval:
    """Compute the Wilson interval of a proportion, or of a mean in [0, 1], of clustered observations.

    The number of observations is the effective one; see `effective_number`. With one seed and one observation per
    problem this equals `wilson`. `n` of the result is the number of observations.
    """
    share, effective = effective_number(successes, counts)
    interval = wilson(share * effective, effective)
    total = float(np.sum(counts))
    return interval.model_copy(update={"value": share if effective else None, "n": round(total)})


def effective_number(successes: ArrayLike, counts: ArrayLike) -> tuple[float, float]:
    """Return the proportion and the equivalent number of independent observations; both are 0 without data.

    The number of observations is divided by Kish's design effect, at least 1: the variance of the proportion, see
    `_crossed`, over that of independent observations (Dean and Pagano 2015). It is multiplied by the squared ratio of
    t quantiles, for the degrees of freedom of that variance (Korn and Graubard 1998). At proportions of 0 and 1 the
    design effect is undefined, and each problem counts as one observation.
    """
    y, m = _clusters(successes, counts)
    n = float(m.sum())
    if n == 0:
        return 0.0, 0.0
    estimate = _crossed(y, m)
    share = min(1.0, max(0.0, estimate.value))
    if len(m) == 1 or share in (0.0, 1.0):
        return share, float(len(m))
    design = max(1.0, round(estimate.variance * (n - 1) / (share * (1 - share)), _DIGITS))
    return share, n / design * (_t_quantile(n - 1) / _t_quantile(estimate.df)) ** 2


def mean_interval(sums: ArrayLike, counts: ArrayLike) -> Interval:
    """Compute a ratio of sums, or a mean if counts are numbers of observations, with Student's t interval.

    The variance is that of the linearized ratio (Cochran 1977, section 6.3); see `_crossed`. If no sum is negative,
    the upper end is that of the t interval of the logarithm, mean · exp(half / mean), because such means (tokens) are
    skewed to the right; it is above the symmetric end. No data: all None. One problem, or no variance at all: no
    interval. `n` of the result is Σ counts, rounded.
    """
    y, m = _clusters(sums, counts)
    if not len(m):
        return Interval(value=None, n=0)
    estimate, n = _crossed(y, m), round(float(m.sum()))
    value = round(estimate.value, _DIGITS)
    if len(m) == 1 or estimate.variance <= 0:
        return Interval(value=value, n=n)
    half = _t_quantile(estimate.df) * math.sqrt(estimate.variance)
    if value > 0 and y.min() >= 0:
        return Interval(value=value, low=max(0.0, value - half), high=value * math.exp(min(half / value, 50.0)), n=n)
    return Interval(value=value, low=value - half, high=value + half, n=n)


def paired_difference(sums: ArrayLike, counts: ArrayLike, samples: float = 1.0, limit: float = 1.0) -> Interval:
    """Compute the mean of paired differences over problems, with an interval and a p-value.

    Student's t interval with two pseudo-problems, of differences +c and −c with c = 1 / √(dialogues per problem and
    condition). With one dialogue per problem this is the adjusted Wald interval of Bonett and Price (2012,
    doi 10.3102/1076998611411915) with t quantiles, so equal differences give no interval of width 0. See `_crossed`
    for the variance. If fewer than `EXACT_BELOW` problems differ, the interval also includes 0 unless the exact
    sign-flip test rejects.

    Args:
        sums: Sum of the differences of each problem, by seed.
        counts: Number of differences in each sum; 0 if the problem is missing.
        samples: Dialogues per difference and condition.
        limit: Largest possible absolute difference.

    Returns:
        `n` is the number of problems. No problem: all None. One problem: no interval.
    """
    y, m = _clusters(sums, counts)
    if not len(m):
        return Interval(value=None, n=0)
    value, n = _crossed(y, m).value, len(m)
    value = value if abs(value) > 10.0**-_DIGITS else 0.0
    if n == 1:
        return Interval(value=value, n=1)
    estimate = _with_pseudo_problems(y, m, samples)
    half, error = _t_quantile(estimate.df) * math.sqrt(estimate.variance), math.sqrt(estimate.variance)
    low = max(-limit, min(value, round(estimate.value - half, _DIGITS)))
    high = min(limit, max(value, round(estimate.value + half, _DIGITS)))
    p_value = _t_tails(abs(estimate.value) / error, estimate.df)
    by_problem = y.sum(axis=1)
    if np.count_nonzero(np.abs(by_problem) > 10.0**-_DIGITS) < EXACT_BELOW:
        p_value = max(p_value, sign_flip_p(by_problem))
    if p_value > 1 - LEVEL:
        low, high = min(low, 0.0), max(high, 0.0)
    return Interval(value=value, low=low, high=high, n=n, p_value=p_value)


def _with_pseudo_problems(y: np.ndarray, m: np.ndarray, samples: float) -> _Estimate:
    """Estimate a mean difference with the two pseudo-problems of `paired_difference`."""
    seeds, weight = m.shape[1], m.mean()
    pseudo = weight / math.sqrt(samples * weight * seeds) * np.array([[1.0], [-1.0]])
    return _crossed(
        np.concatenate([y, np.broadcast_to(pseudo, (2, seeds))]), np.concatenate([m, np.full((2, seeds), weight)]), 2
    )


def detectable_effect(sums: ArrayLike, counts: ArrayLike, samples: float = 1.0, tests: int = 1) -> float | None:
    """Return the smallest true difference that `paired_difference` finds with the probability `POWER`.

    From the observed variances over problems and seeds, and the noncentral t distribution of the estimate divided by
    its standard error. The level is that of the smallest p-value in Holm's correction of `tests` hypotheses, .05 /
    tests. None with fewer than two problems.
    """
    y, m = _clusters(sums, counts)
    if len(m) < 2:
        return None
    estimate, shrinkage = _with_pseudo_problems(y, m, samples), len(m) / (len(m) + 2)
    return _detectable(math.sqrt(estimate.variance), estimate.df, tests) / shrinkage


def _detectable(error: float, df: float, tests: int) -> float:
    from scipy.special import nctdtrinc, stdtrit

    return error * float(nctdtrinc(df, 1 - POWER, stdtrit(df, 1 - (1 - LEVEL) / (2 * tests))))


def difference_over_seeds(differences: Sequence[float], tests: int = 1) -> tuple[Interval, float | None]:
    """Return the mean of differences by seed with the t interval and p-value, and the effect as `detectable_effect`.

    Without an interval, because of one seed or equal differences, the effect is None.
    """
    interval, n = t_interval(differences), len(differences)
    if interval.value is None or interval.low is None:
        return interval, None
    error = stdev(differences) / math.sqrt(n)
    p_value = _t_tails(abs(interval.value) / error, n - 1)
    return interval.model_copy(update={"p_value": p_value}), _detectable(error, n - 1, tests)


def correct_family(differences: Sequence[Interval]) -> list[Interval]:
    """Return differences of one family of comparisons with their `holm_p`; those without a p-value do not count."""
    p_values = [d.p_value for d in differences if d.p_value is not None]
    corrected = iter(holm(p_values))
    return [d if d.p_value is None else d.model_copy(update={"holm_p": next(corrected)}) for d in differences]


def correct_families(differences: Sequence[Interval], families: Sequence[str]) -> list[Interval]:
    """Return differences with `holm_p`, corrected within each family; entry i of `families` names that of entry i."""
    corrected = list(differences)
    for family in dict.fromkeys(families):
        members = [i for i, name in enumerate(families) if name == family]
        for i, difference in zip(members, correct_family([differences[i] for i in members]), strict=True):
            corrected[i] = difference
    return corrected


def correct_items(items: Sequence[ItemT], field: str, families: Sequence[str]) -> list[ItemT]:
    """Return models whose differences in `field`, if any, have `holm_p`; see `correct_families`."""
    known = [i for i, item in enumerate(items) if getattr(item, field) is not None]
    corrected = correct_families([getattr(items[i], field) for i in known], [families[i] for i in known])
    updates = dict(zip(known, corrected, strict=True))
    return [item.model_copy(update={field: updates[i]}) if i in updates else item for i, item in enumerate(items)]


def t_interval(values: Sequence[float], support: tuple[float, float] | None = None) -> Interval:
    """Compute the mean of independent values (seeds) with Student's t interval, mean ± t(n − 1) · s / √n.

    No value: all None. One value, or equal values: no interval. `support` clips the interval, e.g. to (0, 1).
    """
    n = len(values)
    if n == 0:
        return Interval(value=None, n=0)
    mean = fmean(values)
    if n == 1 or round(stdev(values), _DIGITS) == 0:
        return Interval(value=mean, n=n)
    half = _t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    low, high = mean - half, mean + half
    if support is not None:
        low, high = max(low, support[0]), min(high, support[1])
    return Interval(value=mean, low=low, high=high, n=n)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A mean over seeds of ratios of sums, its variance and the degrees of freedom of the variance."""

    value: float
    variance: float
    df: float


def _crossed(y: np.ndarray, m: np.ndarray, pseudo: int = 0) -> _Estimate:
    """Estimate the mean over seeds of Σ y / Σ m; y and m have the shape (problems × seeds).

    The variance is the sum of the variances over problems and over seeds: s²(problems) / n + s²(seeds) / K, for the
    linearized residuals of each problem, averaged over seeds, and for the K ratios. It is conservative, because both
    terms contain the sampling noise of a cell (Owen 2007, The pigeonhole bootstrap; Cameron, Gelbach and Miller 2011
    subtract it). The degrees of freedom are Satterthwaite's (1946): their inverse sums squared shares of the variance
    over those of a term. For two seeds, whose variance has one, shares are not squared: coverage with 256 problems is
    .93 instead of .91. `pseudo` rows add none. With one seed, only problems vary.
    """
    n, totals = len(m), m.sum(axis=0)
    ratios = y.sum(axis=0) / totals
    residuals = ((y - ratios * m) * (n / totals)).mean(axis=1)
    freedom = max(1, n - 1 - pseudo)
    over_problems = float(residuals @ residuals) / (max(1, n - 1) * n)
    if len(ratios) == 1:
        return _Estimate(float(ratios[0]), over_problems, freedom)
    over_seeds = float(ratios.var(ddof=1)) / len(ratios)
    variance, df, power = over_problems + over_seeds, float(freedom), 1 if len(ratios) == 2 else 2
    if variance > 0:
        df = variance**power / (over_problems**power / freedom + over_seeds**power / (len(ratios) - 1))
    return _Estimate(float(ratios.mean()), variance, df)


@lru_cache(maxsize=4096)
def _t_quantile(df: float) -> float:
    """Return the two-sided quantile of Student's t distribution at `LEVEL`."""
    from scipy.special import stdtrit  # import takes 0.3 s

    return float(stdtrit(df, (1 + LEVEL) / 2))


def _t_tails(t: float, df: float) -> float:
    """Return P(|T| ≥ t)."""
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -t))


def _clusters(sums: ArrayLike, counts: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both as arrays (problems × seeds), without problems and seeds that have no data."""
    y, m = np.asarray(sums, dtype=float), np.asarray(counts, dtype=float)
    if y.shape != m.shape:
        raise DataError("Clusters need one count for each sum.", value=(y.shape, m.shape))
    if y.ndim == 1:
        y, m = y[:, None], m[:, None]
    rows, columns = (m > 0).any(axis=1), (m > 0).any(axis=0)
    return y[rows][:, columns], m[rows][:, columns]


def _percentiles(draws: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the percentile interval of all draws; empty if its width would be zero."""
    low, high = np.quantile(np.concatenate(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = round(float(low), _DIGITS), round(float(high), _DIGITS)
    return {"low": low, "high": high} if low < high else {}


def _chunks(resamples: int, width: int) -> list[int]:
    size = max(1, min(resamples, _CHUNK // width))
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def auc(
    scores: Sequence[float], positive: Sequence[bool], clusters: Sequence[object], resamples: int = 2000, seed: int = 0
) -> Interval:
    """Compute the area under the ROC curve with a percentile bootstrap interval over clusters.

    The area is P(score of a positive > score of a negative) + ½ P(equal) (Mann and Whitney 1947). Resamples without
    both classes are ignored. `n` of the result is the number of items. The value is None without both classes; without
    an overlap of the classes there is no interval.

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
