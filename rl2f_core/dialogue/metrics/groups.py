"""Outcomes of groups of dialogues on the same task."""

from __future__ import annotations

from collections.abc import Sequence

EQUAL_RETURNS = 1e-9
"""Maximum difference between returns that count as equal."""


def group_outcomes(returns: Sequence[Sequence[float]], solved: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return the fractions of mixed, all-correct and all-incorrect groups of one step.

    Empty groups do not count; without any group the result is empty. A group with equal returns has no gradient.

    `frac_reward_zero_std` (TRL) is the fraction of groups with equal returns.
    """
    groups = [(group, correct) for group, correct in zip(returns, solved, strict=True) if group]
    if not groups:
        return {}
    equal = [correct for group, correct in groups if max(group) - min(group) <= EQUAL_RETURNS]
    n = len(groups)
    return {
        "groups/frac_mixed": 1 - len(equal) / n,
        "groups/frac_all_correct": sum(all(correct) for correct in equal) / n,
        "groups/frac_all_incorrect": sum(not any(correct) for correct in equal) / n,
        "frac_reward_zero_std": len(equal) / n,
    }
