"""Sequence packing: no padding, and shared prefixes are computed once.

All layers but attention see one long sequence: the distinct prefixes, then the suffixes. Attention handles prefixes and
suffixes as two padded batches; a suffix also attends to its prefix. Results and gradients equal those of the padded
sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rl2f_core.models.modeling.attention import (
    ATTENTION,
    CausalLM,
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
    attention_mask_BRS: torch.Tensor
    """Which tokens of its prefix and suffix a suffix token attends to."""
    token_N: torch.Tensor
    position_N: torch.Tensor
    start_B: torch.Tensor
    """Offset of each sequence: its suffix token at position t has the packed index start + t."""
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask [B, 1, R, S], computed once for all layers: 0 or −∞."""
        if dtype not in self._masks:
            zeros = torch.zeros(self.attention_mask_BRS.shape, dtype=dtype, device=self.attention_mask_BRS.device)
            self._masks[dtype] = zeros.masked_fill_(self.attention_mask_BRS.logical_not(), -torch.inf)[:, None]
        return self._masks[dtype]


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
    suffix_segment = _segment([*map(len, remainders)], device)
    prefix_segment = _segment([*map(len, distinct)], device) if distinct else None
    step_R = np.arange(suffix_segment.width)
    mask_BRS = np.broadcast_to(
        step_R <= step_R[:, None], (suffix_segment.rows, suffix_segment.width, suffix_segment.width)
    )
    if prefix_segment is not None:
        mask_BP = np.arange(prefix_segment.width) < prefix_lengths[:, None]
        mask_BRP = np.broadcast_to(mask_BP[:, None], (suffix_segment.rows, suffix_segment.width, prefix_segment.width))
        mask_BRS = np.concatenate([mask_BRP, mask_BRS], 2)
    positions = [np.arange(len(prefix)) for prefix in distinct]
    positions += [p + np.arange(n) for p, n in zip(prefix_lengths, lengths, strict=True)]
    tokens = [token for part in (*distinct, *remainders) for token in part]
    return PackingLayout(
        prefixes=prefix_segment,
        suffixes=suffix_segment,
        prefix_B=_tensor([index_of.get(prefix, 0) for prefix in prefix_of], device),
        attention_mask_BRS=torch.tensor(mask_BRS, device=device),
        token_N=_tensor(tokens, device),
        position_N=_tensor(np.concatenate(positions), device),
        start_B=_tensor(sum(map(len, distinct)) + lengths.cumsum() - lengths - prefix_lengths, device),
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
    keys, values = [], []
    if prefixes is not None:
        first = len(prefixes.index_N)
        q, k, v = (prefixes.pad(x[:first]) for x in (q_NHD, k_NHD, v_NHD))
        results.append(prefixes.unpad(_attend(module, q, k, v, None, scale)))
        keys, values = [k.index_select(0, layout.prefix_B)], [v.index_select(0, layout.prefix_B)]
    q, k, v = (layout.suffixes.pad(x[first:]) for x in (q_NHD, k_NHD, v_NHD))
    k, v = torch.cat([*keys, k], 2), torch.cat([*values, v], 2)
    results.append(layout.suffixes.unpad(_attend(module, q, k, v, layout, scale)))
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
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: PackingLayout | None,
    scale: float,
) -> torch.Tensor:
    """Compute softmax(q kᵀ · scale) v as [B, Q, heads, D]; causal without a layout."""
    if prefers_matmul_attention(q.device, q.dtype):
        allowed = None if layout is None else layout.attention_mask_BRS[:, None]
        return grouped_attention(module, q, k, v, allowed, scale)[0]
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.device.type != "cpu":  # flash kernels need equal head counts
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = None if layout is None else layout.mask(q.dtype)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)


def _segment(lengths: list[int], device: torch.device) -> PackedSegment:
    width = max(lengths)
    indices = np.concatenate([row * width + np.arange(length) for row, length in enumerate(lengths)])
    return PackedSegment(len(lengths), width, _tensor(indices, device))


def _tensor(values: np.ndarray | Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64), device=device)
