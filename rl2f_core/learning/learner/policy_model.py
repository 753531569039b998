"""The policy as one module: from a micro-batch to the loss inputs, so that DDP and FSDP wrap the whole forward pass.

Mixed precision: trained weights are float32, their products have the base's dtype. By default PEFT casts the input of
every adapted layer to float32, the adapter's dtype, and saves that copy for the backward pass. Beside a bfloat16 base
these rank-r products can cost as much as the base's. Logits, logprobs and loss stay in float32.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl2f_core.learning.learner.kl import distribution_divergence
from rl2f_core.learning.learner.lora_linear import FusedLora
from rl2f_core.learning.learner.micro_batch import MicroBatch
from rl2f_core.learning.learner.value_head import ValueHead
from rl2f_core.learning.methods.loss_spec import KLConfig
from rl2f_core.models.modeling.attention import CausalLM
from rl2f_core.models.modeling.logprobs import (
    compute_logits,
    compute_logprobs,
    in_chunks,
    masked_log_softmax,
    select_hidden_states,
)
from rl2f_core.models.modeling.sequence_packing import (
    MIN_PREFIX_SAVINGS,
    build_layout,
    enable_varlen_attention,
    prefix_savings,
)


@dataclass(frozen=True)
class OutputFlags:
    """Optional outputs of a forward pass, besides logprobs and entropy."""

    values: bool = False
    """Value estimates."""
    value_trains_adapter: bool = True
    """Whether their gradient reaches the model, not only the head."""
    hidden: bool = False
    """Last hidden states."""
    entropy_gradient: bool = False
    """Gradient of the entropies."""
    kl: KLConfig | None = None
    """Divergence of whole distributions from the reference, for tokens with kl weight."""


@dataclass(frozen=True)
class PolicyOutput:
    """Optional outputs at the target positions; None if not requested."""

    values_N: torch.Tensor | None = None
    hidden_NH: torch.Tensor | None = None
    divergence_N: torch.Tensor | None = None


class PolicyModel(nn.Module):
    """An adapted model with an optional value head."""

    def __init__(self, model: CausalLM, banned: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.banned = banned
        self.head: ValueHead | None = None
        self.fused_lora: FusedLora | None = None
        self.packed = enable_varlen_attention(model.get_base_model())
        """Whether sequence packing is used; otherwise samples are padded and prefixes are not shared."""
        self.compute_dtype = dtype if dtype == torch.bfloat16 else None
        """Autocast dtype: bfloat16 if that is the base's, else None; float16 gradients vanish without loss scaling."""
        if self.compute_dtype is not None:
            disable_input_cast(model)
        # FSDP shards the model by these modules
        self._no_split_modules = sorted(getattr(model.get_base_model(), "_no_split_modules", None) or ())

    def forward(
        self, batch: MicroBatch, temperature: float, flags: OutputFlags = OutputFlags()
    ) -> tuple[torch.Tensor, torch.Tensor, PolicyOutput]:
        """Return logprobs and entropies at the target positions, each [N], and the outputs that `flags` requests.

        `temperature` is that of sampling; tokens with ce weight have temperature 1.
        """
        causal_lm = self.model.get_base_model()
        if self.fused_lora is not None:
            self.fused_lora.refresh()
        sequences = [tuple(row.token_ids[:n]) for row, n in zip(batch.samples, batch.lengths, strict=True)]
        device, layout = batch.input_BT.device, None
        if self.packed:
            share = prefix_savings(sequences, batch.prefixes) >= MIN_PREFIX_SAVINGS
            layout = build_layout(sequences, batch.prefixes if share else (0,) * len(sequences), device)
        with autocast_context(self.compute_dtype, device):
            hidden_NH, targets_N = select_hidden_states(
                causal_lm, batch.input_BT, batch.attention_mask_BT, (batch.row_N, batch.column_N), layout
            )
        logp_N, entropy_N = compute_logprobs(
            causal_lm,
            hidden_NH,
            targets_N,
            temperature=token_temperatures(batch, temperature),
            banned=self.banned,
            allowed_NK=batch.tokens.allowed_NK,
            entropy_gradient=flags.entropy_gradient,
        )
        values_N = divergence_N = None
        if flags.values:
            assert self.head is not None, "the stage has no value head"
            values_N = self.head(hidden_NH if flags.value_trains_adapter else hidden_NH.detach())
        if flags.kl is not None:
            divergence_N = self._divergence(causal_lm, hidden_NH, batch, temperature, flags.kl)
        return logp_N, entropy_N, PolicyOutput(values_N, hidden_NH if flags.hidden else None, divergence_N)

    def _divergence(
        self, causal_lm: CausalLM, hidden_NH: torch.Tensor, batch: MicroBatch, temperature: float, kl: KLConfig
    ) -> torch.Tensor:
        """Compute the divergence from the reference's hidden states and output layer."""
        assert batch.reference_NH is not None, "the batch has no reference to compare distributions with"
        mask_N = batch.tokens.kl_N != 0

        def chunk(policy_MH: torch.Tensor, reference_MH: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                reference_NV = compute_logits(causal_lm, reference_MH, batch.reference_output)
                reference_NV = masked_log_softmax(reference_NV, temperature, self.banned)
            policy_NV = masked_log_softmax(compute_logits(causal_lm, policy_MH), temperature, self.banned)
            return (distribution_divergence(policy_NV, reference_NV, kl),)

        (divergence_M,) = in_chunks(chunk, hidden_NH[mask_N], batch.reference_NH[mask_N])
        return divergence_M.new_zeros(len(mask_N)).masked_scatter(mask_N, divergence_M)


def token_temperatures(batch: MicroBatch, temperature: float) -> float | torch.Tensor:
    """Return the temperature of all target tokens, or of each, [N]: 1 with ce weight, otherwise that of sampling."""
    if temperature == 1 or not any(any(sample.ce_weights) for sample in batch.samples):
        return temperature
    ce_N = batch.tokens.ce_N
    return torch.where(ce_N != 0, torch.ones_like(ce_N), temperature)


def disable_input_cast(model: torch.nn.Module) -> None:
    """Disable PEFT's input casts; `autocast_context` then sets the dtype of the products."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            layer.cast_input_dtype_enabled = False


def autocast_context(dtype: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return an autocast context of this dtype; without effect for None."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)
