"""Rows that begin alike are read once: the G dialogues of a group share their opening.

The shared beginnings go through the model once, their keys and values are handed to every row that begins so, and
only the rest of each row is read by itself.  The same numbers as reading every row whole, gradients included.
"""

from __future__ import annotations

from typing import Any

import torch

from rl2f_core.backends._torch import ATTENTION, plain_attention, right_padded

WORTH = 0.15
"""Least share of the tokens that sharing must save."""


def shares(model: Any) -> bool:
    """Whether the model's attention takes a mask of our own and attends to all earlier tokens."""
    config = model.config
    return config._attn_implementation in (ATTENTION, "sdpa") and plain_attention(config)


def saving(sequences: list[tuple[int, ...]], prefixes: list[int]) -> float:
    """The share of all tokens that need not be read when `prefixes[i]` tokens of row i may be shared."""
    total = sum(map(len, sequences))
    distinct = {s[:p] for s, p in zip(sequences, prefixes, strict=True)}
    return (sum(prefixes) - sum(map(len, distinct))) / max(1, total)


def shared_hidden(
    model: Any, input_BT: torch.Tensor, valid_BT: torch.Tensor, prefixes: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states of what follows each row's prefix, [B, R, H], and each row's prefix length, [B].

    Position t of row b stands at [b, t − prefixes[b]]. Every prefix is shorter than its row.
    """
    from transformers.cache_utils import DynamicCache

    decoder, device, pad = model.get_decoder(), input_BT.device, 0
    lengths = valid_BT.sum(1).tolist()
    rows = [tuple(ids[:n]) for ids, n in zip(input_BT.tolist(), lengths, strict=True)]
    beginnings = [row[:p] for row, p in zip(rows, prefixes, strict=True)]
    distinct = list(dict.fromkeys(beginnings))
    where = {beginning: i for i, beginning in enumerate(distinct)}
    prefix_UP, valid_UP = right_padded(distinct, pad, device)
    past = DynamicCache()
    read_UP = valid_UP.clone()
    read_UP[:, 0] = True  # an empty beginning still needs one token to look at, or fused kernels give NaN
    decoder(input_ids=prefix_UP, attention_mask=read_UP.long(), past_key_values=past, use_cache=True)
    index_B = torch.tensor([where[beginning] for beginning in beginnings], device=device)
    cache = DynamicCache()
    layers: list[Any] = list(past.layers)
    for number, layer in enumerate(layers):
        cache.update(layer.keys.index_select(0, index_B), layer.values.index_select(0, index_B), number)
    rest_BR, valid_BR = right_padded([row[p:] for row, p in zip(rows, prefixes, strict=True)], pad, device)
    length_B = torch.tensor(prefixes, device=device)
    steps = torch.arange(rest_BR.shape[1], device=device)
    causal_BRR = (steps[None, :] <= steps[:, None])[None] & valid_BR[:, None, :]
    seen_BRP = valid_UP[index_B][:, None, :].expand(-1, len(steps), -1)
    hidden_BRH = decoder(
        input_ids=rest_BR,
        attention_mask=torch.cat([seen_BRP, causal_BRR], dim=2)[:, None],
        position_ids=length_B[:, None] + steps[None, :],
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return hidden_BRH, length_B
