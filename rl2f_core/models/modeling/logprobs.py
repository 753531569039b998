"""Logprobs and entropies, with logits only at the required positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from rl2f_core.models.device import to_device
from rl2f_core.models.modeling.attention import MASK_VALUE, CausalLM
from rl2f_core.models.modeling.sequence_packing import PackingLayout, hidden_states

LOGITS_CHUNK = 1024
"""Positions whose logits are in memory at once."""


def compute_logits(
    model: CausalLM, hidden_NH: torch.Tensor, output: dict[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """Compute float32 logits [N, vocabulary] of hidden states, with the model's scaling and capping.

    `output` replaces weights of the output layer.
    """
    config, layer = model.config, model.get_output_embeddings()
    logits_NV = (torch.func.functional_call(layer, output, hidden_NH) if output else layer(hidden_NH)).float()
    if getattr(config, "logit_scale", None):
        logits_NV = logits_NV * config.logit_scale
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits_NV / cap) if cap else logits_NV


def masked_log_softmax(
    logits_NV: torch.Tensor, temperature: float | torch.Tensor, banned: torch.Tensor | None
) -> torch.Tensor:
    """Compute log p [N, vocabulary] in nats over the allowed tokens, at one temperature or one per row, [N]."""
    if isinstance(temperature, torch.Tensor):
        scaled_NV = logits_NV / temperature[:, None]
    else:
        scaled_NV = logits_NV / temperature if temperature != 1 else logits_NV
    if banned is not None and len(banned):
        scaled_NV = scaled_NV.index_fill(1, banned, MASK_VALUE)
    return scaled_NV.log_softmax(1)


def allowed_tensor(allowed: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor | None:
    """Return the allowed tokens of each row for `restrict`, [N, K]; None if no row is restricted."""
    width = max(map(len, allowed), default=0)
    if not width:
        return None
    rows = [[*tokens, *[tokens[-1] if tokens else -1] * (width - len(tokens))] for tokens in allowed]
    return to_device([np.array(rows, dtype=np.int64)], device)[0]


def restrict(logits_NV: torch.Tensor, allowed_NK: torch.Tensor) -> torch.Tensor:
    """Mask the logits of all other tokens than the allowed ones; a row of −1 is not restricted."""
    blocked_NV = torch.ones_like(logits_NV, dtype=torch.bool).scatter_(1, allowed_NK.clamp(min=0), False)
    return logits_NV.masked_fill(blocked_NV & (allowed_NK[:, :1] >= 0), MASK_VALUE)


def select_hidden_states(
    model: CausalLM,
    input_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    target_NN: tuple[torch.Tensor, torch.Tensor],
    layout: PackingLayout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last hidden states [N, H] that predict the target tokens, and these tokens [N].

    Args:
        model: The causal language model.
        input_BT: Padded tokens.
        attention_mask_BT: Tokens that are not padding.
        target_NN: Rows and columns of the target tokens.
        layout: Packs the sequences. Its shared prefixes must end before the token that predicts the first target.
    """
    rows, cols = target_NN
    targets_N = input_BT[rows, cols]
    if layout is None:
        decoder = model.get_decoder()
        hidden_BTH = decoder(
            input_ids=input_BT, attention_mask=attention_mask_BT.long(), use_cache=False
        ).last_hidden_state
        return hidden_BTH[rows, cols - 1], targets_N
    return hidden_states(model, layout)[layout.start_B[rows] + cols - 1], targets_N


def in_chunks(function: Callable[..., tuple[torch.Tensor, ...]], *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Apply `function` to `LOGITS_CHUNK` positions at a time and concatenate the results.

    Its activations are recomputed in the backward pass, so memory does not grow with positions × vocabulary. Without
    positions it is called once, with empty arrays.
    """
    from torch.utils.checkpoint import checkpoint

    n = len(arrays[0])
    results = []
    for start in range(0, max(n, 1), LOGITS_CHUNK):
        chunk = [array[start : start + LOGITS_CHUNK] for array in arrays]
        if torch.is_grad_enabled() and n > LOGITS_CHUNK:
            results.append(checkpoint(function, *chunk, use_reentrant=False))
        else:
            results.append(function(*chunk))
    return tuple(torch.cat(column) for column in zip(*results, strict=True))


def compute_logprobs(
    model: CausalLM,
    hidden_NH: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    banned: torch.Tensor | None = None,
    allowed_NK: torch.Tensor | None = None,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log p of the targets and the entropy, each [N], from the hidden states that predict them.

    `temperature` is one number, or one per target, [N]. `allowed_NK` restricts targets (see `restrict`). The entropy
    has a gradient only with `entropy_gradient`.
    """
    temperatures = temperature if isinstance(temperature, torch.Tensor) else torch.empty(len(targets_N), 0)
    limits = torch.empty(len(targets_N), 0) if allowed_NK is None else allowed_NK

    def compute(
        hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor, limits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_NV = compute_logits(model, hidden)
        logits_NV = logits_NV if allowed_NK is None else restrict(logits_NV, limits)
        scale = temperatures if isinstance(temperature, torch.Tensor) else temperature
        logp_NV = masked_log_softmax(logits_NV, scale, banned)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -torch.einsum("nv,nv->n", logp_NV.exp(), logp_NV)
        return logp_NV.gather(1, targets[:, None]).squeeze(1), entropy

    logp_N, entropy_N = in_chunks(compute, hidden_NH, targets_N, temperatures, limits)
    return logp_N, entropy_N


def selected_logprobs(
    model: CausalLM,
    input_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    target_mask_BT: torch.Tensor,
    *,
    temperature: float = 1.0,
    banned: torch.Tensor | None = None,
    layout: PackingLayout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log p and entropy of the target tokens, each [N] in row-major order (see `select_hidden_states`)."""
    rows, cols = target_mask_BT.nonzero(as_tuple=True)
    hidden_NH, targets_N = select_hidden_states(model, input_BT, attention_mask_BT, (rows, cols), layout)
    return compute_logprobs(model, hidden_NH, targets_N, temperature=temperature, banned=banned)


def right_padded(
    sequences: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad sequences on the right to [B, T]; also return the mask of entries that are not padding."""
    lengths = np.array([*map(len, sequences)])
    mask_BT = np.arange(lengths.max()) < lengths[:, None]
    ids_BT = np.full(mask_BT.shape, pad, dtype=np.int64)
    ids_BT[mask_BT] = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    input_BT, attention_mask_BT = to_device([ids_BT, mask_BT.astype(np.int64)], device)
    return input_BT, attention_mask_BT.bool()
