"""Gumbel-max sampling: one token per row from logits and a uniform number."""

from __future__ import annotations

import torch

from rl2f_core.models.modeling.attention import MASK_VALUE

BLOCK_SIZE = 256
"""Vocabulary entries per block in `sample_tokens`, which samples a block, then a token of it."""
_SPLITMIX_STEP = 0x9E3779B97F4A7C15 - 2**64
_SPLITMIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))
"""Shift and multiplier of each round."""


def sample_rows(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, temperature_B: torch.Tensor, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row at its own temperature, 0 for the most likely one; return it and its logprob, both [B].

    All shapes are those of the arguments, and the host waits for nothing.
    """
    greedy_B = temperature_B == 0
    logits_BV = logits_BV / temperature_B.masked_fill(greedy_B, 1)[:, None]
    logits_BV.index_fill_(1, banned, MASK_VALUE)
    token_B, logp_B = sample_tokens(logits_BV, uniform_B)
    return torch.where(greedy_B, logits_BV.argmax(1), token_B), logp_B.masked_fill(greedy_B, 0)


def sample_tokens(
    logits_BV: torch.Tensor, uniform_B: torch.Tensor, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by Gumbel-max; return it and its logprob under the full distribution, both [B].

    The result of a row depends only on its logits and its uniform number, the seed of its noise. A difference in the
    last digit of the logits changes the token only if two tokens are that close; with the inverse of the cumulative
    distribution, it moves the limits of all tokens. First a block of the vocabulary is sampled by the probability of
    the block, then a token of the block, so that a row needs noise for blocks and for one block (Gumbel, "Statistical
    Theory of Extreme Values", 1954; Maddison et al. 2014, A* Sampling, section 2).
    """
    p_BV = full_BV = logits_BV.softmax(1)
    if top_p < 1:
        sorted_BV, order_BV = p_BV.sort(dim=1, descending=True, stable=True)
        nucleus_BV = sorted_BV.cumsum(1) - sorted_BV < top_p
        p_BV = torch.zeros_like(p_BV).scatter(1, order_BV, sorted_BV * nucleus_BV)
    rows, size = p_BV.shape
    padded_BV = torch.nn.functional.pad(p_BV, (0, -size % BLOCK_SIZE)) if size % BLOCK_SIZE else p_BV
    p_BNK = padded_BV.view(rows, -1, BLOCK_SIZE)
    blocks = p_BNK.shape[1]
    noise_BM = gumbel_noise(uniform_B, blocks + BLOCK_SIZE)
    block_B = (p_BNK.sum(2).double().log() + noise_BM[:, :blocks]).argmax(1)
    p_BK = p_BNK[torch.arange(rows, device=p_BNK.device), block_B]
    token_B = block_B * BLOCK_SIZE + (p_BK.double().log() + noise_BM[:, blocks:]).argmax(1)
    return token_B, full_BV.gather(1, token_B[:, None]).squeeze(1).log()


def gumbel_noise(uniform_B: torch.Tensor, count: int) -> torch.Tensor:
    """Return independent numbers of the standard Gumbel distribution, [B, count] in float64.

    A row has the numbers of the generator SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number
    Generators") with the first 53 bits of its uniform number as seed.
    """
    seed_B1 = (uniform_B.double() * 2**53).to(torch.int64)[:, None]
    state_BM = seed_B1 + torch.arange(1, count + 1, device=uniform_B.device) * _SPLITMIX_STEP
    for shift, multiplier in _SPLITMIX_ROUNDS:
        state_BM = (state_BM ^ (state_BM >> shift & (1 << 64 - shift) - 1)) * multiplier
    uniform_BM = ((state_BM >> 11 & (1 << 53) - 1).double() + 0.5) / 2**53
    return -(-uniform_BM.log()).log()
