"""Rows for training laid end to end: no padding, and what several rows begin with is read once.

All that is not attention sees one long row of tokens: first the distinct openings, then what follows in each row.
Attention takes each part as a padded batch of its own, and what follows an opening also looks at that.  The same
numbers as reading every row whole, gradients included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rl2f_core.backends._torch import ATTENTION, grouped_attention, plain_attention, two_products

ROWS = "rl2f_rows"
WORTH = 0.15
"""Least share of the tokens that reading openings once must save."""


@dataclass(frozen=True)
class Part:
    """Tokens that attention takes as a batch of rows."""

    rows: int
    width: int
    place_N: torch.Tensor
    """Of every token in the padded batch, row by row."""

    def padded(self, x_NHD: torch.Tensor) -> torch.Tensor:
        """[N, heads, D] as [rows, heads, width, D]."""
        flat = x_NHD.new_zeros(self.rows * self.width, *x_NHD.shape[1:]).index_copy(0, self.place_N, x_NHD)
        return flat.view(self.rows, self.width, *x_NHD.shape[1:]).transpose(1, 2)

    def packed(self, x_BTHD: torch.Tensor) -> torch.Tensor:
        """[rows, width, heads, D] as [N, heads, D]."""
        return x_BTHD.flatten(0, 1).index_select(0, self.place_N)


@dataclass(frozen=True)
class Layout:
    """Where each token of a pass belongs."""

    openings: Part | None
    rest: Part
    opening_B: torch.Tensor
    """The opening of every row; any where it has none."""
    seen_BRS: torch.Tensor
    """Which tokens, of its opening and then of the rest, a token of the rest looks at."""
    token_N: torch.Tensor
    position_N: torch.Tensor
    start_B: torch.Tensor
    """Where position 0 of every row would stand, so that its token at position t stands at start + t."""
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """`seen_BRS` for attention, [B, 1, R, S], made once for all layers: 0 where a token may look, else −∞."""
        if dtype not in self._masks:
            zeros = torch.zeros(self.seen_BRS.shape, dtype=dtype, device=self.seen_BRS.device)
            self._masks[dtype] = zeros.masked_fill_(self.seen_BRS.logical_not(), -torch.inf)[:, None]
        return self._masks[dtype]


def lays_out(model: Any) -> bool:
    """Whether the model's rows can be laid end to end: its attention can be chosen, and it looks at all that came."""
    config = model.get_decoder().config
    chosen = getattr(model.get_decoder(), "_supports_attention_backend", False)
    return bool(chosen) and config._attn_implementation in (ATTENTION, "sdpa", ROWS) and plain_attention(config)


def attend_by_rows(model: Any) -> bool:
    """Give a model, for good, the attention that reads rows end to end; False where that cannot be.

    It stays for the backward pass too, where layers may be computed again, and reads padded rows as before.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if not lays_out(model):
        return False
    AttentionInterface.register(ROWS, rows_attention)
    AttentionMaskInterface.register(ROWS, sdpa_mask)
    model.get_decoder().config._attn_implementation = ROWS
    return True


def saving(sequences: Sequence[tuple[int, ...]], prefixes: Sequence[int]) -> float:
    """The share of all tokens that need not be read when `prefixes[i]` tokens of row i may be shared."""
    total = sum(map(len, sequences))
    distinct = {s[:p] for s, p in zip(sequences, prefixes, strict=True)}
    return (sum(prefixes) - sum(map(len, distinct))) / max(1, total)


def lay_out(sequences: Sequence[tuple[int, ...]], prefixes: Sequence[int], device: torch.device) -> Layout:
    """The layout of rows whose first `prefixes[i]` tokens, fewer than all, are read once for all that begin so."""
    beginnings = [row[:p] for row, p in zip(sequences, prefixes, strict=True)]
    distinct = [beginning for beginning in dict.fromkeys(beginnings) if beginning]
    where = {beginning: i for i, beginning in enumerate(distinct)}
    rests = [row[p:] for row, p in zip(sequences, prefixes, strict=True)]
    lengths, before = np.array([len(rest) for rest in rests]), np.array(prefixes, dtype=np.int64)
    opened = sum(map(len, distinct))
    rest = _part([len(rest) for rest in rests], device)
    openings = _part([len(opening) for opening in distinct], device) if distinct else None
    step_R = np.arange(rest.width)
    seen_BRS = np.broadcast_to(step_R <= step_R[:, None], (rest.rows, rest.width, rest.width))
    if openings is not None:
        seen_BP = np.arange(openings.width) < before[:, None]
        seen_BRP = np.broadcast_to(seen_BP[:, None], (rest.rows, rest.width, openings.width))
        seen_BRS = np.concatenate([seen_BRP, seen_BRS], 2)
    positions = [np.arange(len(o)) for o in distinct] + [p + np.arange(n) for p, n in zip(before, lengths, strict=True)]
    tokens = [token for part in (*distinct, *rests) for token in part]
    return Layout(
        openings=openings,
        rest=rest,
        opening_B=_tensor([where.get(beginning, 0) for beginning in beginnings], device),
        seen_BRS=torch.tensor(seen_BRS, device=device),
        token_N=_tensor(tokens, device),
        position_N=_tensor(np.concatenate(positions), device),
        start_B=_tensor(opened + lengths.cumsum() - lengths - before, device),
    )


def rows_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [1, heads, N, D] queries, keys and values, each within its own row; result [1, N, heads, D].

    Without a layout rows are padded, [B, heads, T, D], and the result is [B, T, heads, D].
    """
    if layout is None:
        return _of_padded(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    scale = scaling or query.shape[-1] ** -0.5
    q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1) for x in (query, key, value))
    found, openings, first = [], layout.openings, 0
    keys, values = [], []
    if openings is not None:
        first = len(openings.place_N)
        q, k, v = (openings.padded(x[:first]) for x in (q_NHD, k_NHD, v_NHD))
        found.append(openings.packed(_attend(module, q, k, v, None, scale)))
        keys, values = [k.index_select(0, layout.opening_B)], [v.index_select(0, layout.opening_B)]
    q, k, v = (layout.rest.padded(x[first:]) for x in (q_NHD, k_NHD, v_NHD))
    k, v = torch.cat([*keys, k], 2), torch.cat([*values, v], 2)
    found.append(layout.rest.packed(_attend(module, q, k, v, layout, scale)))
    return torch.cat(found)[None], None


def hidden_states(model: Any, layout: Layout) -> torch.Tensor:
    """Last hidden states [N, H] of all tokens of a layout, by a model that attends by rows."""
    return model.get_decoder()(
        input_ids=layout.token_N[None],
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layout.token_N.device),  # taken, not used
        position_ids=layout.position_N[None],
        use_cache=False,
        layout=layout,
    ).last_hidden_state[0]


def _of_padded(module: Any, query: torch.Tensor, *others: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """What the model's attention was before, see `load_base`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if two_products(query.device, query.dtype):
        return grouped_attention(module, query, *others, **kwargs)
    return sdpa_attention_forward(module, query, *others, **kwargs)


def _attend(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout | None, scale: float
) -> torch.Tensor:
    """softmax(q kᵀ · scale) v as [B, Q, heads, D]; without a layout each token looks at those before it."""
    if two_products(q.device, q.dtype):
        seen = None if layout is None else layout.seen_BRS[:, None]
        return grouped_attention(module, q, k, v, seen, scale)[0]
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.device.type != "cpu":  # the kernels that keep no scores want as many key heads as query heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = None if layout is None else layout.mask(q.dtype)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)


def _part(lengths: list[int], device: torch.device) -> Part:
    width = max(lengths)
    places = np.concatenate([row * width + np.arange(length) for row, length in enumerate(lengths)])
    return Part(len(lengths), width, _tensor(places, device))


def _tensor(values: Any, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64), device=device)
