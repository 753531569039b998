"""What sampler and learner share: loading a base model, grouped attention, log-probabilities only where wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from rl2f_core.errors import ModelError

if TYPE_CHECKING:
    from rl2f_core.backends._end_to_end import Layout

ATTENTION = "rl2f_grouped"
NEVER = -1e30
"""The score of what may not be chosen: its probability is exactly 0, and 0 times it is 0."""
LOGIT_ROWS = 1024
"""Positions whose logits are held at once."""


def grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as two plain matrix products, with the query heads of a group folded into the query length.

    The same numbers as torch's `scaled_dot_product_attention` after repeating keys and values for every query head,
    without the copies; on CPUs without AVX-512 torch's fused kernel is several times slower than this.
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
        scores = scores.masked_fill_(blocked.repeat(1, 1, groups, 1) if length > 1 else blocked, NEVER)
    out = torch.matmul(scores.softmax(-1), value)
    return out.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous(), None


def load_base(folder: str, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model from a folder of safetensors, in evaluation mode, with grouped attention on a CPU."""
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
    from transformers.masking_utils import sdpa_mask
    from transformers.utils import logging

    logging.disable_progress_bar()
    AttentionInterface.register(ATTENTION, grouped_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The model cannot be loaded: {error}.", value=folder) from error
    if two_products(device, dtype) and plain_attention(model.config):
        model.set_attn_implementation(ATTENTION)
    return model.to(device).eval()


def two_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention is quicker as two plain matrix products than in torch's fused kernel."""
    return device.type == "cpu" and dtype == torch.float32


def plain_attention(config: Any) -> bool:
    """Whether every layer attends to all earlier tokens, which is what a cache with masked slots needs."""
    types = getattr(config, "layer_types", None) or []
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    softcap = getattr(config, "attn_logit_softcapping", None)
    return all(t == "full_attention" for t in types) and not windowed and not softcap


def logits_of(model: Any, hidden_NH: torch.Tensor) -> torch.Tensor:
    """Output logits [N, vocabulary] in float32 of chosen hidden states, with the model's own scaling."""
    config = model.config
    logits_NV = model.get_output_embeddings()(hidden_NH).float()
    if getattr(config, "logit_scale", None):
        logits_NV = logits_NV * config.logit_scale
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits_NV / cap) if cap else logits_NV


def log_softmax_all(logits_NV: torch.Tensor, temperature: float, banned: torch.Tensor | None) -> torch.Tensor:
    """log p [N, vocabulary], in nats, at a temperature and over the allowed tokens."""
    scaled_NV = logits_NV / temperature if temperature != 1 else logits_NV
    if banned is not None and len(banned):
        scaled_NV = scaled_NV.index_fill(1, banned, NEVER)
    return scaled_NV.log_softmax(1)


def log_softmax_at(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, temperature: float, banned: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of the targets [N] and the entropy [N], in nats, at a temperature and over the allowed tokens."""
    logp_NV = log_softmax_all(logits_NV, temperature, banned)
    with torch.no_grad():
        entropy_N = -torch.einsum("nv,nv->n", logp_NV.exp(), logp_NV)
    return logp_NV.gather(1, targets_N[:, None]).squeeze(1), entropy_N


def selected_hidden(
    model: Any,
    input_BT: torch.Tensor,
    valid_BT: torch.Tensor,
    wanted_BT: torch.Tensor,
    layout: Layout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states [N, H] that predict the tokens where `wanted_BT` is true, in row-major order, and these [N].

    Rows are read padded, or end to end as `layout` has them, whose openings must end before the tokens that predict the
    first wanted ones.
    """
    from rl2f_core.backends._end_to_end import hidden_states

    rows, cols = wanted_BT.nonzero(as_tuple=True)
    targets_N = input_BT[rows, cols]
    if layout is None:
        decoder = model.get_decoder()
        hidden_BTH = decoder(input_ids=input_BT, attention_mask=valid_BT.long(), use_cache=False).last_hidden_state
        return hidden_BTH[rows, cols - 1], targets_N
    return hidden_states(model, layout)[layout.start_B[rows] + cols - 1], targets_N


def in_chunks(part: Callable[..., tuple[torch.Tensor, ...]], *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`part` of `LOGIT_ROWS` positions at a time, its results joined; its activations are recomputed in the backward
    pass, so that memory does not grow with positions × vocabulary. Without positions it is called once, on none."""
    from torch.utils.checkpoint import checkpoint

    n = len(arrays[0])
    found = []
    for start in range(0, max(n, 1), LOGIT_ROWS):
        chunk = [array[start : start + LOGIT_ROWS] for array in arrays]
        if torch.is_grad_enabled() and n > LOGIT_ROWS:
            found.append(checkpoint(part, *chunk, use_reentrant=False))
        else:
            found.append(part(*chunk))
    return tuple(torch.cat(column) for column in zip(*found, strict=True))


def logprobs_of(
    model: Any,
    hidden_NH: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    temperature: float = 1.0,
    banned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of the targets and entropy, each [N], from the hidden states that predict them."""

    def part(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return log_softmax_at(logits_of(model, hidden), targets, temperature, banned)

    logp_N, entropy_N = in_chunks(part, hidden_NH, targets_N)
    return logp_N, entropy_N


def selected_logprobs(
    model: Any,
    input_BT: torch.Tensor,
    valid_BT: torch.Tensor,
    wanted_BT: torch.Tensor,
    *,
    temperature: float = 1.0,
    banned: torch.Tensor | None = None,
    layout: Layout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p and entropy, each [N] in row-major order, of the tokens where `wanted_BT` is true.

    Logits are made for those positions alone; for `layout` see `selected_hidden`.
    """
    hidden_NH, targets_N = selected_hidden(model, input_BT, valid_BT, wanted_BT, layout)
    return logprobs_of(model, hidden_NH, targets_N, temperature=temperature, banned=banned)


def right_padded(sequences: Any, pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows as [B, T] with padding at the right, and which entries are real."""
    width = max(len(s) for s in sequences)
    ids_BT = torch.full((len(sequences), width), pad, dtype=torch.long)
    valid_BT = torch.zeros(len(sequences), width, dtype=torch.bool)
    for i, sequence in enumerate(sequences):
        ids_BT[i, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        valid_BT[i, : len(sequence)] = True
    return ids_BT.to(device), valid_BT.to(device)
