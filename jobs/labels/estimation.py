"""Estimates for all hints from a labeled random sample: precision, recall, F1, κ and the number of leaks.

The sample is stratified by detector verdict, so a labeled hint represents a known number of hints. With N₁ flagged and
N₀ unflagged hints, and leak fractions p₁ and q₀ among the labeled ones,

    recall = N₁ p₁ / (N₁ p₁ + N₀ q₀)

and likewise for any number of strata. Intervals: the leak fraction of each stratum has the Jeffreys posterior
Beta(x + ½, n − x + ½) (Brown, Cai and DasGupta 2001), with x and n divided by the design effect of its tasks. The
interval is the 2.5 % to 97.5 % quantile range of the measure under the posterior, widened to include the estimate. A
stratum without a labeled leak has an upper limit above 0, so the lower limit of recall is below 1. If the verdict on
all hints is the same, the sizes determine recall, so its interval is Wilson's for the labeled leaks; another measure
that the sizes determine has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rl2f_core.common.stats.intervals import LEVEL, Interval, effective_number, wilson_clustered
from rl2f_core.types import FrozenModel

POSTERIOR_SAMPLES = 4_000
TARGET_HALF_WIDTH = 0.05
"""Half width of a sufficiently narrow interval."""
SUFFICIENT_LABELS = 381
"""Number of labels that give a Wilson interval of ± `TARGET_HALF_WIDTH` for every fraction."""


@dataclass(frozen=True)
class Stratum:
    """Hints with the same sampling stratum and detector verdict."""

    size: int
    """Number of hints."""
    flagged: bool
    labels: Sequence[tuple[Hashable, bool]] = ()
    """Task and leak label of each sampled, labeled hint."""


class Estimates(FrozenModel):
    """Detector metrics on all hints of some strata; a value is None if the labels do not determine it."""

    size: int
    """Number of hints."""
    flagged: int
    """Number of flagged hints."""
    n_flagged: int
    """Number of labeled flagged hints."""
    n_unflagged: int
    """Number of labeled unflagged hints."""
    true_positives: int
    """Labeled flagged leaks."""
    false_negatives: int
    """Labeled unflagged leaks."""
    precision: Interval
    """Leaks among the flagged hints."""
    recall: Interval
    """Flagged hints among all leaks."""
    f1: Interval
    """Harmonic mean of precision and recall."""
    kappa: Interval
    """Cohen's κ between the detector and the labels, on all hints."""
    prevalence: Interval
    """Fraction of leaks."""
    missed_leaks: Interval
    """Number of unflagged leaks."""


def estimate(strata: Sequence[Stratum]) -> Estimates:
    """Estimate the metrics for all hints of the strata. Tasks are clusters within a stratum."""
    strata = [stratum for stratum in strata if stratum.size > 0]
    flagged, unflagged = [s for s in strata if s.flagged], [s for s in strata if not s.flagged]
    fractions = [effective_number(*_clusters(stratum.labels)) for stratum in strata]
    sizes = np.array([stratum.size for stratum in strata], dtype=float)
    is_flagged = np.array([stratum.flagged for stratum in strata], dtype=bool)
    point = _measures(sizes, is_flagged, np.array([[p for p, _ in fractions]], dtype=float))
    rng = np.random.default_rng(0)
    samples = [rng.beta(p * n + 0.5, (1 - p) * n + 0.5, POSTERIOR_SAMPLES) for p, n in fractions]
    posterior = _measures(sizes, is_flagged, np.array(samples, dtype=float).T.reshape(POSTERIOR_SAMPLES, len(strata)))
    has_flagged, has_unflagged = all(s.labels for s in flagged), all(s.labels for s in unflagged)
    known = dict.fromkeys(point, bool(strata) and has_flagged and has_unflagged)
    known |= {"precision": bool(flagged) and has_flagged, "missed_leaks": bool(strata) and has_unflagged}
    counts = dict.fromkeys(point, _label_count(strata))
    counts |= {"precision": _label_count(flagged), "missed_leaks": _label_count(unflagged)}
    intervals = {
        name: _interval(point[name], posterior[name], counts[name])
        if known[name]
        else Interval(value=None, n=counts[name])
        for name in point
    }
    if len(flagged) == 1 and has_flagged:
        intervals["precision"] = wilson_clustered(*_clusters(flagged[0].labels))
    if not (flagged and unflagged) and intervals["recall"].value is not None:
        found = [(task, stratum.flagged) for stratum in strata for task, leak in stratum.labels if leak]
        intervals["recall"] = wilson_clustered(*_clusters(found)).model_copy(update={"n": counts["recall"]})
    return Estimates(
        size=int(sizes.sum()),
        flagged=sum(stratum.size for stratum in flagged),
        n_flagged=_label_count(flagged),
        n_unflagged=_label_count(unflagged),
        true_positives=sum(leak for stratum in flagged for _, leak in stratum.labels),
        false_negatives=sum(leak for stratum in unflagged for _, leak in stratum.labels),
        **intervals,
    )


class Draw(NamedTuple):
    """A randomly drawn, labeled hint."""

    task: Hashable
    flagged: bool
    leak: bool


def precision_and_recall(strata: Sequence[tuple[int, Sequence[Draw]]]) -> tuple[Interval, Interval]:
    """Estimate precision and recall of a detector whose verdict is known on the draws only.

    A draw represents size / draws hints of its stratum. Within a stratum, the fractions of the four cells of verdict
    and label have the Jeffreys posterior Dirichlet(x + ½), with the counts x divided by the design effect of the
    leaks' tasks; see the module for the interval. `n` is the number of flagged draws, and of leaks among the draws.

    Args:
        strata: Number of hints and draws of each sampling stratum.
    """
    rng = np.random.default_rng(0)
    point, posterior = np.zeros((1, 4)), np.zeros((POSTERIOR_SAMPLES, 4))
    for size, draws in strata:
        counts = np.bincount([2 * draw.flagged + draw.leak for draw in draws], minlength=4)
        _, effective = effective_number(*_clusters([(draw.task, draw.leak) for draw in draws]))
        point += size * counts / len(draws)
        posterior += size * rng.dirichlet(counts * effective / len(draws) + 0.5, POSTERIOR_SAMPLES)
    drawn = [draw for _, draws in strata for draw in draws]

    def share(cells: np.ndarray, others: int) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return cells[:, 3] / (cells[:, 3] + cells[:, others])

    precision = _interval(share(point, 2), share(posterior, 2), sum(draw.flagged for draw in drawn))
    return precision, _interval(share(point, 1), share(posterior, 1), sum(draw.leak for draw in drawn))


def _label_count(strata: Sequence[Stratum]) -> int:
    return sum(len(stratum.labels) for stratum in strata)


def _clusters(labels: Sequence[tuple[Hashable, bool]]) -> tuple[list[float], list[float]]:
    """Return the number of leaks and of labels per task."""
    tasks: dict[Hashable, list[bool]] = {}
    for task, leak in labels:
        tasks.setdefault(task, []).append(leak)
    return [float(sum(leaks)) for leaks in tasks.values()], [float(len(leaks)) for leaks in tasks.values()]


def _measures(sizes: np.ndarray, flagged: np.ndarray, fractions: np.ndarray) -> dict[str, np.ndarray]:
    """Compute each measure per row of `fractions` (samples × strata); NaN for 0/0."""
    leaks = fractions * sizes
    clean = sizes - leaks
    tp, fn = leaks[:, flagged].sum(axis=1), leaks[:, ~flagged].sum(axis=1)
    fp, tn = clean[:, flagged].sum(axis=1), clean[:, ~flagged].sum(axis=1)
    total = sizes.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = (tp + tn) / total
        expected = ((tp + fp) * (tp + fn) + (fn + tn) * (fp + tn)) / total**2
        return {
            "precision": tp / (tp + fp),
            "recall": tp / (tp + fn),
            "f1": 2 * tp / (2 * tp + fp + fn),
            "kappa": (observed - expected) / (1 - expected),
            "prevalence": (tp + fn) / total,
            "missed_leaks": fn,
        }


def _interval(point: np.ndarray, posterior: np.ndarray, n: int) -> Interval:
    value = float(point[0])
    if not math.isfinite(value):
        return Interval(value=None, n=n)
    low, high = np.nanquantile(posterior, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if np.isclose(low, high, rtol=0):
        return Interval(value=value, n=n)
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value), n=n)


def labels_needed(interval: Interval, n: int) -> int | None:
    """Return how many more labels narrow an interval to ± `TARGET_HALF_WIDTH`; None without interval.

    The width decreases with the square root of the number of labels `n`.
    """
    if interval.value is None or interval.low is None or interval.high is None:
        return None
    ratio = (interval.high - interval.low) / (2 * TARGET_HALF_WIDTH)
    return max(0, math.ceil(n * (ratio**2 - 1)))
