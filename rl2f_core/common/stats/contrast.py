"""Weighted sums of rates, such as differences of solve rates, paired over problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl2f_core.common.stats.intervals import Interval, paired_difference


def contrast(sums: np.ndarray, counts: np.ndarray, weights: Sequence[float], is_pooled: bool = False) -> Interval:
    """Return a weighted sum of rates, paired over problems.

    A rate is the mean over the problems that all rates have, or with `is_pooled` Σ sums / Σ counts over all problems.

    Args:
        sums: E.g. solved dialogues (rates × problems), or (rates × problems × seeds).
        counts: Number of observations in the same shape.
        weights: Weight of each rate; they add up to 0.
        is_pooled: Whether the counts depend on the answers, e.g. revisions, so that a missing one is no failure. `n`
            is then the number of problems of the rate with the fewest.
    """
    interval = paired_difference(*paired_rates(sums, counts, weights, is_pooled), limit=sum(map(abs, weights)) / 2)
    if not is_pooled:
        return interval
    fewest = min(int(of_rate.reshape(len(of_rate), -1).any(axis=1).sum()) for of_rate in counts)
    return Interval(value=interval.value, n=fewest) if fewest < 2 else interval.model_copy(update={"n": fewest})


def paired_rates(
    sums: np.ndarray, counts: np.ndarray, weights: Sequence[float], is_pooled: bool = False
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the first arguments of `paired_difference` for the arguments of `contrast`.

    A pooled rate R = Σ y / Σ m is linearized: problem i has the value R + (y_i − R m_i) / mean(m), whose mean is R
    (Cochran 1977, section 6.3). With equal counts this is y_i / m_i. The exact test flips the signs of the weighted
    sums of these values. Seeds without an observation of a rate are missing.
    """
    if is_pooled:
        totals = counts.sum(axis=1, keepdims=True)
        present = (counts > 0).any(axis=0) & (totals > 0).all(axis=0)
        mean = np.where(totals > 0, totals, 1) / np.maximum(present.sum(axis=0), 1)
        pooled = sums.sum(axis=1, keepdims=True) / np.where(totals > 0, totals, 1)
        values = pooled + (sums - pooled * counts) / mean
    else:
        present = np.asarray((counts > 0).all(axis=0))
        values = sums / np.where(counts > 0, counts, 1)
    samples = float(counts[:, present].mean()) if present.any() else 1.0
    differences = np.tensordot(np.asarray(weights, dtype=float), values, axes=1)
    return np.where(present, differences, 0.0), present, samples
