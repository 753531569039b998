"""How far labellers agree with each other, and a detector with them: pure functions of plain answers.

An *item* is anything hashable that names a hint. An answer is `leak`, `no_leak` or `unsure`. Between labellers all
three count as answers, so an unsure against a leak is a disagreement. Against the detector, which is never unsure, a
hint counts by what most of its decided answers say; where they tie, or nobody decided, it does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rl2f_core.evaluation.statistics import Interval, Z, wilson, wilson_clustered

LEAK, NO_LEAK, UNSURE = "leak", "no_leak", "unsure"
LABELS = (LEAK, NO_LEAK, UNSURE)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Agreement:
    """Two raters on the items that both answered."""

    n: int
    """Items that both answered."""
    observed: Interval
    """Share of equal answers, with its Wilson interval."""
    expected: float | None
    """Share of equal answers by chance, from how often each rater gives each answer; None for n = 0."""
    kappa: Interval
    """Cohen's κ; its value is None where chance alone would give full agreement."""
    table: dict[tuple[str, str], int]
    """How often the first gave the one answer and the second the other."""


def agreement(a: Mapping[K, str], b: Mapping[K, str]) -> Agreement:
    """Raw agreement and Cohen's κ = (p_o − p_e) / (1 − p_e) (Cohen 1960) on the items that are in both.

    The interval of κ is κ ± 1.96 · √(p_o (1 − p_o) / (n (1 − p_e)²)), cut to [−1, 1] (Cohen 1960, equation 7); none is
    given where it would have no width, for n < 2 or for full agreement.
    """
    both = [(a[item], b[item]) for item in a if item in b]
    n, table = len(both), Counter(both)
    equal = sum(first == second for first, second in both)
    observed = wilson(equal, n)
    if n == 0:
        return Agreement(0, observed, None, Interval(value=None, n=0), {})
    rows, columns = Counter(first for first, _ in both), Counter(second for _, second in both)
    expected = sum(rows[label] * columns[label] for label in rows) / n**2
    return Agreement(n, observed, expected, _kappa(equal / n, expected, n), dict(table))


def _kappa(observed: float, expected: float, n: int) -> Interval:
    if expected >= 1:
        return Interval(value=None, n=n)
    kappa = (observed - expected) / (1 - expected)
    if n < 2 or observed in (0.0, 1.0):
        return Interval(value=kappa, n=n)
    half = Z * math.sqrt(observed * (1 - observed) / n) / (1 - expected)
    return Interval(value=kappa, low=max(-1.0, kappa - half), high=min(1.0, kappa + half), n=n)


def consensus(answers: Iterable[str]) -> str | None:
    """What most of the decided answers say: `leak` or `no_leak`; None on a tie or where nobody decided."""
    counts = Counter(answers)
    if counts[LEAK] == counts[NO_LEAK]:
        return None
    return LEAK if counts[LEAK] > counts[NO_LEAK] else NO_LEAK


@dataclass(frozen=True)
class Judged:
    """One hint that a detector read and people decided on."""

    leak: bool
    """People say that it leaks."""
    flagged: bool
    """The detector says so."""
    tier: str | None = None
    """Which tier flagged it."""
    task: Hashable = None
    """Its task; several hints on one task are not independent. None counts as a task of its own."""


@dataclass(frozen=True)
class Scores:
    """A detector against people's labels."""

    n: int
    hits: int
    """Flagged, and a leak."""
    false_alarms: int
    """Flagged, and no leak."""
    misses: int
    """Not flagged, and a leak."""
    precision: Interval
    """Leaks among the flagged hints, with its Wilson interval, clustered by task."""
    recall: Interval
    """Flagged hints among the leaks. Its value is None where no unflagged hint was labelled: then nothing could be
    missed, and a recall of 1 would mean nothing."""
    f1: float | None
    """2 · hits / (2 · hits + false alarms + misses); None where recall is."""
    kappa: Interval
    """Cohen's κ between detector and labels."""


def scores(judged: Sequence[Judged]) -> Scores:
    """Precision, recall, F1 and κ of a detector on the hints that people decided on."""
    hits = sum(item.leak and item.flagged for item in judged)
    false_alarms = sum(item.flagged and not item.leak for item in judged)
    misses = sum(item.leak and not item.flagged for item in judged)
    audited = any(not item.flagged for item in judged)
    recall = _share([(item.task, item.flagged) for item in judged if item.leak and audited])
    counted = 2 * hits + false_alarms + misses
    people = {i: item.leak for i, item in enumerate(judged)}
    detector = {i: item.flagged for i, item in enumerate(judged)}
    return Scores(
        n=len(judged),
        hits=hits,
        false_alarms=false_alarms,
        misses=misses,
        precision=_share([(item.task, item.leak) for item in judged if item.flagged]),
        recall=recall,
        f1=2 * hits / counted if counted and recall.value is not None else None,
        kappa=agreement(_words(people), _words(detector)).kappa,
    )


def _words(values: Mapping[int, bool]) -> dict[int, str]:
    return {item: LEAK if leak else NO_LEAK for item, leak in values.items()}


def by_tier(judged: Sequence[Judged]) -> dict[str, Interval]:
    """Precision of each tier: leaks among the hints that it flagged."""
    tiers = sorted({item.tier for item in judged if item.flagged and item.tier})
    flagged = [item for item in judged if item.flagged]
    return {tier: _share([(item.task, item.leak) for item in flagged if item.tier == tier]) for tier in tiers}


def _share(outcomes: Sequence[tuple[Hashable, bool]]) -> Interval:
    """The share of true outcomes, with the Wilson interval that takes outcomes on one task as one cluster."""
    clusters: dict[Hashable, list[bool]] = {}
    for i, (task, outcome) in enumerate(outcomes):
        clusters.setdefault(("alone", i) if task is None else task, []).append(outcome)
    return wilson_clustered([float(sum(c)) for c in clusters.values()], [float(len(c)) for c in clusters.values()])
