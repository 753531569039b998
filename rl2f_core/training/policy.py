"""The model as one call from rows to what a loss needs of them, so that wrappers see the whole pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl2f_core.backends._end_to_end import WORTH, attend_by_rows, lay_out, saving
from rl2f_core.backends._torch import in_chunks, log_softmax_all, logits_of, logprobs_of, selected_hidden
from rl2f_core.methods.objectives import Pull
from rl2f_core.training.batch import MicroBatch
from rl2f_core.training.critic import ValueHead
from rl2f_core.training.divergence import of_distributions
from rl2f_core.training.precision import computing, low_precision, read_as_they_come


@dataclass(frozen=True)
class Wants:
    """What is asked of a pass beside log-probabilities and entropy."""

    values: bool = False
    """The value head's estimates."""
    shared: bool = True
    """Their gradient reaches the model too, not the head alone."""
    hidden: bool = False
    """The hidden states."""
    pull: Pull | None = None
    """The divergence of whole distributions from the batch's reference, where a token has kl weight."""


@dataclass(frozen=True)
class Found:
    """What was asked for, each [N] at the wanted positions, `hidden_NH` [N, H]; None where it was not."""

    values_N: torch.Tensor | None = None
    hidden_NH: torch.Tensor | None = None
    divergence_N: torch.Tensor | None = None


class PolicyModel(nn.Module):
    """An adapted model, and a value head where the stage has one."""

    def __init__(self, model: Any, banned: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.banned = banned
        self.head: ValueHead | None = None
        self.end_to_end = attend_by_rows(model.get_base_model())
        """Rows are laid end to end; else they are padded, and each is read whole, also where they begin alike."""
        self.products = low_precision(model)
        """The type in which base and adapter are multiplied, where it is not float32."""
        if self.products is not None:
            read_as_they_come(model)
        # FSDP shares out the model by the blocks of this name
        self._no_split_modules = sorted(getattr(model.get_base_model(), "_no_split_modules", None) or ())

    def forward(self, batch: MicroBatch, temperature: float, wants: Wants | None = None) -> tuple[Any, ...]:
        """log p and entropy, each [N], at the wanted positions; with `wants` also what was found."""
        causal_lm = self.model.get_base_model()
        sequences = [tuple(row.token_ids[:n]) for row, n in zip(batch.samples, batch.lengths, strict=True)]
        device, layout = batch.input_BT.device, None
        if self.end_to_end:
            worth = saving(sequences, batch.prefixes) >= WORTH
            layout = lay_out(sequences, batch.prefixes if worth else (0,) * len(sequences), device)
        with computing(self.products, device):
            hidden_NH, targets_N = selected_hidden(causal_lm, batch.input_BT, batch.valid_BT, batch.wanted_BT, layout)
        logp_N, entropy_N = logprobs_of(causal_lm, hidden_NH, targets_N, temperature=temperature, banned=self.banned)
        if wants is None:
            return logp_N, entropy_N
        values_N = divergence_N = None
        if wants.values:
            assert self.head is not None, "the stage has no value head"
            values_N = self.head(hidden_NH if wants.shared else hidden_NH.detach())
        if wants.pull is not None:
            divergence_N = self._divergence(causal_lm, hidden_NH, batch, temperature, wants.pull)
        return logp_N, entropy_N, Found(values_N, hidden_NH if wants.hidden else None, divergence_N)

    def _divergence(
        self, causal_lm: Any, hidden_NH: torch.Tensor, batch: MicroBatch, temperature: float, pull: Pull
    ) -> torch.Tensor:
        """The output layer is not adapted, so the reference's distribution follows from its hidden states."""
        assert batch.reference_NH is not None, "the batch has no reference to compare distributions with"
        held_N = batch.tokens.kl_N != 0

        def part(mine: torch.Tensor, its: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                reference_NV = log_softmax_all(logits_of(causal_lm, its), temperature, self.banned)
            policy_NV = log_softmax_all(logits_of(causal_lm, mine), temperature, self.banned)
            return (of_distributions(policy_NV, reference_NV, pull),)

        (found_M,) = in_chunks(part, hidden_NH[held_N], batch.reference_NH[held_N])
        return found_M.new_zeros(len(held_N)).masked_scatter(held_N, found_M)
