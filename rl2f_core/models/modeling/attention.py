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
    rows, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None and length > 1:
        causal = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = causal.tril(key.shape[2] - length)[None, None]
    query = query.reshape(rows, key.shape[1], groups * length, width)
    scores = torch.matmul(query, key.transpose(2, 3)).mul_(scaling or width**-0.5)
    if attention_mask is not None:
        blocked = attention_mask.logical_not()
        scores = scores.masked_fill_(blocked.repeat(1, 1, groups, 1) if length > 1 else blocked, MASK_VALUE)
    out = torch.matmul(scores.softmax(-1), value)
    return out.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous(), None


def prefers_matmul_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether two matrix products are faster than torch's fused attention kernel."""
    return device.type == "cpu" and dtype == torch.float32


def is_full_attention(config: Any) -> bool:
    """Whether every layer attends to all earlier tokens."""
    types = getattr(config, "layer_types", None) or []
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return all(t == "full_attention" for t in types) and not windowed and not softcap
