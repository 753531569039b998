"""One forward over tokens of many sequences, packed without padding.

All layers but attention see one long sequence. Attention writes the new keys and values into the `KVCache`, and each
token attends to its own slot, by torch's variable-length kernel if it is usable. Otherwise sequences with a similar
number of tokens form one attention batch, so at most half of it is padding.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl2f_core.errors import ModelError
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.device import to_device
from rl2f_core.models.modeling.attention import MASK_VALUE, CausalLM, prefers_matmul_attention

PACKED = "rl2f_packed"
MAX_SLOTS_PER_USED_SLOT = 3
"""A view of a slot range replaces a copy of the used slots up to this ratio."""
MASK_LENGTH_MULTIPLE = 16
"""Positions of an attention batch on a GPU are a multiple of this; divides `POSITIONS_MULTIPLE`."""


@dataclass
class AttentionBatch:
    """J slots whose attention is computed together, with Q queries each over S positions."""

    slots: slice | torch.Tensor
    source: torch.Tensor | None
    """Token of each query, [J · Q]; any token for padding. None if query i is token i."""
    query: torch.Tensor | None
    """Indices of the queries that are not padding, [T]."""
    token: torch.Tensor | None
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
class VarlenBatch:
    """Arguments of torch's variable-length kernel for J sequences; all tensors are int32."""

    kernel: Callable[..., Any]
    cu_seq_q: torch.Tensor
    """First token of each sequence, and the number of tokens, [J + 1]."""
    cu_seq_k: torch.Tensor
    """First position of each sequence's slot in all positions, and their number, [J + 1]."""
    used_J: torch.Tensor
    """Positions of each slot that the sequence's last token attends to, itself included."""
    max_q: int
    """Maximum number of tokens of a sequence."""

    def attend(
        self, q_NHD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float
    ) -> torch.Tensor:
        """Compute causal attention within the slots, [N, heads, D]. Buffers are token-major."""
        right = -1 if window is None and self.max_q == 1 else 0  # without a window, grouped heads become one query
        out_NHD: torch.Tensor = self.kernel(
            q_NHD,
            keys.transpose(1, 2).flatten(0, 1),
            values.transpose(1, 2).flatten(0, 1),
            self.cu_seq_q,
            self.cu_seq_k,
            self.max_q,
            keys.shape[2],
            scale=scale,
            window_size=(-1 if window is None else window - 1, right),
            enable_gqa=q_NHD.shape[1] != keys.shape[1],
            seqused_k=self.used_J,
            num_splits=1,  # the number of splits would depend on the other sequences
        )
        return out_NHD


def find_varlen_kernel(device: torch.device, dtype: torch.dtype, config: Any) -> Callable[..., Any] | None:
    """Return torch's variable-length attention if it supports the decoder and lengths below the slots', else None."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "attn_logit_softcapping", None):
        return None
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16) or head_dim % 8 or head_dim > 256:
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_arguments = {"seqused_k", "num_splits", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)
    return varlen_attn if has_arguments and torch.cuda.get_device_capability(device) >= (8, 0) else None


@dataclass
class PackedBatch:
    """Slot and position of N tokens, and how they attend: `varlen` or `batches`."""

    kv: KVCache
    slot_N: torch.Tensor
    position_N: torch.Tensor
    """Position in the slot where a token's keys and values are stored."""
    batches: list[AttentionBatch]
    varlen: VarlenBatch | None = None


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: PackedBatch | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of [1, heads, N, D] queries within their slots; returns [1, N, heads, D].

    Query heads that share a key head are folded into the queries, so keys and values are not repeated. With `softcap`
    c in `kwargs`, scores s become c · tanh(s / c) (Gemma 2). Raises `ModelError` if the model has attention sinks.
    """
    assert packed is not None
    softcap = kwargs.get("softcap")
    if kwargs.get("s_aux") is not None:
        raise ModelError("The hf backend does not support models with attention sinks.", value=type(module).__name__,
                         fix="Use another model, or the vllm backend.")  # fmt: skip
    keys, values = packed.kv.update(
        module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1), packed.slot_N, packed.position_N
    )
    heads, count, width = query.shape[1:]
    scale = scaling or width**-0.5
    query_NHD = query[0].transpose(0, 1)
    if packed.varlen is not None:
        return packed.varlen.attend(query_NHD, keys, values, sliding_window, scale)[None], None
    whole = next((batch for batch in packed.batches if batch.source is None), None)
    if whole is not None:
        return _attend(query_NHD, keys, values, whole, sliding_window, scale, softcap)[None], None
    out_NHD = query.new_empty(count, heads, value.shape[-1])
    for batch in packed.batches:
        out = _attend(query_NHD[batch.source], keys, values, batch, sliding_window, scale, softcap)
        out_NHD[batch.token] = out[batch.query]
    return out_NHD[None], None


def _attend(
    query_NHD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: AttentionBatch,
    window: int | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Compute the attention of J · Q queries, [J · Q, heads, D], by the faster of two kernels."""
    slots, queries = batch.position.shape
    heads, width = query_NHD.shape[1:]
    shared = heads // keys.shape[1]
    q = query_NHD.reshape(slots, queries, keys.shape[1], shared, width)
    q = q.permute(0, 2, 3, 1, 4).reshape(slots, keys.shape[1], shared * queries, width)
    k, v = (x[:, :, : batch.length][batch.slots] for x in (keys, values))
    if softcap or prefers_matmul_attention(q.device, q.dtype):
        blocked = batch.mask(window, shared, torch.bool)
        scores = torch.matmul(q, k.transpose(2, 3)).mul_(scale)
        if softcap:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        out = torch.matmul(scores.masked_fill_(blocked, MASK_VALUE).softmax(-1, torch.float32).to(v.dtype), v)
    else:
        mask = batch.mask(window, shared, q.dtype)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    out = out.reshape(slots, keys.shape[1], shared, queries, -1).permute(0, 3, 1, 2, 4)
    return out.reshape(slots * queries, heads, -1)


def _pack_tokens(
    kv: KVCache, blocks: Sequence[tuple[int, int]], kernel: Callable[..., Any] | None
) -> tuple[torch.Tensor, PackedBatch]:
    """Pack the next tokens of (slot, number of tokens) blocks, in slot order; also return their ids, [N]."""
    slots_J, counts_J = np.array(blocks).T
    starts_J, computed_J = counts_J.cumsum() - counts_J, kv.num_computed[slots_J]
    slot_N = slots_J.repeat(counts_J)
    position_N = np.arange(counts_J.sum()) - starts_J.repeat(counts_J) + computed_J.repeat(counts_J)
    arrays = [kv.tokens[slot_N, position_N], slot_N, position_N]
    if kernel is not None:
        offsets = (np.append(x, end) for x, end in ((starts_J, len(slot_N)), (slots_J, kv.num_slots)))
        ids, slot, position, *lengths = to_device([*arrays, *offsets, computed_J + counts_J], kv.device)
        cu_seq_q, cu_seq_k, used_J = (x.int() for x in lengths)
        cu_seq_k = cu_seq_k * (kv.capacity + 1)
        varlen = VarlenBatch(kernel, cu_seq_q, cu_seq_k, used_J, int(counts_J.max()))
        return ids, PackedBatch(kv, slot, position, [], varlen)
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, count in enumerate(counts_J):
        by_size[int(count - 1).bit_length()].append(i)
    layouts = [_layout(kv, slots_J[i], counts_J[i], starts_J[i]) for i in map(np.array, by_size.values())]
    ids, slot, position, *parts = to_device([*arrays, *(x for layout in layouts for x in layout[0])], kv.device)
    batches = []
    for i, (_, slots, length) in enumerate(layouts):
        source, query, token, position_JQ, slots_K = parts[5 * i : 5 * i + 5]
        batch = AttentionBatch(slots_K if slots is None else slots, source, query, token, position_JQ, length)
        if len(layouts) == 1 and len(source) == len(slot_N):  # without padding, in slot order
            batch.source = batch.query = batch.token = None
        batches.append(batch)
    return ids, PackedBatch(kv, slot, position, batches)


def _layout(
    kv: KVCache, slots_J: np.ndarray, counts_J: np.ndarray, starts_J: np.ndarray
) -> tuple[tuple[np.ndarray, ...], slice | None, int]:
    """Compute source, query, token, position and slots of an attention batch, its slot range, and its length.

    A dense slot range is a view, which includes idle slots; None if the slots are copied.
    """
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
    arrays = (source, query_T, token_T, position.reshape(num_rows, width), slots_J)
    length = int((computed_J + counts_J).max())
    if kv.device.type != "cpu":  # fused kernels pad masks of other lengths in each layer
        length += -length % MASK_LENGTH_MULTIPLE
    return arrays, slice(low, high) if dense else None, length


def forward_tokens(
    model: CausalLM,
    kv: KVCache,
    blocks: Sequence[tuple[int, int]],
    kernel: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Compute the next tokens of (slot, number of tokens) blocks, in slot order, and update `kv.num_computed`.

    `kernel` is the variable-length attention, if it is usable. Returns the hidden states of all tokens, [N, H].
    Raises `ModelError` if the model does not support custom attention.
    """
    ids_N, packed = _pack_tokens(kv, blocks, kernel)
    hidden_NH = run_decoder(model, ids_N, packed.position_N, packed)
    for slot, count in blocks:
        kv.num_computed[slot] += count
    return hidden_NH


def run_decoder(model: CausalLM, ids_N: torch.Tensor, position_N: torch.Tensor, packed: PackedBatch) -> torch.Tensor:
    """Compute the hidden states [N, H] of tokens at these positions of their sequences.

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
    before, config._attn_implementation = config._attn_implementation, PACKED
    try:
        hidden_1NH: torch.Tensor = decoder(
            input_ids=ids_N[None],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids_N.device),  # required, but unused
            position_ids=position_N[None],
            use_cache=False,
            packed=packed,
        ).last_hidden_state
    finally:
        config._attn_implementation = before
    return hidden_1NH[0]
