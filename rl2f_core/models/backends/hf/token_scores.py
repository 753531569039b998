"""Logprobs of prompt and sampled tokens under the model itself, with the most likely alternatives.

A score is log p at temperature 1 over the whole vocabulary, as `Backend.score`. `Generation.logprobs` in contrast are
those of the sampler, at its temperature and over the allowed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rl2f_core.models.backends.base import SamplingParams


@dataclass(frozen=True, slots=True)
class ScoredSampling(SamplingParams):
    """Sampling parameters of a sequence whose tokens are scored."""

    top_logprobs: int = 0
    """Number of most likely tokens that each score names."""
    score_prompt: bool = False
    """Score the prompt tokens too. The prompt is then computed as a whole, without cached prefixes."""


class TokenScore(NamedTuple):
    """Score of one token, in nats."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """The most likely tokens at this position with their logprobs, best first."""


def score_tokens(
    logits_NV: torch.Tensor, token_ids: Sequence[int], samplings: Sequence[SamplingParams]
) -> list[TokenScore]:
    """Score one token per row of float32 logits at temperature 1; each row has its own `top_logprobs`."""
    logp_NV = logits_NV.log_softmax(1)
    counts = [sampling.top_logprobs if isinstance(sampling, ScoredSampling) else 0 for sampling in samplings]
    target_N1 = torch.tensor(token_ids, dtype=torch.long, device=logp_NV.device)[:, None]
    logp_N = logp_NV.gather(1, target_N1).squeeze(1).tolist()
    tops = [_most_likely(logp_V, min(k, len(logp_V))) if k else () for logp_V, k in zip(logp_NV, counts, strict=True)]
    return [TokenScore(logp, top) for logp, top in zip(logp_N, tops, strict=True)]


def _most_likely(logp_V: torch.Tensor, k: int) -> tuple[tuple[int, float], ...]:
    """Return the k most likely tokens with their logprobs, of equal ones the lowest ids."""
    ids = (logp_V >= logp_V.topk(k).values[-1]).nonzero().squeeze(1)
    values, order = logp_V[ids].sort(dim=0, descending=True, stable=True)
    return tuple(zip(ids[order[:k]].tolist(), values[:k].tolist(), strict=True))
