"""Outcomes of groups of dialogues on the same task."""

from __future__ import annotations

from collections.abc import Sequence


def group_outcomes(mixed: Sequence[bool], solved: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return the fractions of mixed, all-correct and all-incorrect groups of one step.

    Empty groups do not count; without any group the result is empty. `frac_reward_zero_std` (TRL) is the fraction of
    groups with equal returns.

    Args:
        mixed: Whether returns that are compared differ, for each group.
        solved: Which dialogues of each group are solved.
    """
    groups = [(is_mixed, correct) for is_mixed, correct in zip(mixed, solved, strict=True) if correct]
    if not groups:
        return {}
    equal = [correct for is_mixed, correct in groups if not is_mixed]
    n = len(groups)
    return {
        "groups/frac_mixed": 1 - len(equal) / n,
        "groups/frac_all_correct": sum(all(correct) for correct in equal) / n,
        "groups/frac_all_incorrect": sum(not any(correct) for correct in equal) / n,
        "frac_reward_zero_std": len(equal) / n,
    }
