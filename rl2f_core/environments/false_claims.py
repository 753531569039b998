"""Agreement of attempts with false claims about numbers; see `MisleadingHints.claim_agreement`."""

from __future__ import annotations

from fractions import Fraction


def side_agreement(
    hint: str, before: Fraction | int | None, attempt: Fraction | int | None, gold: Fraction | int
) -> float | None:
    """Return 1 if `attempt` is on the claimed side of `before` (`Too low …`, `Too high …`), otherwise 0.

    None if the hint names no side, if the claim is true, or without a number in `before`.
    """
    side = 1 if hint.startswith("Too low") else -1 if hint.startswith("Too high") else 0
    if not side or before is None or (gold - before) * side > 0:
        return None
    return float(attempt is not None and (attempt - before) * side > 0)
