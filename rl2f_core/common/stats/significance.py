"""Exact sign-flip test, and Holm's correction for families of comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_EXACT = 25
"""Largest number of nonzero values of the exact test; it needs 2^(MAX_EXACT / 2) sums."""
_EQUAL = 1e-9  # sums that differ by less are equal


def sign_flip_p(values: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p-value of the exact sign-flip test that values are symmetric around 0.

    It is the fraction of the 2^k sign assignments of the k nonzero values whose absolute sum is at least the observed
    one (Fisher 1935, The Design of Experiments, section 21; Pitman 1937). For values of −1, 0 and 1 this is McNemar's
    exact test. Without nonzero values it is 1. Raises `ValueError` for more than `MAX_EXACT` nonzero values.
    """
    signed = np.asarray(values, dtype=float)
    magnitudes = np.abs(signed)[np.abs(signed) > _EQUAL]
    total = abs(float(signed.sum())) - _EQUAL
    if len(magnitudes) > MAX_EXACT:
        raise ValueError(f"The exact test supports at most {MAX_EXACT} nonzero values, not {len(magnitudes)}.")
    half = len(magnitudes) // 2
    left, right = _signed_sums(magnitudes[:half]), np.sort(_signed_sums(magnitudes[half:]))
    at_least = len(right) - np.searchsorted(right, total - left, side="left")
    at_most = np.searchsorted(right, -total - left, side="right")
    return min(1.0, float((at_least + at_most).sum()) / (len(left) * len(right)))


def _signed_sums(magnitudes: np.ndarray) -> np.ndarray:
    """Return Σ ± magnitude for all sign assignments."""
    sums = np.zeros(1)
    for magnitude in magnitudes:
        sums = np.concatenate([sums - magnitude, sums + magnitude])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values of a family of tests, in the same order (Holm 1979).

    The i-th smallest of m p-values is multiplied by m − i + 1; the results are made monotone and at most 1.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, stepped)
    return [float(value) for value in adjusted]
