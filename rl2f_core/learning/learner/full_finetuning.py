"""Full fine-tuning: all weights in training, with the part of PEFT's interface that the learner uses.

The trained weights are float32 master weights; the products run in the base's dtype (`policy_model.autocast_context`).
bfloat16 weights would lose updates at learning rates such as 1e-6, which are smaller than their spacing. A checkpoint
has all weights in the base's dtype, a commit in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from rl2f_core.models.modeling.attention import CausalLM


class FullModel(nn.Module):
    """A model of which all weights are trained."""

    def __init__(self, base: CausalLM) -> None:
        super().__init__()
        self.base, self.config = base, base.config
        base.requires_grad_(True)

    def get_base_model(self) -> CausalLM:
        """Return the model itself."""
        return self.base

    def forward(self, *args: object, **options: object) -> object:
        """Run the model."""
        return self.base(*args, **options)


def checkpoint_name(parameter: str) -> str:
    """Return the name in a checkpoint, that of the base model, of a parameter of `FullModel`."""
    return parameter.removeprefix("base.")


@contextlib.contextmanager
def swapped(parameters: dict[str, nn.Parameter], weights: dict[str, torch.Tensor]) -> Iterator[None]:
    """Context in which parameters have other weights; tensors are exchanged, not copied."""

    def exchange() -> None:
        for name, parameter in parameters.items():
            parameter.data, weights[name] = weights[name], parameter.data

    exchange()
    try:
        yield
    finally:
        exchange()
