"""Attention of sampler and learner, and the models that support it."""

from __future__ import annotations

from typing import Any

import torch

CausalLM = Any
"""A causal language model of transformers, whose classes are barely typed."""
ATTENTION = "rl2f_grouped"
MASK_VALUE = -1e30
"""Score of masked entries: their probability is exactly 0, and 0 times the score is 0."""


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention as two matrix products, with grouped query heads folded into the query length.

    Equals torch's `scaled_dot_product_attention` with repeated keys and values, without the copies. On CPUs without
    AVX-512, torch's fused kernel is several times slower.
    Shapes: query [B, Hq, Q, D], key and value [B, Hkv, S, D], mask [B, 1, Q, S] (true: attend); result [B, Q, Hq, D].
    """
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    if attention_mask is None and length > 1:
        causal = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = causal.tril(key.shape[2] - length)[None, None]
    blocked = None if attention_mask is None else attention_mask.logical_not()
    if blocked is not None and length > 1:
        blocked = blocked.repeat(1, 1, groups, 1)
    return attend_grouped(query, key, value, blocked, scaling or query.shape[3] ** -0.5), None


def attend_grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocked: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Compute `grouped_attention` as [B, Q, Hq, D]; `blocked`, [B or 1, 1, groups·Q or 1, S], has no attention."""
    rows, heads, length, width = query.shape
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1] * length, width)
    scores = torch.matmul(grouped, key.transpose(2, 3)).mul_(scale)
    if blocked is not None:
        scores = scores.masked_fill_(blocked, MASK_VALUE)
    out = torch.matmul(scores.softmax(-1), value)
    return out.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous()


def prefers_matmul_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether two matrix products are faster than torch's fused attention kernel."""
    return device.type == "cpu" and dtype == torch.float32


def is_full_attention(config: Any) -> bool:
    """Whether every layer attends to all earlier tokens."""
    types = getattr(config, "layer_types", None) or []
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return all(t == "full_attention" for t in types) and not windowed and not softcap
