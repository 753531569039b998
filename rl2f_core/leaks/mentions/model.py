"""Logistic regression over the mentions of a hint.

A hint with mentions x₁ … xₙ (feature vectors of `features.py`) is a leak with probability

    p = σ(b + log Σᵢ exp(w·xᵢ))

so that one asserted mention suffices, as in multiple-instance learning (Ray and Craven, ICML 2005). A hint without a
mention has p = 0. `fit` minimizes the weighted cross-entropy plus `l2` times the squared weights of the standardized
features, or their squared differences to earlier weights; 3,000 hints take less than a second on one core.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from rl2f_core.common.paths import MENTION_WEIGHTS
from rl2f_core.common.stats.intervals import Interval, wilson
from rl2f_core.errors import DataError
from rl2f_core.leaks.mentions.features import FEATURES
from rl2f_core.types import FrozenModel

L2 = 3.0
"""Strength of the regularization."""
FOLDS = 10
BINS = 10
"""Bins of the calibration error."""
MIN_PRECISION = 0.9
"""Precision that the threshold reaches on hints that were not used to fit the weights."""
MIN_LEAKS = 20
"""Leaks from which a threshold is chosen."""
THRESHOLDS = np.arange(1, 20) / 20
"""A coarse grid, since precision and recall of a few leaks jump."""


class Example(NamedTuple):
    """A labeled hint."""

    vectors: NDArray[np.float64]
    """Features of its mentions, mentions × features; without mentions 0 × features."""
    leak: bool
    group: Hashable
    """Examples with the same group, such as a dialogue or a task, are in the same fold."""
    source: str
    """Name of the data set."""
    weight: float = 1.0
    also: tuple[str, ...] = ()
    """Further names under which the report counts it, such as all tutors, or one."""


class SourceQuality(FrozenModel):
    """Quality on a data set at the threshold, cross-validated."""

    hints: int
    leaks: int
    precision: Interval
    """Leaks among the flagged hints."""
    recall: Interval
    """Flagged hints among all leaks."""
    f1: float | None
    """Harmonic mean of precision and recall."""
    calibration_error: float
    """Mean difference of probability and frequency over `BINS` bins of equal width, weighted by their hints."""
    resubstituted_f1: float | None
    """F1 of the final weights on the hints that they were fitted on."""


class MentionWeights(FrozenModel):
    """Fitted weights with their report."""

    name: str
    """Version, such as `default` or `mentions/v2`."""
    weights: dict[str, float]
    """By name of the feature."""
    means: dict[str, float]
    """Mean of each feature over the mentions of the data; a feature decides by its difference to it."""
    scales: dict[str, float]
    """Standard deviation of each feature over the mentions of the data."""
    intercept: float
    threshold: float
    """Probability from which a hint is flagged."""
    report: dict[str, SourceQuality] = Field(default_factory=dict)
    """By data set."""

    def score(self, vector: Sequence[float]) -> float:
        """Return w·x of one mention."""
        return sum(weight * x for weight, x in zip(self.weights.values(), vector, strict=True) if x)

    def probability(self, scores: Sequence[float]) -> float:
        """Return the probability of a leak, given the scores of the hint's mentions."""
        if not scores:
            return 0.0
        top = max(scores)
        z = self.intercept + top + log(sum(exp(score - top) for score in scores))
        return 1 / (1 + exp(-z)) if z > -500 else 0.0

    def deciding(self, vector: Sequence[float], leak: bool) -> list[int]:
        """Return the positions of the two features that contribute most to the decision, the larger one first."""
        names = list(self.weights)
        shares = [
            self.weights[n] * (x - self.means[n]) * (1 if leak else -1) for n, x in zip(names, vector, strict=True)
        ]
        order = sorted(range(len(names)), key=lambda i: -shares[i])
        return [i for i in order[:2] if shares[i] > 0]


def fit(examples: Sequence[Example], l2: float = L2, prior: MentionWeights | None = None) -> MentionWeights:
    """Fit weights; the threshold is that of `prior` or ½, and the report is empty.

    Args:
        examples: Labeled hints; those without a mention have no influence.
        l2: Strength of the regularization.
        prior: Weights that are adapted to the examples: the regularization is the distance to them.

    Raises `DataError` unless there are mentions in leaks and in other hints, or in any hint with a `prior`.
    """
    used = [example for example in examples if len(example.vectors)]
    if len({example.leak for example in used}) < (1 if prior else 2):
        raise DataError(
            "Weights need hints that mention the answer, both leaks and others.",
            value=f"{sum(e.leak for e in used)} leaks and {sum(not e.leak for e in used)} others",
            fix="Label more hints.",
        )
    x = np.vstack([example.vectors for example in used])
    mean, scale, start = x.mean(axis=0), x.std(axis=0) + 1e-6, np.zeros(x.shape[1] + 1)
    penalty = np.append(np.full(x.shape[1], l2), 0.0)
    if prior is not None:
        mean, scale = np.array(list(prior.means.values())), np.array(list(prior.scales.values()))
        old = np.array(list(prior.weights.values()))
        start, penalty = np.append(old * scale, prior.intercept + old @ mean), np.full(len(start), l2)
    problem = _Problem((x - mean) / scale, used, start, penalty)
    theta = minimize(problem.loss, start)
    raw = theta[:-1] / scale
    return MentionWeights(
        name="fitted",
        weights=_by_feature(raw),
        means=_by_feature(mean),
        scales=_by_feature(scale),
        intercept=round(float(theta[-1] - raw @ mean), 6),
        threshold=0.5 if prior is None else prior.threshold,
    )


def minimize(
    loss: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the minimum of a smooth function by BFGS (Nocedal and Wright, Numerical Optimization, algorithm 6.1).

    Importing `scipy.optimize` would take a server 25 MB and .3 s.

    Args:
        loss: Returns the value at a point and its gradient, shape (n,).
        x: Start, shape (n,).
    """
    (value, gradient), inverse = loss(x), np.eye(len(x))
    for _ in range(1000):
        if np.abs(gradient).max() <= 1e-7 * (1 + abs(value)):
            break
        step = -inverse @ gradient
        while (found := loss(x + step))[0] > value + 1e-4 * (gradient @ step) and np.abs(step).max() > 1e-12:
            step = step / 2
        if found[0] >= value:  # the precision of floats is reached
            break
        change = found[1] - gradient
        x, value, gradient = x + step, *found
        if (curvature := float(change @ step)) > 0:
            left = np.eye(len(x)) - np.outer(step, change) / curvature
            inverse = left @ inverse @ left.T + np.outer(step, step) / curvature
    return x


def _by_feature(values: NDArray[np.float64]) -> dict[str, float]:
    return {feature.name: round(float(value), 6) for feature, value in zip(FEATURES, values, strict=True)}


class _Problem:
    """The regularized cross-entropy of weights of standardized features `z`, mentions × features."""

    def __init__(
        self, z: NDArray[np.float64], examples: Sequence[Example], start: NDArray[np.float64], l2: NDArray[np.float64]
    ) -> None:
        sizes = [len(example.vectors) for example in examples]
        self.z, self.start, self.l2 = z, start, l2
        self.first, self.hint = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
        self.leak = np.array([float(example.leak) for example in examples])
        self.weight = np.array([example.weight for example in examples])

    def loss(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the loss and its gradient; the last element of `theta` is the intercept."""
        scores = self.z @ theta[:-1]
        top = np.maximum.reduceat(scores, self.first)
        parts = np.exp(scores - top[self.hint])
        total = np.add.reduceat(parts, self.first)
        logit = theta[-1] + top + np.log(total)
        move = theta - self.start
        value = (self.weight * (np.logaddexp(0, logit) - self.leak * logit)).sum() + (self.l2 * move**2).sum()
        error = self.weight * (0.5 * (1 + np.tanh(logit / 2)) - self.leak)
        gradient = np.append(self.z.T @ (error[self.hint] * parts / total[self.hint]), error.sum())
        return float(value), gradient + 2 * self.l2 * move


def probabilities(weights: MentionWeights, examples: Sequence[Example]) -> NDArray[np.float64]:
    """Return the probability of each example."""
    return np.array([weights.probability([weights.score(x) for x in example.vectors]) for example in examples])


def cross_validated(examples: Sequence[Example], prior: MentionWeights | None = None) -> NDArray[np.float64]:
    """Return the probability of each example by weights that were fitted without its fold.

    Without a mention in the other folds, these weights are `prior`. The fold of a group is a hash of it, so that it
    does not depend on the order of the examples.
    """
    fold = np.array([int.from_bytes(hashlib.sha256(str(e.group).encode()).digest()[:4]) % FOLDS for e in examples])
    result = np.zeros(len(examples))
    for k in np.unique(fold):
        held_out = np.flatnonzero(fold == k)
        rest = [e for e, f in zip(examples, fold, strict=True) if f != k]
        weights = prior if prior and not any(len(e.vectors) for e in rest) else fit(rest, prior=prior)
        result[held_out] = probabilities(weights, [examples[int(i)] for i in held_out])
    return result


def fitted(
    examples: Sequence[Example],
    held_out: NDArray[np.float64],
    name: str,
    sources: Sequence[str],
    prior: MentionWeights | None = None,
) -> MentionWeights:
    """Fit weights, choose the threshold and report the quality by source, both cross-validated.

    Args:
        examples: Labeled hints of all sources.
        held_out: Their probabilities, `cross_validated` with the same `prior`.
        name: Version of the weights.
        sources: Names of the sources on which the threshold must reach `MIN_PRECISION`.
        prior: Weights that are adapted; their threshold stays if the examples do not determine another one.
    """
    weights = fit(examples, prior=prior)
    leaks = np.array([example.leak for example in examples])
    source = np.array([example.source for example in examples])
    counted = np.isin(source, sources)
    default = 0.5 if prior is None else prior.threshold
    threshold = choose_threshold(held_out[counted], leaks[counted], default)
    again = probabilities(weights, examples)
    origins = [(example.source, *example.also) for example in examples]
    report = {}
    for origin in dict.fromkeys(itertools.chain(*origins)):
        at = np.array([origin in known for known in origins])
        report[origin] = quality(held_out[at], leaks[at], threshold, again[at])
    return weights.model_copy(update={"name": name, "threshold": threshold, "report": report})


def choose_threshold(p: NDArray[np.float64], leaks: NDArray[np.bool_], default: float = 0.5) -> float:
    """Return the threshold with the largest F1 among those whose precision is at least `MIN_PRECISION`.

    Of equal thresholds, the one nearest to `default` is taken; without any, or with fewer than `MIN_LEAKS` leaks, it is
    `default`.
    """
    if leaks.sum() < MIN_LEAKS:
        return default
    flagged = p[None, :] >= THRESHOLDS[:, None]
    hits, flags = (flagged & leaks).sum(axis=1), flagged.sum(axis=1)
    allowed = np.flatnonzero((hits > 0) & (hits >= MIN_PRECISION * flags))
    scores = 2 * hits / (flags + leaks.sum())
    best = min(allowed, key=lambda i: (-scores[i], abs(THRESHOLDS[i] - default)), default=None)
    return default if best is None else round(float(THRESHOLDS[best]), 2)


def quality(
    p: NDArray[np.float64], leaks: NDArray[np.bool_], threshold: float, resubstituted: NDArray[np.float64] | None = None
) -> SourceQuality:
    """Score probabilities at a threshold."""
    flagged = p >= threshold
    hits = int((flagged & leaks).sum())
    return SourceQuality(
        hints=len(p),
        leaks=int(leaks.sum()),
        precision=wilson(hits, int(flagged.sum())),
        recall=wilson(hits, int(leaks.sum())),
        f1=f1(flagged, leaks),
        calibration_error=calibration_error(p, leaks),
        resubstituted_f1=None if resubstituted is None else f1(resubstituted >= threshold, leaks),
    )


def f1(flagged: NDArray[np.bool_], leaks: NDArray[np.bool_]) -> float | None:
    """Return the harmonic mean of precision and recall; None without a flag and a leak."""
    total = int(flagged.sum() + leaks.sum())
    return 2 * int((flagged & leaks).sum()) / total if total else None


def calibration_error(p: NDArray[np.float64], leaks: NDArray[np.bool_]) -> float:
    """Return the expected calibration error (Naeini et al., AAAI 2015, equation 3) with `BINS` bins of equal width."""
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    return float(sum(abs(p[bins == b].sum() - leaks[bins == b].sum()) for b in range(BINS)) / max(1, len(p)))


def read_weights(path: Path | str | None = None) -> MentionWeights:
    """Read weights, by default those of the package. Raises `DataError` if the file is missing or of other features."""
    file = Path(path) if path is not None else MENTION_WEIGHTS
    return _read(file, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(16)
def _read(file: Path, _modified: int) -> MentionWeights:
    fix = "Fit them again: rl2f leaks fit"
    try:
        weights = MentionWeights.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise DataError(
            "The weights of detector `mentions` cannot be read.", value=f"{file}: {error}", fix=fix
        ) from None
    names = [feature.name for feature in FEATURES]
    if list(weights.weights) != names or list(weights.means) != names:
        raise DataError("The weights are of other features.", value=str(file), known=names, fix=fix)
    return weights
