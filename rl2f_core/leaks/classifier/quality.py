"""Threshold and report of a classifier on held-out examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rl2f_core.leaks.benchmark.score import Counts
from rl2f_core.leaks.classifier.examples import Example
from rl2f_core.stats.intervals import Interval, auc, wilson
from rl2f_core.types import FrozenModel

MIN_LEAKS = 20
"""A source with fewer leaks does not determine the threshold alone."""
BINS = 10
"""Bins of the reliability diagram."""
Probabilities = NDArray[np.float64]


class Quality(FrozenModel):
    """Quality on some examples at the threshold."""

    counts: Counts
    precision: Interval
    recall: Interval
    area: Interval
    """Area under the ROC curve, with tasks as clusters."""


class ReliabilityBin(FrozenModel):
    """Examples with a probability in one tenth of [0, 1]."""

    low: float
    n: int
    probability: float | None
    """Mean predicted probability; None without examples."""
    fraction: float | None
    """Fraction of leaks; None without examples."""


class QualityReport(FrozenModel):
    """Quality of a classifier on held-out examples."""

    threshold: float
    overall: Quality
    by_source: dict[str, Quality]
    by_environment: dict[str, Quality]
    by_kind: dict[str, Quality]
    """By disguise, and `not: KIND` for near-misses."""
    by_register: dict[str, Quality]
    """Only examples with a register."""
    cross_fitted: dict[str, Quality]
    """By source, with the threshold of each half of the tasks chosen on the other half, which removes the optimism of a
    threshold that is chosen and scored on the same examples."""
    reliability: tuple[ReliabilityBin, ...]
    calibration_error: float | None
    """Expected calibration error: mean |probability − fraction| over the bins, weighted by their sizes."""


def choose_threshold(examples: Sequence[Example], leak: Probabilities, precision: float) -> float:
    """Return the lowest threshold whose precision on all examples, and on every source, is at least `precision`.

    A source with fewer than `MIN_LEAKS` leaks counts only with all others, because its precision is too uncertain. A
    hint is flagged if its probability is at least the threshold. If no probability reaches the precision, the threshold
    is above all of them, so nothing is flagged.
    """
    leaks = Counter(example.source for example in examples if example.leak)
    sources = [source for source, count in leaks.items() if count >= MIN_LEAKS]
    groups = [[e.source == source or not leaks[e.source] for e in examples] for source in sources]
    return max(_lowest(examples, leak, group, precision) for group in ([True] * len(examples), *groups))


def _lowest(examples: Sequence[Example], leak: Probabilities, group: Sequence[bool], precision: float) -> float:
    """Return the lowest probability at which the flagged hints of a group have the precision."""
    inside = np.array(group)
    values, truth = leak[inside], np.array([example.leak for example in examples])[inside]
    best = float(np.nextafter(values.max(), 2.0))
    for value in np.unique(values)[::-1]:
        if truth[values >= value].mean() >= precision:
            best = float(value)
    return best


def make_report(examples: Sequence[Example], leak: Probabilities, threshold: float, precision: float) -> QualityReport:
    """Score probabilities of a leak, `[N]`, on examples."""

    def by(key: Callable[[Example], str]) -> dict[str, Quality]:
        names = sorted({key(example) for example in examples} - {""})
        return {name: _quality([i for i, e in enumerate(examples) if key(e) == name]) for name in names}

    flagged = leak >= threshold
    cross = _cross_fitted_flags(examples, leak, precision)

    def _quality(indices: Sequence[int], flags: NDArray[np.bool_] = flagged) -> Quality:
        return quality([examples[i] for i in indices], leak[list(indices)], flags[list(indices)])

    everything = range(len(examples))
    bins = _reliability(examples, leak)
    errors = [
        abs(b.probability - b.fraction) * b.n for b in bins if b.probability is not None and b.fraction is not None
    ]
    return QualityReport(
        threshold=threshold,
        overall=_quality(everything),
        by_source=by(lambda e: e.source),
        by_environment=by(lambda e: e.environment.name),
        by_kind=by(lambda e: "" if not e.kind else e.kind if e.leak else f"not: {e.kind}"),
        by_register=by(lambda e: e.register),
        cross_fitted={
            source: _quality([i for i in everything if examples[i].source == source], cross)
            for source in sorted({example.source for example in examples})
        },
        reliability=tuple(bins),
        calibration_error=sum(errors) / len(examples) if examples else None,
    )


def quality(examples: Sequence[Example], leak: Probabilities, flagged: NDArray[np.bool_]) -> Quality:
    """Score flags and probabilities on examples."""
    truth = np.array([example.leak for example in examples], dtype=bool)
    tp, fp = int((truth & flagged).sum()), int((~truth & flagged).sum())
    fn, tn = int((truth & ~flagged).sum()), int((~truth & ~flagged).sum())
    return Quality(
        counts=Counts(tp=tp, fn=fn, fp=fp, tn=tn),
        precision=wilson(tp, tp + fp),
        recall=wilson(tp, tp + fn),
        area=auc(leak.tolist(), truth.tolist(), [example.group for example in examples]),
    )


def _cross_fitted_flags(examples: Sequence[Example], leak: Probabilities, precision: float) -> NDArray[np.bool_]:
    """Flag each half of the tasks with the threshold of the other half."""
    groups = {group: i % 2 for i, group in enumerate(dict.fromkeys(example.group for example in examples))}
    half = np.array([groups[example.group] for example in examples])
    flags = np.zeros(len(examples), dtype=bool)
    for side in (0, 1):
        others = np.flatnonzero(half != side).tolist()
        if len(others):
            threshold = choose_threshold([examples[i] for i in others], leak[others], precision)
            flags[half == side] = leak[half == side] >= threshold
    return flags


def _reliability(examples: Sequence[Example], leak: Probabilities) -> list[ReliabilityBin]:
    truth = np.array([example.leak for example in examples], dtype=float)
    index = np.minimum((leak * BINS).astype(int), BINS - 1)
    bins = []
    for k in range(BINS):
        inside = index == k
        n = int(inside.sum())
        means = (float(leak[inside].mean()), float(truth[inside].mean())) if n else (None, None)
        bins.append(ReliabilityBin(low=k / BINS, n=n, probability=means[0], fraction=means[1]))
    return bins
