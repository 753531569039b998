"""How the rows of an update are shared out among processes.  Pure functions: each process works out all shares alike.

The loss is a mean over the tokens of *all* rows, so each process divides its part by the weights of all of them
(`batch.norms_of` of the whole update), and the parts add up to the loss that one process alone would find.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.training.batch import by_opening, needed_length, passes
from rl2f_core.types import Sample


def shares(samples: Sequence[Sample], count: int) -> list[list[Sample]]:
    """Rows in `count` parts of nearly as many tokens each; rows without weight drop out.

    The rows are cut where they stand in the order in which they are read, so that rows of one opening mostly stay
    together. A row belongs to the part that its middle lies in: no part has more than an even share and one row. With
    fewer rows than parts, some parts are empty.
    """
    rows = by_opening(samples)
    total = sum(map(needed_length, rows))
    parts: list[list[Sample]] = [[] for _ in range(count)]
    before = 0
    for row in rows:
        length = needed_length(row)
        parts[min(count - 1, (2 * before + length) * count // (2 * total))].append(row)
        before += length
    return parts


def own_passes(
    samples: Sequence[Sample], limit: int, rank: int, count: int
) -> tuple[list[list[Sample]], list[list[Sample]]]:
    """What a process reads of an update: the rows of its passes, and the passes that it makes without weight.

    All processes make equally many, as each may have to be there where gradients, or the weights that another one
    holds, are gathered. A pass without weight reads the shortest row that there is.

    Args:
        samples: All rows of the update; the same in every process.
        limit: Tokens of a pass.
        rank: Of the process.
        count: Of processes.
    """
    planned = [passes(part, limit) for part in (shares(samples, count) if count > 1 else [samples])]
    own, most = planned[rank], max(map(len, planned))
    shortest = min((row for row in samples if row.weighted), key=needed_length, default=None)
    return own, [[shortest]] * (most - len(own)) if shortest is not None else []
