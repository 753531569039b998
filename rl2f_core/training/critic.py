"""The value head of PPO: one linear layer on the policy's last hidden state, its loss and its metrics.

It is no part of the adapter: what is exported loads in PEFT as before, and the head is kept with the commits alone.
"""

from __future__ import annotations

import torch
from torch import nn

from rl2f_core.methods.objectives import Critic


class ValueHead(nn.Linear):
    """Hidden state → value, in float32; it starts at zero, so a fresh one says nothing."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        super().__init__(hidden, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Values, [N]."""
        return super().forward(hidden_NH.float()).squeeze(1)


def value_losses(
    values_N: torch.Tensor, before_N: torch.Tensor, returns_N: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """½·max((V − R)², (clip(V, V_before ± clip) − R)²) of each token, [N] (the released code of arXiv 1707.06347)."""
    losses_N = (values_N - returns_N) ** 2
    if clip is not None:
        clipped_N = before_N + (values_N - before_N).clamp(-clip, clip)
        losses_N = torch.maximum(losses_N, (clipped_N - returns_N) ** 2)
    return 0.5 * losses_N


def value_loss(
    values_N: torch.Tensor,
    before_N: torch.Tensor,
    returns_N: torch.Tensor,
    weights_N: torch.Tensor,
    norm: float,
    critic: Critic,
) -> tuple[torch.Tensor, dict[str, float]]:
    """This micro-batch's part of the weighted value loss, and sums for the metrics (divide each by the norm).

    Tokens without weight or without a known return are left out.
    """
    held_N = (weights_N != 0) & ~returns_N.isnan()
    values_N, before_N, returns_N, weights_N = (x[held_N] for x in (values_N, before_N, returns_N, weights_N))
    part = (value_losses(values_N, before_N, returns_N, critic.clip) * weights_N).sum()
    outside_N = (values_N - before_N).abs() > (critic.clip if critic.clip is not None else float("inf"))
    sums = {"value/loss": float(part.detach()), "value/clip_frac": float((outside_N * weights_N).sum())}
    return critic.coef * part / norm, sums
