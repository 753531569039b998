"""Estimates of arms with intervals, as pure functions of outcomes.

Sample j of every arm has the same seed, so differences are paired by (fork point, sample). With one fork point, its
samples are the independent units. With several, tasks are, because fork points of one task are dependent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl2f_core.errors import DataError
from rl2f_core.stats.intervals import Interval, ratio_bootstrap, wilson, wilson_clustered
from rl2f_core.types import FrozenModel

BOOTSTRAP_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one sample of one arm at one fork point."""

    origin: tuple[str, int]
    """Event id of the dialogue, and turn."""
    task: str
    arm: str
    sample: int
    solved: bool
    """Within the allowed turns after the fork."""
    score: float | None = None
    """Score of the next attempt in [0, 1]; None without one."""
    retained_parts: int = 0
    """Correct parts of the attempt before the hint that the next attempt retains."""
    parts: int = 0
    """Correct parts of the attempt before the hint."""


class ArmResult(FrozenModel):
    """Result of one arm under one checkpoint."""

    checkpoint: str
    arm: str
    hints: int
    """Number of fork points."""
    solved: Interval
    """Fraction of solved samples."""
    difference: Interval | None = None
    """Paired difference to the baseline arm; None for the baseline, or without it."""
    score: Interval
    """Mean score of the next attempt, which includes partial credit."""
    score_difference: Interval | None = None
    retained_parts: Interval
    """Fraction of correct parts that the next attempt retains."""


def paired_share_difference(pairs: Sequence[tuple[bool, bool]]) -> Interval:
    """Return p(a) − p(b) of paired binary outcomes with Newcombe's hybrid score interval.

    Unlike a bootstrap interval, it has a width if a few samples all agree. Source: Newcombe 1998, Statistics in
    Medicine 17, 2635–2650, method 10. Without pairs, all values are None.
    """
    n = len(pairs)
    if n == 0:
        return Interval(value=None, n=0)
    both = sum(a and b for a, b in pairs)
    only_a, only_b = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    neither = n - both - only_a - only_b
    one, two = wilson(both + only_a, n), wilson(both + only_b, n)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    crossed = float(both * neither - only_a * only_b)
    if crossed > 0:
        crossed = max(crossed - n / 2, 0.0)
    phi = crossed / math.sqrt(margins) if margins else 0.0
    low_a, high_a = _margins(one)
    low_b, high_b = _margins(two)
    down = math.sqrt(max(0.0, low_a**2 - 2 * phi * low_a * high_b + high_b**2))
    up = math.sqrt(max(0.0, high_a**2 - 2 * phi * high_a * low_b + low_b**2))
    value = (only_a - only_b) / n
    return Interval(value=value, low=max(-1.0, value - down), high=min(1.0, value + up), n=n)


def _margins(share: Interval) -> tuple[float, float]:
    """Return the distances from a fraction to the ends of its interval."""
    if share.value is None or share.low is None or share.high is None:
        raise DataError("An interval without observations has no ends.")
    return share.value - share.low, share.high - share.value


def arm_results(
    outcomes: Iterable[Outcome], checkpoint: str, arms: Sequence[str], baseline: str, seed: int = 0
) -> list[ArmResult]:
    """Return one row per arm with outcomes.

    Args:
        outcomes: Outcomes of one checkpoint.
        checkpoint: Its name.
        arms: Labels in the order of the table.
        baseline: Arm that differences are relative to.
        seed: Bootstrap seed.
    """
    by_arm: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_arm[outcome.arm].append(outcome)
    several = len({o.origin for group in by_arm.values() for o in group}) > 1
    rows = []
    for arm in arms:
        group = by_arm.get(arm, [])
        if not group:
            continue
        pairs = [] if arm == baseline else _pairs(group, by_arm.get(baseline, []))
        rows.append(
            ArmResult(
                checkpoint=checkpoint,
                arm=arm,
                hints=len({o.origin for o in group}),
                solved=_solve_rate(group, several),
                difference=_difference(pairs, several, seed) if pairs else None,
                score=_mean([(_unit(o, several), o.score) for o in group], seed),
                score_difference=_mean(
                    [(_unit(a, several), a.score - b.score) for a, b in pairs
                     if a.score is not None and b.score is not None], seed) if pairs else None,
                retained_parts=_retained(group, several, seed),
            )
        )  # fmt: skip
    return rows


def hint_value(outcomes: Iterable[Outcome], true: str, baseline: str) -> dict[tuple[str, int], Interval]:
    """Return p(solved | hint) − p(solved | baseline) of each fork point that has both arms."""
    by_origin: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_origin[outcome.origin].append(outcome)
    values = {}
    for origin, group in by_origin.items():
        pairs = _pairs([o for o in group if o.arm == true], [o for o in group if o.arm == baseline])
        if pairs:
            values[origin] = paired_share_difference([(a.solved, b.solved) for a, b in pairs])
    return values


def _pairs(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Return the outcomes of both arms with the same fork point and seed."""
    known = {(o.origin, o.sample): o for o in b}
    return [(o, known[o.origin, o.sample]) for o in a if (o.origin, o.sample) in known]


def _unit(outcome: Outcome, several: bool) -> object:
    return outcome.task if several else outcome.sample


def _solve_rate(group: Sequence[Outcome], several: bool) -> Interval:
    if not several:
        return wilson(sum(o.solved for o in group), len(group))
    solved, counts = _sums((o.task, float(o.solved)) for o in group)
    return wilson_clustered(solved, counts)


def _difference(pairs: Sequence[tuple[Outcome, Outcome]], several: bool, seed: int) -> Interval:
    if not several:
        return paired_share_difference([(a.solved, b.solved) for a, b in pairs])
    sums, counts = _sums((a.task, float(a.solved) - float(b.solved)) for a, b in pairs)
    return ratio_bootstrap(sums, counts, BOOTSTRAP_SAMPLES, seed)


def _mean(values: Iterable[tuple[object, float | None]], seed: int) -> Interval:
    sums, counts = _sums((unit, value) for unit, value in values if value is not None)
    return ratio_bootstrap(sums, counts, BOOTSTRAP_SAMPLES, seed)


def _retained(group: Sequence[Outcome], several: bool, seed: int) -> Interval:
    kept, _ = _sums((_unit(o, several), float(o.retained_parts)) for o in group)
    parts, _ = _sums((_unit(o, several), float(o.parts)) for o in group)
    return ratio_bootstrap(kept, parts, BOOTSTRAP_SAMPLES, seed)


def _sums(values: Iterable[tuple[object, float]]) -> tuple[list[float], list[float]]:
    """Return the sum and number of values of each unit."""
    sums: dict[object, float] = defaultdict(float)
    counts: dict[object, float] = defaultdict(float)
    for unit, value in values:
        sums[unit] += value
        counts[unit] += 1
    return list(sums.values()), list(counts.values())
