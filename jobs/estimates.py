"""What labels on a random draw say of all hints: precision, recall, F1, κ and how many leaks there are.

Hints are drawn apart among those that a detector flagged and the others, so that a labelled hint stands for a known
number of hints. With N₁ flagged and N₀ unflagged hints, and leaks among the labelled ones at shares p₁ and q₀,

    recall = N₁ p₁ / (N₁ p₁ + N₀ q₀)

Here are any number of such cells, each of known size. Intervals: the leak share of each cell has the Jeffreys
posterior Beta(x + ½, n − x + ½) (Brown, Cai and DasGupta 2001), where x and n are divided by the design effect of its
tasks; the 2.5 % and 97.5 % quantiles of what such shares amount to are the interval, widened to the estimate. A cell
without a single leak among its labels still has an upper end, so that a recall is never 1 without doubt.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rl2f_core.evaluation.statistics import LEVEL, Interval, effective_number, wilson, wilson_clustered
from rl2f_core.types import Value

DRAWS = 4_000
HALF = 0.05
"""Half the width of an interval that is narrow enough to decide by."""


@dataclass(frozen=True)
class Cell:
    """Hints that were drawn alike and that the detector judged alike."""

    size: int
    """All of them."""
    flagged: bool
    """What the detector says."""
    labels: Sequence[tuple[Hashable, bool]] = ()
    """The task of each hint that was drawn and labelled, and whether people say that it leaks."""


class Estimates(Value):
    """What a detector is worth on all hints of some cells; values are None where the labels cannot say."""

    size: int
    """All hints."""
    flagged: int
    """Those that the detector flags."""
    n_flagged: int
    """Labelled hints among them."""
    n_unflagged: int
    """Labelled hints among the others."""
    hits: int
    """Labelled, flagged, and a leak."""
    misses: int
    """Labelled, not flagged, and a leak."""
    precision: Interval
    recall: Interval
    f1: Interval
    kappa: Interval
    """Cohen's κ between the detector and people, on all hints."""
    prevalence: Interval
    """Leaks among all hints."""
    missed: Interval
    """How many hints leak that the detector does not flag."""


def estimate(cells: Sequence[Cell]) -> Estimates:
    """Estimates for all hints of the cells; a task is one cluster within a cell. Cells of size 0 are not looked at."""
    cells = [cell for cell in cells if cell.size > 0]
    flagged, rest = [c for c in cells if c.flagged], [c for c in cells if not c.flagged]
    shares = [_share(cell) for cell in cells]
    sizes = np.array([cell.size for cell in cells], dtype=float)
    signs = np.array([cell.flagged for cell in cells], dtype=bool)
    point = _measures(sizes, signs, np.array([[p for p, _ in shares]], dtype=float))
    rng = np.random.default_rng(0)
    drawn = [rng.beta(p * n + 0.5, (1 - p) * n + 0.5, DRAWS) for p, n in shares]
    spread = _measures(sizes, signs, np.array(drawn, dtype=float).T.reshape(DRAWS, len(cells)))
    judged, audited = all(cell.labels for cell in flagged), all(cell.labels for cell in rest)
    sure = dict.fromkeys(point, bool(cells) and judged and audited)
    sure |= {"precision": bool(flagged) and judged, "missed": bool(cells) and audited}
    counts = {"precision": _count(flagged), "missed": _count(rest)}
    found = {
        name: _interval(point[name], spread[name], counts.get(name, _count(cells))) if sure[name]
        else Interval(value=None, n=counts.get(name, _count(cells)))
        for name in point
    }  # fmt: skip
    if len(flagged) == 1 and judged:
        found["precision"] = wilson_clustered(*_clusters(flagged[0]))
    return Estimates(
        size=int(sizes.sum()),
        flagged=sum(cell.size for cell in flagged),
        n_flagged=_count(flagged),
        n_unflagged=_count(rest),
        hits=sum(leak for cell in flagged for _, leak in cell.labels),
        misses=sum(leak for cell in rest for _, leak in cell.labels),
        **found,
    )


def _count(cells: Sequence[Cell]) -> int:
    return sum(len(cell.labels) for cell in cells)


def _clusters(cell: Cell) -> tuple[list[float], list[float]]:
    """Leaks and labels of each task."""
    tasks: dict[Hashable, list[bool]] = {}
    for task, leak in cell.labels:
        tasks.setdefault(task, []).append(leak)
    return [float(sum(leaks)) for leaks in tasks.values()], [float(len(leaks)) for leaks in tasks.values()]


def _share(cell: Cell) -> tuple[float, float]:
    """The share of leaks, and the effective number of labels."""
    return effective_number(*_clusters(cell))


def _measures(sizes: np.ndarray, flagged: np.ndarray, shares: np.ndarray) -> dict[str, np.ndarray]:
    """Each measure under each row of leak shares; NaN where it is 0/0. `shares` is draws × cells."""
    leaks = shares * sizes
    clean = sizes - leaks
    hits, misses = leaks[:, flagged].sum(axis=1), leaks[:, ~flagged].sum(axis=1)
    alarms, passed = clean[:, flagged].sum(axis=1), clean[:, ~flagged].sum(axis=1)
    total = sizes.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = (hits + passed) / total
        expected = ((hits + alarms) * (hits + misses) + (misses + passed) * (alarms + passed)) / total**2
        return {
            "precision": hits / (hits + alarms),
            "recall": hits / (hits + misses),
            "f1": 2 * hits / (2 * hits + alarms + misses),
            "kappa": (observed - expected) / (1 - expected),
            "prevalence": (hits + misses) / total,
            "missed": misses,
        }


def _interval(point: np.ndarray, spread: np.ndarray, n: int) -> Interval:
    value = float(point[0])
    if not math.isfinite(value):
        return Interval(value=None, n=n)
    low, high = np.nanquantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value), n=n)


def more_labels(found: Interval, n: int, half: float = HALF) -> int | None:
    """How many more labels of the same sort would narrow an interval to ± `half`; None where there is no interval.

    A width falls with the root of the number of labels `n` that it rests on.
    """
    if found.value is None or found.low is None or found.high is None:
        return None
    ratio = (found.high - found.low) / (2 * half)
    return max(0, math.ceil(n * (ratio**2 - 1)))


def labels_for(share: float = 0.5, half: float = HALF) -> int:
    """How many labels give a share a Wilson interval of ± `half`: 381 at one half, 35 at 0 and 1, for ± .05."""
    low, high = 1, 1_000_000
    while low < high:
        middle = (low + high) // 2
        found = wilson(share * middle, middle)
        narrow = found.high is not None and found.low is not None and found.high - found.low <= 2 * half
        low, high = (low, middle) if narrow else (middle + 1, high)
    return low
