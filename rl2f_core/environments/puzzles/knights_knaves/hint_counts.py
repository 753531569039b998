"""Precision of the error count in a hint, such that the count does not reveal the answer.

An exact count can imply the answer: "all of them are wrong" leaves one assignment.  So can a missing count.  Counts are
therefore grouped independently of the true one, such that each group leaves at least two untried assignments open,
unless fewer were open before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

Count = tuple[int, int]
"""The number of wrong people is at least the first and at most the second."""


def groups_of(sizes: Mapping[int, int]) -> list[Count]:
    """Return the finest ranges of neighboring counts that leave at least two assignments each, in ascending order.

    Args:
        sizes: How many open assignments each count of wrong people leaves.
    """
    groups: list[Count] = []
    low, total = None, 0
    for count in sorted(sizes):
        low, total = count if low is None else low, total + sizes[count]
        if total >= 2:
            groups.append((low, count))
            low, total = None, 0
    if low is not None:
        last = max(sizes)
        groups = [*groups[:-1], (groups[-1][0], last)] if groups else [(low, last)]
    return groups


def hint_counts(people: int, solution: int, attempts: Sequence[int]) -> list[tuple[Count | None, list[Count]]]:
    """Return the count range stated after each attempt, and the groups it was selected from.

    An assignment is open while it is untried and agrees with every stated count; the puzzle's statements are ignored.
    The range is None if there is only one group or the attempt is correct.

    Args:
        people: Number of people, n.
        solution: The correct assignment, as n bits.
        attempts: The attempted assignments, oldest first.
    """
    still_open = set(range(2**people))
    history: list[tuple[Count | None, list[Count]]] = []
    for attempt in attempts:
        still_open.discard(attempt)
        groups = groups_of(Counter((a ^ attempt).bit_count() for a in still_open))
        wrong = (solution ^ attempt).bit_count()
        stated = next((g for g in groups if g[0] <= wrong <= g[1]), None) if len(groups) > 1 and wrong else None
        if stated is not None:
            still_open = {a for a in still_open if stated[0] <= (a ^ attempt).bit_count() <= stated[1]}
        history.append((stated, groups))
    return history


def false_count(people: int, solution: int, attempt: int, rng: random.Random) -> Count | None:
    """Draw an exact count other than the true one; None with one person."""
    others = [count for count in range(1, people + 1) if count != (solution ^ attempt).bit_count()]
    return (count := rng.choice(others), count) if others else None
