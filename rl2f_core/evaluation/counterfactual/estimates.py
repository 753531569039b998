"""Estimates of arms with intervals, as pure functions of outcomes.

Sample j of every arm has the same seed, so differences are paired by (fork point, sample). With one fork point, its
samples are the independent units. With several, tasks are, because fork points of one task are dependent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl2f_core.common.stats.intervals import Interval, correct_items
from rl2f_core.dialogue.metrics.dialogues import Tally, sum_by_task
from rl2f_core.types import FrozenModel


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


def arm_results(outcomes: Iterable[Outcome], checkpoint: str, arms: Sequence[str], baseline: str) -> list[ArmResult]:
    """Return one row per arm with outcomes.

    Args:
        outcomes: Outcomes of one checkpoint.
        checkpoint: Its name.
        arms: Labels in the order of the table.
        baseline: Arm that differences are relative to.
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
                solved=_fraction((_unit(o, several), float(o.solved), 1.0) for o in group),
                difference=_difference(
                    (_unit(a, several), float(a.solved) - float(b.solved)) for a, b in pairs
                ) if pairs else None,
                score=_fraction((_unit(o, several), o.score, 1.0) for o in group if o.score is not None),
                score_difference=_difference(
                    (_unit(a, several), a.score - b.score) for a, b in pairs
                    if a.score is not None and b.score is not None
                ) if pairs else None,
                retained_parts=_fraction((_unit(o, several), float(o.retained_parts), float(o.parts)) for o in group),
            )
        )  # fmt: skip
    for name in ("difference", "score_difference"):  # all arms are one family for each
        rows = correct_items(rows, name, [name] * len(rows))
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
            values[origin] = _difference((str(a.sample), float(a.solved) - float(b.solved)) for a, b in pairs)
    return values


def _pairs(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Return the outcomes of both arms with the same fork point and seed."""
    known = {(o.origin, o.sample): o for o in b}
    return [(o, known[o.origin, o.sample]) for o in a if (o.origin, o.sample) in known]


def _unit(outcome: Outcome, several: bool) -> str:
    return outcome.task if several else str(outcome.sample)


def _fraction(observations: Iterable[tuple[str, float, float]]) -> Interval:
    """Return the interval of Σ sums / Σ counts in [0, 1] of units, sums and counts."""
    return Tally("fraction", sum_by_task(observations)).interval()


def _difference(differences: Iterable[tuple[str, float]]) -> Interval:
    """Return the mean of paired differences of units."""
    return Tally("difference", sum_by_task((unit, value, 1.0) for unit, value in differences)).interval()
