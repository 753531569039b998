"""Inverse transform sampling: one token per row from logits and a uniform number."""

from __future__ import annotations

import torch

from rl2f_core.models.modeling.attention import MASK_VALUE

CDF_BLOCK_SIZE = 256
"""Vocabulary entries per block of the two-level cumulative sum in `sample_tokens`."""


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
    """Sample one token per row by inverse transform; return it and its logprob under the full distribution, both [B].

    The result of a row depends only on its logits and its uniform number. The cumulative distribution is computed over
    blocks of the vocabulary, then within the selected block, both in float64.
    """
    p_BV = full_BV = logits_BV.softmax(1)
    if top_p < 1:
        sorted_BV, order_BV = p_BV.sort(dim=1, descending=True, stable=True)
        nucleus_BV = sorted_BV.cumsum(1) - sorted_BV < top_p
        p_BV = torch.zeros_like(p_BV).scatter(1, order_BV, sorted_BV * nucleus_BV)
    rows, size = p_BV.shape
    padded_BV = torch.nn.functional.pad(p_BV, (0, -size % CDF_BLOCK_SIZE)) if size % CDF_BLOCK_SIZE else p_BV
    p_BNK = padded_BV.view(rows, -1, CDF_BLOCK_SIZE)
    mass_BN = p_BNK.sum(2).double()
    cdf_BN = mass_BN.cumsum(1)
    target_B1 = uniform_B.to(cdf_BN.dtype).unsqueeze(1) * cdf_BN[:, -1:]
    block_B1 = _first_above(cdf_BN, target_B1)
    mass_B1 = mass_BN.gather(1, block_B1)
    fraction_B1 = (target_B1 - cdf_BN.gather(1, block_B1) + mass_B1) / mass_B1
    inner_BK = p_BNK[torch.arange(rows, device=p_BNK.device), block_B1.squeeze(1)].double().cumsum(1)
    offset_B1 = _first_above(inner_BK, fraction_B1 * inner_BK[:, -1:])
    token_B = (block_B1 * CDF_BLOCK_SIZE + offset_B1).squeeze(1)
    return token_B, full_BV.gather(1, token_B[:, None]).squeeze(1).log()


def _first_above(cdf_BN: torch.Tensor, target_B1: torch.Tensor) -> torch.Tensor:
    """Return the first entry, with mass, whose cumulative sum exceeds the target."""
    return torch.minimum(
        torch.searchsorted(cdf_BN, target_B1, right=True), torch.searchsorted(cdf_BN, cdf_BN[:, -1:].contiguous())
    )
