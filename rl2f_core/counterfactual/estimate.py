"""What the arms of forks came to, with intervals: pure functions of outcomes.

Sample j of every arm has the same seed, so differences are paired by (turn, sample).  Where all outcomes belong to one
turn its samples are the units of chance; where they belong to many, tasks are, as several turns of a task are not
independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl2f_core.errors import DataError
from rl2f_core.evaluation.statistics import Interval, ratio_bootstrap, wilson, wilson_clustered
from rl2f_core.types import Value

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sample of one arm after one turn."""

    origin: tuple[str, int]
    """Event id of the dialogue, and turn."""
    task: str
    arm: str
    sample: int
    solved: bool
    """Within the turns allowed after the fork."""
    score: float | None = None
    """Of the next attempt, 0…1; None where none was made."""
    kept: int = 0
    """How many right parts of the attempt before the hint stand unchanged in the next one."""
    parts: int = 0
    """How many right parts there were."""


class ArmResult(Value):
    """What one arm came to under one checkpoint."""

    checkpoint: str
    arm: str
    hints: int
    """Turns that were taken up again."""
    solved: Interval
    """Share of the samples that were solved."""
    difference: Interval | None = None
    """Of that share to the baseline's, paired; None for the baseline itself, or where it was not played."""
    score: Interval
    """Mean score of the next attempt: partial credit shows more than solving alone."""
    score_difference: Interval | None = None
    kept: Interval
    """Share of the right parts that the next attempt keeps."""


def paired_share_difference(pairs: Sequence[tuple[bool, bool]]) -> Interval:
    """p(a) − p(b) of paired yes-or-no outcomes with Newcombe's hybrid score interval.

    Unlike a bootstrap it has a width where all of a few samples agree. Source: Newcombe 1998, Statistics in Medicine
    17, 2635–2650, method 10. No pair: all None.
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
    low_a, high_a = _ends(one)
    low_b, high_b = _ends(two)
    down = math.sqrt(max(0.0, low_a**2 - 2 * phi * low_a * high_b + high_b**2))
    up = math.sqrt(max(0.0, high_a**2 - 2 * phi * high_a * low_b + low_b**2))
    value = (only_a - only_b) / n
    return Interval(value=value, low=max(-1.0, value - down), high=min(1.0, value + up), n=n)


def _ends(share: Interval) -> tuple[float, float]:
    """Distance from a share to the lower and to the upper end of its interval."""
    if share.value is None or share.low is None or share.high is None:
        raise DataError("A share of nothing has no ends.")
    return share.value - share.low, share.high - share.value


def arm_results(
    outcomes: Iterable[Outcome], checkpoint: str, arms: Sequence[str], baseline: str, seed: int = 0
) -> list[ArmResult]:
    """One row for each arm that was played.

    Args:
        outcomes: Of one checkpoint.
        checkpoint: Its name.
        arms: Names in the order of the table.
        baseline: The arm that differences are taken to.
        seed: Of the bootstrap.
    """
    by_arm: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_arm[outcome.arm].append(outcome)
    several = len({o.origin for held in by_arm.values() for o in held}) > 1
    rows = []
    for arm in arms:
        held = by_arm.get(arm, [])
        if not held:
            continue
        pairs = [] if arm == baseline else _pairs(held, by_arm.get(baseline, []))
        rows.append(
            ArmResult(
                checkpoint=checkpoint,
                arm=arm,
                hints=len({o.origin for o in held}),
                solved=_share(held, several),
                difference=_difference(pairs, several, seed) if pairs else None,
                score=_mean([(_unit(o, several), o.score) for o in held], seed),
                score_difference=_mean(
                    [(_unit(a, several), a.score - b.score) for a, b in pairs
                     if a.score is not None and b.score is not None], seed) if pairs else None,
                kept=_kept(held, several, seed),
            )
        )  # fmt: skip
    return rows


def worth(outcomes: Iterable[Outcome], true: str, baseline: str) -> dict[tuple[str, int], Interval]:
    """p(solve | the hint) − p(solve | baseline) of each turn, by its samples; turns without both arms are left out."""
    by_origin: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_origin[outcome.origin].append(outcome)
    found = {}
    for origin, held in by_origin.items():
        pairs = _pairs([o for o in held if o.arm == true], [o for o in held if o.arm == baseline])
        if pairs:
            found[origin] = paired_share_difference([(a.solved, b.solved) for a, b in pairs])
    return found


def _pairs(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Samples of both arms with the same turn and seed."""
    known = {(o.origin, o.sample): o for o in b}
    return [(o, known[o.origin, o.sample]) for o in a if (o.origin, o.sample) in known]


def _unit(outcome: Outcome, several: bool) -> object:
    return outcome.task if several else outcome.sample


def _share(held: Sequence[Outcome], several: bool) -> Interval:
    if not several:
        return wilson(sum(o.solved for o in held), len(held))
    solved, counts = _sums((o.task, float(o.solved)) for o in held)
    return wilson_clustered(solved, counts)


def _difference(pairs: Sequence[tuple[Outcome, Outcome]], several: bool, seed: int) -> Interval:
    if not several:
        return paired_share_difference([(a.solved, b.solved) for a, b in pairs])
    sums, counts = _sums((a.task, float(a.solved) - float(b.solved)) for a, b in pairs)
    return ratio_bootstrap(sums, counts, RESAMPLES, seed)


def _mean(values: Iterable[tuple[object, float | None]], seed: int) -> Interval:
    sums, counts = _sums((unit, value) for unit, value in values if value is not None)
    return ratio_bootstrap(sums, counts, RESAMPLES, seed)


def _kept(held: Sequence[Outcome], several: bool, seed: int) -> Interval:
    kept, _ = _sums((_unit(o, several), float(o.kept)) for o in held)
    parts, _ = _sums((_unit(o, several), float(o.parts)) for o in held)
    return ratio_bootstrap(kept, parts, RESAMPLES, seed)


def _sums(values: Iterable[tuple[object, float]]) -> tuple[list[float], list[float]]:
    """Sum and number of the values of each unit."""
    sums: dict[object, float] = defaultdict(float)
    counts: dict[object, float] = defaultdict(float)
    for unit, value in values:
        sums[unit] += value
        counts[unit] += 1
    return list(sums.values()), list(counts.values())
