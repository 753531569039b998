"""Sequence packing: no padding, and shared prefixes are computed once.

All layers but attention see one long sequence: the distinct prefixes, then the suffixes. Attention handles prefixes and
suffixes as two padded batches; a suffix also attends to its prefix. Results and gradients equal those of the padded
sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rl2f_core.models.device import to_device
from rl2f_core.models.modeling.attention import (
    ATTENTION,
    CausalLM,
    attend_grouped,
    grouped_attention,
    is_full_attention,
    prefers_matmul_attention,
)

VARLEN_ATTENTION = "rl2f_rows"
MIN_PREFIX_SAVINGS = 0.15
"""Minimum fraction of tokens that sharing prefixes must save."""


@dataclass(frozen=True)
class PackedSegment:
    """Packed tokens that attention handles as one padded batch."""

    rows: int
    width: int
    index_N: torch.Tensor
    """Index of each token in the flattened padded batch."""

    def pad(self, x_NHD: torch.Tensor) -> torch.Tensor:
        """Reshape [N, heads, D] to [rows, heads, width, D]."""
        if len(self.index_N) == self.rows * self.width:
            return x_NHD.view(self.rows, self.width, *x_NHD.shape[1:]).transpose(1, 2)
        flat = x_NHD.new_zeros(self.rows * self.width, *x_NHD.shape[1:]).index_copy(0, self.index_N, x_NHD)
        return flat.view(self.rows, self.width, *x_NHD.shape[1:]).transpose(1, 2)

    def unpad(self, x_BTHD: torch.Tensor) -> torch.Tensor:
        """Reshape [rows, width, heads, D] to [N, heads, D]."""
        return x_BTHD.flatten(0, 1).index_select(0, self.index_N)


@dataclass(frozen=True)
class PackingLayout:
    """Positions and attention mask of packed sequences."""

    prefixes: PackedSegment | None
    suffixes: PackedSegment
    prefix_B: torch.Tensor
    """Index of each sequence's prefix; any if it has none."""
    prefix_length_B: torch.Tensor
    token_N: torch.Tensor
    position_N: torch.Tensor
    start_B: torch.Tensor
    """Offset of each sequence: its suffix token at position t has the packed index start + t."""
    _masks: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)

    @functools.cached_property
    def attention_mask_BRS(self) -> torch.Tensor:
        """Which tokens of its prefix and suffix a suffix token attends to; without prefixes [1, R, R], causal."""
        causal_RR = _causal(self.suffixes.width, self.token_N.device)
        if self.prefixes is None:
            return causal_RR[None]
        rows, width = self.suffixes.rows, self.suffixes.width
        is_prefix_BP = torch.arange(self.prefixes.width, device=self.token_N.device) < self.prefix_length_B[:, None]
        return torch.cat([is_prefix_BP[:, None].expand(-1, width, -1), causal_RR.expand(rows, -1, -1)], 2)

    def additive_mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask of suffixes, 0 or −∞, [B, 1, R, S], computed once for all layers."""
        if (dtype,) not in self._masks:
            zeros = torch.zeros(self.attention_mask_BRS.shape, dtype=dtype, device=self.token_N.device)
            self._masks[dtype,] = zeros.masked_fill_(self.attention_mask_BRS.logical_not(), -torch.inf)[:, None]
        return self._masks[dtype,]

    def blocked(self, segment: PackedSegment, groups: int) -> torch.Tensor:
        """Return the blocked entries of prefixes or suffixes for `attend_grouped`, computed once for all layers."""
        key = (segment is self.suffixes, groups)
        if key not in self._masks:
            is_suffix, device = key[0], self.token_N.device
            mask_BRS = self.attention_mask_BRS if is_suffix else _causal(segment.width, device)[None]
            self._masks[key] = mask_BRS.logical_not().repeat(1, groups, 1)[:, None]
        return self._masks[key]


def enable_varlen_attention(model: CausalLM) -> bool:
    """Set packed attention permanently; False if the model does not support it.

    The model must support custom attention and attend to all earlier tokens. Packed attention also handles padded
    sequences, and stays for the backward pass, which may recompute layers.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    decoder = model.get_decoder()
    if (
        not getattr(decoder, "_supports_attention_backend", False)
        or decoder.config._attn_implementation not in (ATTENTION, "sdpa", VARLEN_ATTENTION)
        or not is_full_attention(decoder.config)
    ):
        return False
    AttentionInterface.register(VARLEN_ATTENTION, varlen_attention)
    AttentionMaskInterface.register(VARLEN_ATTENTION, sdpa_mask)
    decoder.config._attn_implementation = VARLEN_ATTENTION
    return True


def prefix_savings(sequences: Sequence[tuple[int, ...]], prefixes: Sequence[int]) -> float:
    """Return the fraction of tokens that sharing the first `prefixes[i]` tokens of sequence i saves."""
    total = sum(map(len, sequences))
    distinct = {s[:p] for s, p in zip(sequences, prefixes, strict=True)}
    return (sum(prefixes) - sum(map(len, distinct))) / max(1, total)


def build_layout(sequences: Sequence[tuple[int, ...]], prefixes: Sequence[int], device: torch.device) -> PackingLayout:
    """Pack sequences; equal prefixes of `prefixes[i]` tokens (fewer than all) are computed once."""
    prefix_of = [sequence[:p] for sequence, p in zip(sequences, prefixes, strict=True)]
    distinct = [prefix for prefix in dict.fromkeys(prefix_of) if prefix]
    index_of = {prefix: i for i, prefix in enumerate(distinct)}
    remainders = [sequence[p:] for sequence, p in zip(sequences, prefixes, strict=True)]
    lengths, prefix_lengths = np.array([*map(len, remainders)]), np.array(prefixes, dtype=np.int64)
    positions = [np.arange(len(prefix)) for prefix in distinct]
    positions += [p + np.arange(n) for p, n in zip(prefix_lengths, lengths, strict=True)]
    prefix_B, prefix_length_B, token_N, position_N, start_B, suffix_index_N, prefix_index_N = to_device(
        [
            np.array([index_of.get(prefix, 0) for prefix in prefix_of]),
            prefix_lengths,
            np.concatenate([np.asarray(part, dtype=np.int64) for part in (*distinct, *remainders)]),
            np.concatenate(positions),
            sum(map(len, distinct)) + lengths.cumsum() - lengths - prefix_lengths,
            _padded_indices([*map(len, remainders)]),
            _padded_indices([*map(len, distinct)]),
        ],
        device,
    )
    return PackingLayout(
        PackedSegment(len(distinct), max(map(len, distinct)), prefix_index_N) if distinct else None,
        PackedSegment(len(remainders), int(lengths.max()), suffix_index_N),
        prefix_B,
        prefix_length_B,
        token_N,
        position_N,
        start_B,
    )


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: PackingLayout | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention of packed [1, heads, N, D] queries, keys and values; returns [1, N, heads, D].

    Without a layout the inputs are padded, [B, heads, T, D], and the result is [B, T, heads, D].
    """
    if layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attend: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward
        if prefers_matmul_attention(query.device, query.dtype):
            attend = grouped_attention
        return attend(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    scale = scaling or query.shape[-1] ** -0.5
    q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1) for x in (query, key, value))
    results, prefixes, first = [], layout.prefixes, 0
    shared: list[torch.Tensor] = []
    if prefixes is not None:
        first = len(prefixes.index_N)
        q, k, v = (prefixes.pad(x[:first]) for x in (q_NHD, k_NHD, v_NHD))
        results.append(prefixes.unpad(_attend(q, k, v, layout, prefixes, scale)))
        shared = [x.index_select(0, layout.prefix_B) for x in (k, v)]
    q, k, v = (layout.suffixes.pad(x[first:]) for x in (q_NHD, k_NHD, v_NHD))
    if shared:
        k, v = (torch.cat(pair, 2) for pair in zip(shared, (k, v), strict=True))
    results.append(layout.suffixes.unpad(_attend(q, k, v, layout, layout.suffixes, scale)))
    return torch.cat(results)[None], None


def hidden_states(model: CausalLM, layout: PackingLayout) -> torch.Tensor:
    """Return the last hidden states [N, H] of packed tokens; the model needs `enable_varlen_attention`."""
    return model.get_decoder()(
        input_ids=layout.token_N[None],
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layout.token_N.device),  # required, but unused
        position_ids=layout.position_N[None],
        use_cache=False,
        layout=layout,
    ).last_hidden_state[0]


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackingLayout,
    segment: PackedSegment,
    scale: float,
) -> torch.Tensor:
    """Compute softmax(q kᵀ · scale) v of the prefixes or the suffixes as [B, Q, heads, D]."""
    groups = q.shape[1] // k.shape[1]
    if prefers_matmul_attention(q.device, q.dtype):
        return attend_grouped(q, k, v, layout.blocked(segment, groups), scale)
    causal = layout.prefixes is None or segment is layout.prefixes  # flash kernels take no mask
    if groups > 1 and q.device.type != "cpu" and not causal:  # kernels with a mask need equal head counts
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = None if causal else layout.additive_mask(q.dtype)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)


def _causal(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def _padded_indices(lengths: list[int]) -> np.ndarray:
    """Return the index of each token in the flattened batch of sequences that are padded to the longest."""
    width = max(lengths, default=0)
    steps = [row * width + np.arange(length) for row, length in enumerate(lengths)]
    return np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)
