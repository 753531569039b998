"""Rows for a learner on the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.types import TrainingSample

CPU = torch.device("cpu")


def row(start: int, length: int = 30, *, behaviour: float = -5.9, kl: float = 0.0) -> TrainingSample:
    """A row with an opening of ten tokens that all rows share, trained on from there.

    Args:
        start: The first token after the opening; the advantage follows from it.
        length: Of the row.
        behaviour: Log-probability of each token after the opening.
        kl: Weight of the same.
    """
    tokens = [*range(40, 50), *range(start, start + length - 10)]
    weight = [0.0] * 10 + [1.0] * (length - 10)
    return TrainingSample(
        tokens, [w > 0 for w in weight], [behaviour * w for w in weight], [(1 + start % 3) * w for w in weight], weight,
        [0.0] * length, [kl * w for w in weight],
    )  # fmt: skip


def learner(
    kind: type[Learner], tiny: Path, seed: int = 0, dtype: torch.dtype = torch.float32, *, full: bool = False
) -> Learner:
    lora = LoraConfig(full_finetuning=True) if full else LoraConfig(rank=4, alpha=8)
    return kind(tiny, lora, dtype=dtype, device=CPU, banned=[0, 1, 9], pad=2, seed=seed)


def stage(**changes: Any) -> StageConfig:
    values = {"name": "s", "method": "rl2f", "steps": 10, "learning_rate": 0.001, "max_grad_norm": 0.05}
    return StageConfig.model_validate({**values, **changes})


def played(opening: int, turns: list[tuple[int, int, float, float]], name: str, kl: bool = False) -> TrainingSample:
    """A dialogue: `opening` tokens, then for each turn (context, said, advantage, log-probability) so many tokens.

    Token 9 stands in every context and may not be sampled.
    """
    ids, rl, advantages, logprobs = [9, *range(20, 19 + opening)], [0.0] * opening, [0.0] * opening, [0.0] * opening
    for context, said, advantage, logprob in turns:
        ids += [9] * context + [(37 * len(ids) + opening) % 300 + 30 + i for i in range(said)]
        rl += [0.0] * context + [1.0] * said
        advantages += [0.0] * context + [advantage] * said
        logprobs += [0.0] * context + [logprob] * said
    sampled = [bool(w) for w in rl]
    zeros = [0.0] * len(ids)
    return TrainingSample(ids, sampled, logprobs, advantages, rl, zeros, rl if kl else zeros, dialogue=name)


def rows(kl: bool = False) -> list[TrainingSample]:
    """Log-probabilities are about −5.94 at first, so the ratios are about 1, 1.75 and 0.58: clipped above and below."""
    return [
        played(6, [(0, 5, 0.5, -5.9), (4, 3, -0.25, -6.5)], "a", kl),
        played(6, [(0, 2, -0.5, -5.4), (4, 6, 0.75, -5.9), (3, 2, 1.5, -6.5)], "b", kl),
        played(4, [(0, 9, 0.0, -5.9)], "c", kl),
        played(9, [(0, 1, -1.0, -5.4)], "d", kl),
    ]
