"""How exactly a teacher may say the number of wrong people without giving the answer of a puzzle away.

An exact count can be the answer in disguise: "all of them are wrong" leaves one assignment.  So can silence, where it
is kept in just that case.  So counts are put into groups before the true one is looked at, in such a way that each
group leaves at least two untried assignments open, unless fewer were open before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

Count = tuple[int, int]
"""The number of wrong people is at least the first and at most the second."""


def groups_of(sizes: Mapping[int, int]) -> list[Count]:
    """The finest ranges of neighbouring counts that leave at least two assignments each, from the lowest up.

    Args:
        sizes: How many open assignments each count of wrong people leaves.
    """
    groups: list[Count] = []
    low, held = None, 0
    for count in sorted(sizes):
        low, held = count if low is None else low, held + sizes[count]
        if held >= 2:
            groups.append((low, count))
            low, held = None, 0
    if low is not None:
        last = max(sizes)
        groups = [*groups[:-1], (groups[-1][0], last)] if groups else [(low, last)]
    return groups


def told_counts(people: int, solution: int, attempts: Sequence[int]) -> list[tuple[Count | None, list[Count]]]:
    """What is told after each attempt, and the groups it was chosen from.

    An assignment is open while it is untried and agrees with every count told so far; what the statements of the
    puzzle rule out is not considered.  None is told where there is one group only (it would say nothing) or where the
    attempt is right.

    Args:
        people: Number of people, n.
        solution: The right assignment, as n bits.
        attempts: The assignments tried, oldest first.
    """
    still_open = set(range(2**people))
    history: list[tuple[Count | None, list[Count]]] = []
    for attempt in attempts:
        still_open.discard(attempt)
        groups = groups_of(Counter((a ^ attempt).bit_count() for a in still_open))
        wrong = (solution ^ attempt).bit_count()
        told = next((g for g in groups if g[0] <= wrong <= g[1]), None) if len(groups) > 1 and wrong else None
        if told is not None:
            still_open = {a for a in still_open if told[0] <= (a ^ attempt).bit_count() <= told[1]}
        history.append((told, groups))
    return history


def false_count(people: int, solution: int, attempt: int, rng: random.Random) -> Count | None:
    """An exact count other than the true one, or None for one person alone."""
    others = [count for count in range(1, people + 1) if count != (solution ^ attempt).bit_count()]
    return (count := rng.choice(others), count) if others else None
