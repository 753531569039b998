"""Rows for a learner on the tiny model."""

from __future__ import annotations

from rl2f_core.types import Sample


def row(start: int, length: int = 30, *, behaviour: float = -5.9, kl: float = 0.0) -> Sample:
    """A row with an opening of ten tokens that all rows share, trained on from there.

    Args:
        start: The first token after the opening; the advantage follows from it.
        length: Of the row.
        behaviour: Log-probability of each token after the opening.
        kl: Weight of the same.
    """
    tokens = [*range(40, 50), *range(start, start + length - 10)]
    weight = [0.0] * 10 + [1.0] * (length - 10)
    return Sample(
        tokens, [w > 0 for w in weight], [behaviour * w for w in weight], [(1 + start % 3) * w for w in weight], weight,
        [0.0] * length, [kl * w for w in weight],
    )  # fmt: skip
