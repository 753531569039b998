"""One pass of a model over tokens of many rows at once, laid end to end: no padding, and every row at its own length.

All that is not attention sees one long row of tokens.  Attention writes the new keys and values into `KVRows` and lets
each token look at its own row alone: rows that read one token are taken together, rows that read more are taken
together with those of about their number, so that at most half of what is computed there is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl2f_core.backends._rows import KVRows
from rl2f_core.backends._torch import NEVER, two_products
from rl2f_core.errors import ModelError

PACKED = "rl2f_packed"
DENSE = 3
"""A view of all rows is taken instead of a copy of some where at least one in so many is wanted."""


@dataclass
class Group:
    """Rows whose attention is computed together: J rows with Q queries each, over S slots."""

    rows: slice | torch.Tensor
    source: torch.Tensor
    """The token of every query, [J · Q]; where there is none, any."""
    query: torch.Tensor
    """Which of the queries are wanted, [T] …"""
    token: torch.Tensor
    """… and the token of each, [T]."""
    position: torch.Tensor
    """Of every query, [J, Q]."""
    slots: int
    _masks: dict[Any, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, shared: int, dtype: torch.dtype) -> torch.Tensor:
        """Where a query may not look, [J, 1, shared · Q or 1, S]: what comes after it, and what lies before its window.

        Made once for all layers: true there for `torch.bool`, else −∞ there and 0 elsewhere.

        Args:
            window: Tokens that a query looks back at; None is all.
            shared: Query heads of one key head, which are folded into the queries.
            dtype: Of the mask.
        """
        key = window, shared, dtype
        if key not in self._masks:
            slot_S = torch.arange(self.slots, device=self.position.device)
            position = self.position[:, None, :, None]
            blocked = slot_S > position
            if window is not None:
                blocked = blocked | (slot_S <= position - window)
            if self.position.shape[1] > 1:
                blocked = blocked.repeat(1, 1, shared, 1)
            if dtype != torch.bool:
                blocked = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device).masked_fill_(
                    blocked, -torch.inf
                )
            self._masks[key] = blocked
        return self._masks[key]


@dataclass
class Packed:
    """Where each of N tokens belongs."""

    kv: KVRows
    row_N: torch.Tensor
    slot_N: torch.Tensor
    groups: list[Group]
    last: torch.Tensor
    """The last token of every block, in the blocks' order."""


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: Packed | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [1, heads, N, D] queries, each within its own row; result [1, N, heads, D].

    Query heads that share a key head are folded into the queries, so that keys and values are never repeated.
    """
    assert packed is not None
    keys, values = packed.kv.write(
        module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1), packed.row_N, packed.slot_N
    )
    heads, count, width = query.shape[1:]
    shared, scale = heads // key.shape[1], scaling or width**-0.5
    query_NHD = query[0].transpose(0, 1)
    out_NHD = query.new_empty(count, heads, value.shape[-1])
    for group in packed.groups:
        rows, queries = group.position.shape
        q = query_NHD[group.source].reshape(rows, queries, key.shape[1], shared, width)
        q = q.permute(0, 2, 3, 1, 4).reshape(rows, key.shape[1], shared * queries, width)
        k, v = (x[:, :, : group.slots][group.rows] for x in (keys, values))
        out = _attend(q, k, v, group, sliding_window, shared, scale)
        out = out.reshape(rows, key.shape[1], shared, queries, -1).permute(0, 3, 1, 2, 4)
        out_NHD[group.token] = out.reshape(rows * queries, heads, -1)[group.query]
    return out_NHD[None], None


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group, window: int | None, shared: int, scale: float
) -> torch.Tensor:
    """softmax(q kᵀ · scale) v; in float32 on a CPU as two products, which is quicker there than the fused kernel."""
    if two_products(q.device, q.dtype):
        blocked = group.mask(window, shared, torch.bool)
        scores = torch.matmul(q, k.transpose(2, 3)).mul_(scale).masked_fill_(blocked, NEVER)
        return torch.matmul(scores.softmax(-1), v)
    mask = group.mask(window, shared, q.dtype)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def pack(kv: KVRows, blocks: Sequence[tuple[int, int]]) -> Packed:
    """The layout of blocks (row, number of tokens), rows ascending: the next unread tokens of each."""
    rows = np.array([row for row, _ in blocks])
    counts = np.array([count for _, count in blocks])
    starts = np.concatenate([[0], counts.cumsum()[:-1]])
    row_N = rows.repeat(counts)
    slot_N = np.arange(counts.sum()) - starts.repeat(counts) + kv.read[rows].repeat(counts)
    kinds: dict[int, list[int]] = {}
    for i, count in enumerate(counts):
        kinds.setdefault(int(count - 1).bit_length(), []).append(i)
    groups = [_group(kv, rows[i], counts[i], starts[i]) for i in map(np.array, kinds.values())]
    to = kv.device
    return Packed(kv, _tensor(row_N, to), _tensor(slot_N, to), groups, _tensor(starts + counts - 1, to))


def _group(kv: KVRows, rows_J: np.ndarray, counts_J: np.ndarray, starts_J: np.ndarray) -> Group:
    """Rows that are dense among their neighbours are seen through a view, which holds idle ones as well."""
    read_J = kv.read[rows_J]
    low, high, width = int(rows_J.min()), int(rows_J.max()) + 1, int(counts_J.max())
    dense = DENSE * len(rows_J) >= high - low
    place_J = rows_J - low if dense else np.arange(len(rows_J))
    held = high - low if dense else len(rows_J)
    step_T = np.arange(counts_J.sum()) - (counts_J.cumsum() - counts_J).repeat(counts_J)
    query_T = place_J.repeat(counts_J) * width + step_T
    token_T = starts_J.repeat(counts_J) + step_T
    source, position = np.zeros(held * width, dtype=np.int64), np.zeros(held * width, dtype=np.int64)
    source[query_T], position[query_T] = token_T, read_J.repeat(counts_J) + step_T
    to = kv.device
    return Group(
        rows=slice(low, high) if dense else _tensor(rows_J, to),
        source=_tensor(source, to),
        query=_tensor(query_T, to),
        token=_tensor(token_T, to),
        position=_tensor(position.reshape(held, width), to),
        slots=int((read_J + counts_J).max()),
    )


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)


def read_blocks(model: Any, kv: KVRows, blocks: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Read the next tokens of some rows, (row, number of tokens) by ascending row; the last hidden states, [blocks, H].

    Afterwards `kv.read` counts them. Raises `ModelError` where the model's attention cannot be chosen.
    """
    from transformers import AttentionInterface

    decoder, config = model.get_decoder(), model.get_decoder().config
    if not getattr(decoder, "_supports_attention_backend", False):
        raise ModelError("The model's code does not let its attention be chosen, so it cannot generate here.",
                         value=type(decoder).__name__, fix="Take a model like Llama, Qwen or Mistral.")  # fmt: skip
    AttentionInterface.register(PACKED, packed_attention)
    packed = pack(kv, blocks)
    ids = np.concatenate([kv.tokens[row, kv.read[row] : kv.read[row] + count] for row, count in blocks])
    before, config._attn_implementation = config._attn_implementation, PACKED
    try:
        hidden_1NH = decoder(
            input_ids=_tensor(ids, kv.device)[None],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=kv.device),  # taken as it is, and not used
            position_ids=packed.slot_N[None],
            use_cache=False,
            packed=packed,
        ).last_hidden_state
    finally:
        config._attn_implementation = before
    for row, count in blocks:
        kv.read[row] += count
    return hidden_1NH[0, packed.last]
