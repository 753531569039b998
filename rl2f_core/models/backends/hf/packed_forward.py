"""One forward over tokens of many sequences, packed without padding.

All layers but attention see one long sequence. Attention writes the new keys and values into the `KVCache`, and each
token attends to its own slot. Sequences with a similar number of tokens form one attention batch, so at most half of
it is padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl2f_core.errors import ModelError
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.modeling.attention import MASK_VALUE, CausalLM, prefers_matmul_attention

PACKED = "rl2f_packed"
MAX_SLOTS_PER_USED_SLOT = 3
"""A view of a slot range replaces a copy of the used slots up to this ratio."""


@dataclass
class AttentionBatch:
    """J slots whose attention is computed together, with Q queries each over S positions."""

    slots: slice | torch.Tensor
    source: torch.Tensor
    """Token of each query, [J · Q]; any token for padding."""
    query: torch.Tensor
    """Indices of the queries that are not padding, [T]."""
    token: torch.Tensor
    """Token of each of these, [T]."""
    position: torch.Tensor
    """Position of each query, [J, Q]."""
    length: int
    """Number of positions S."""
    _masks: dict[tuple[int | None, int, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, shared: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask of blocked positions, [J, 1, shared · Q or 1, S], computed once for all layers.

        Blocked are positions after the query and before its window: True for `torch.bool`, otherwise −∞.

        Args:
            window: Sliding window in tokens; None is unlimited.
            shared: Query heads per key head, which are folded into the queries.
            dtype: Data type of the mask.
        """
        key = window, shared, dtype
        if key not in self._masks:
            index_S = torch.arange(self.length, device=self.position.device)
            position = self.position[:, None, :, None]
            blocked = index_S > position
            if window is not None:
                blocked = blocked | (index_S <= position - window)
            if self.position.shape[1] > 1:
                blocked = blocked.repeat(1, 1, shared, 1)
            if dtype != torch.bool:
                blocked = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device).masked_fill_(
                    blocked, -torch.inf
                )
            self._masks[key] = blocked
        return self._masks[key]


@dataclass
class PackedBatch:
    """Slot, position and attention batch of N tokens."""

    kv: KVCache
    slot_N: torch.Tensor
    position_N: torch.Tensor
    batches: list[AttentionBatch]
    last: torch.Tensor
    """Index of the last token of each block."""


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: PackedBatch | None = None,
    sliding_window: int | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention of [1, heads, N, D] queries within their slots; returns [1, N, heads, D].

    Query heads that share a key head are folded into the queries, so keys and values are not repeated.
    """
    assert packed is not None
    keys, values = packed.kv.update(
        module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1), packed.slot_N, packed.position_N
    )
    heads, count, width = query.shape[1:]
    shared, scale = heads // key.shape[1], scaling or width**-0.5
    query_NHD = query[0].transpose(0, 1)
    out_NHD = query.new_empty(count, heads, value.shape[-1])
    for batch in packed.batches:
        slots, queries = batch.position.shape
        q = query_NHD[batch.source].reshape(slots, queries, key.shape[1], shared, width)
        q = q.permute(0, 2, 3, 1, 4).reshape(slots, key.shape[1], shared * queries, width)
        k, v = (x[:, :, : batch.length][batch.slots] for x in (keys, values))
        out = _attend(q, k, v, batch, sliding_window, shared, scale)
        out = out.reshape(slots, key.shape[1], shared, queries, -1).permute(0, 3, 1, 2, 4)
        out_NHD[batch.token] = out.reshape(slots * queries, heads, -1)[batch.query]
    return out_NHD[None], None


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: AttentionBatch,
    window: int | None,
    shared: int,
    scale: float,
) -> torch.Tensor:
    """Compute softmax(q kᵀ · scale) v by the faster of two kernels."""
    if prefers_matmul_attention(q.device, q.dtype):
        blocked = batch.mask(window, shared, torch.bool)
        scores = torch.matmul(q, k.transpose(2, 3)).mul_(scale).masked_fill_(blocked, MASK_VALUE)
        return torch.matmul(scores.softmax(-1), v)
    mask = batch.mask(window, shared, q.dtype)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def pack_tokens(kv: KVCache, blocks: Sequence[tuple[int, int]]) -> PackedBatch:
    """Pack the next tokens of (slot, number of tokens) blocks, in slot order."""
    slots, counts = np.array(blocks).T
    starts = np.concatenate([[0], counts.cumsum()[:-1]])
    slot_N = slots.repeat(counts)
    position_N = np.arange(counts.sum()) - starts.repeat(counts) + kv.num_computed[slots].repeat(counts)
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, count in enumerate(counts):
        by_size[int(count - 1).bit_length()].append(i)
    batches = [_attention_batch(kv, slots[i], counts[i], starts[i]) for i in map(np.array, by_size.values())]
    to = kv.device
    return PackedBatch(kv, _tensor(slot_N, to), _tensor(position_N, to), batches, _tensor(starts + counts - 1, to))


def _attention_batch(kv: KVCache, slots_J: np.ndarray, counts_J: np.ndarray, starts_J: np.ndarray) -> AttentionBatch:
    """Build an attention batch. A dense slot range is a view, which includes idle slots."""
    computed_J = kv.num_computed[slots_J]
    low, high, width = int(slots_J.min()), int(slots_J.max()) + 1, int(counts_J.max())
    dense = MAX_SLOTS_PER_USED_SLOT * len(slots_J) >= high - low
    row_J = slots_J - low if dense else np.arange(len(slots_J))
    num_rows = high - low if dense else len(slots_J)
    step_T = np.arange(counts_J.sum()) - (counts_J.cumsum() - counts_J).repeat(counts_J)
    query_T = row_J.repeat(counts_J) * width + step_T
    token_T = starts_J.repeat(counts_J) + step_T
    source, position = np.zeros(num_rows * width, dtype=np.int64), np.zeros(num_rows * width, dtype=np.int64)
    source[query_T], position[query_T] = token_T, computed_J.repeat(counts_J) + step_T
    to = kv.device
    return AttentionBatch(
        slots=slice(low, high) if dense else _tensor(slots_J, to),
        source=_tensor(source, to),
        query=_tensor(query_T, to),
        token=_tensor(token_T, to),
        position=_tensor(position.reshape(num_rows, width), to),
        length=int((computed_J + counts_J).max()),
    )


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)


def forward_tokens(
    model: CausalLM, kv: KVCache, blocks: Sequence[tuple[int, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the next tokens of (slot, number of tokens) blocks, in slot order, and update `kv.num_computed`.

    Returns the hidden states of all tokens, [N, H], and the index of the last token of each block.
    Raises `ModelError` if the model does not support custom attention.
    """
    from transformers import AttentionInterface

    decoder, config = model.get_decoder(), model.get_decoder().config
    if not getattr(decoder, "_supports_attention_backend", False):
        raise ModelError(
            "The model's code does not support custom attention, which the hf backend needs.",
            value=type(decoder).__name__,
            fix="Use a model like Llama, Qwen or Mistral.",
        )
    AttentionInterface.register(PACKED, packed_attention)
    packed = pack_tokens(kv, blocks)
    done = kv.num_computed
    ids = np.concatenate([kv.tokens[slot, done[slot] : done[slot] + count] for slot, count in blocks])
    before, config._attn_implementation = config._attn_implementation, PACKED
    try:
        hidden_1NH = decoder(
            input_ids=_tensor(ids, kv.device)[None],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=kv.device),  # required, but unused
            position_ids=packed.position_N[None],
            use_cache=False,
            packed=packed,
        ).last_hidden_state
    finally:
        config._attn_implementation = before
    for slot, count in blocks:
        kv.num_computed[slot] += count
    return hidden_1NH[0], packed.last
