"""Value head of PPO: one linear layer on the policy's last hidden state, and its loss.

The head is not part of the adapter. It is stored only in commits.
"""

from __future__ import annotations

import torch
from torch import nn

from rl2f_core.learning.methods.loss_spec import ValueConfig


class ValueHead(nn.Linear):
    """Linear layer from hidden state to value, in float32, initialized to zero."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        super().__init__(hidden, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Return the values, [N]."""
        return super().forward(hidden_NH.float()).squeeze(1)


def value_losses(
    values_N: torch.Tensor, old_values_N: torch.Tensor, returns_N: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Return ½·max((V − R)², (clip(V, V_old ± clip) − R)²), [N], as in the code released with arXiv 1707.06347."""
    losses_N = (values_N - returns_N) ** 2
    if clip is not None:
        clipped_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        losses_N = torch.maximum(losses_N, (clipped_N - returns_N) ** 2)
    return 0.5 * losses_N


def value_loss(
    values_N: torch.Tensor,
    old_values_N: torch.Tensor,
    returns_N: torch.Tensor,
    weights_N: torch.Tensor,
    norm: float,
    critic: ValueConfig,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return this micro-batch's part of the weighted value loss, and sums for the metrics (divide each by the norm).

    Tokens without weight or return are ignored.
    """
    mask_N = (weights_N != 0) & ~returns_N.isnan()
    weights_N = torch.where(mask_N, weights_N, 0.0)
    values_N, old_values_N, returns_N = (torch.where(mask_N, x_N, 0.0) for x_N in (values_N, old_values_N, returns_N))
    part = (value_losses(values_N, old_values_N, returns_N, critic.clip) * weights_N).sum()
    outside_N = (values_N - old_values_N).abs() > (critic.clip if critic.clip is not None else float("inf"))
    sums = {"value/loss": part.detach(), "value/clip_ratio": (outside_N * weights_N).sum()}
    return critic.coef * part / norm, sums
