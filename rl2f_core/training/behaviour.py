"""What a row's tokens were worth to the policy before the update: recomputed behaviour, and the mask of the unlikely.

RLTF-SD (arXiv 2602.02482) trains the second answer under the first question, where it was not sampled. There the
behaviour is the current policy's own log π(y_1 | x_0), so that ρ starts at 1, and a token that is all but impossible
there drops out. Both are options of a row, and the mask goes with every weighting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl2f_core.training.batch import weighted_positions
from rl2f_core.types import Sample


def unsettled(sample: Sample) -> bool:
    """Whether the row has to be read by the policy before the update."""
    return any(sample.rl) and (sample.weighting == "awr" or sample.floor is not None)


def settled(sample: Sample, logps: Sequence[float]) -> Sample:
    """The row with its behaviour (`awr`) and without the tokens below its `floor`.

    Args:
        sample: A row.
        logps: log π of each weighted token under this very row, in nats, in order, before the update.
    """
    behaviour, rl = list(sample.logprobs), list(sample.rl)
    for position, logp in zip(weighted_positions(sample), logps, strict=True):
        if sample.weighting == "awr" and rl[position]:
            behaviour[position] = logp
        if sample.floor is not None and logp < sample.floor:
            rl[position] = 0.0
    return dataclasses.replace(sample, logprobs=behaviour, rl=rl)
