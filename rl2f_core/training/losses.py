"""The loss: three streams, each a mean over its own weights (methods.md §3).

    L = − mean_rl[ min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A) ] + λ · mean_ce[ − log π ] + β · mean_kl[ k3(π ‖ π_ref) ]

with ρ = exp(log π − log π_behaviour) and k3 = exp(d) − 1 − d, d = log π_ref − log π, which is never negative and whose
expectation under π is KL(π ‖ π_ref) (Schulman, "Approximating KL divergence", 2020).  It is *added*: drift costs.
What stands in the first mean is PPO's; a row may ask for another weighting of its tokens (`objective`).
`LossConfig.pull` names other divergences.  Under a critic the value loss is a fourth term (`training.critic`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rl2f_core.methods.objectives import BatchCredit, Pull
from rl2f_core.training.divergence import k3, ratio_weights, score_function
from rl2f_core.types import WEIGHTINGS

STILL = Pull()
"""k3 toward the stage's reference."""


@dataclass(frozen=True)
class LossConfig:
    """Coefficients of the streams, and what else a method declares of its loss."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    ce_coef: float = 1.0
    kl_coef: float = 0.0
    pull: Pull = STILL
    """What the kl stream pulls to, and by which divergence."""
    credit: BatchCredit | None = None
    """How rows with token rewards get their advantages; None for methods whose rows bring them."""

    @property
    def penalised(self) -> bool:
        """Drift from the stage's reference costs something, in the loss or in the reward."""
        stream = self.kl_coef > 0 and self.pull.weights == "stage"
        return stream or (self.credit is not None and self.credit.kl_coef > 0)


@dataclass(frozen=True)
class TokenBatch:
    """Aligned arrays of the weighted tokens of some rows, each [N]; NaN where reference, value or return is unknown."""

    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    rl_N: torch.Tensor
    ce_N: torch.Tensor
    kl_N: torch.Tensor
    reference_N: torch.Tensor | None = None
    weighting_N: torch.Tensor | None = None
    """Position in `types.WEIGHTINGS`; None is `ppo` for all."""
    foreign_N: torch.Tensor | None = None
    """True where the token was sampled under another context than its row's; None is nowhere."""
    values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None
    divergence_N: torch.Tensor | None = None
    """Of whole distributions, already compared; 0 where there is no kl weight."""


@dataclass(frozen=True)
class Norms:
    """Sum of each stream's weights over the whole update, so that micro-batches add up to the means."""

    rl: float
    ce: float
    kl: float


def surrogate(ratio_N: torch.Tensor, advantages_N: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """min(ρA, clip(ρ)·A), [N] (PPO, arXiv 1707.06347, eq. 7, with two ε)."""
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    return torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)


def objective(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> torch.Tensor:
    """What the rl stream maximises at each token, [N], by the weighting of its row (ρ = π / π_behaviour):

    ppo    min(ρA, clip(ρ)·A)
    is     ρ·A, unclipped importance sampling
    cispo  sg(clip(ρ))·A·log π: clipped, and yet every token keeps a gradient (arXiv 2506.13585, eq. 4)
    awr    ρ·A with ρ = 1 before the update (`training.behaviour`): advantage-weighted regression
    """
    log_ratio_N = logp_N - batch.behaviour_N
    if batch.weighting_N is None:
        return surrogate(log_ratio_N.exp(), batch.advantages_N, config)
    value_N = torch.zeros_like(logp_N)
    for code, name in enumerate(WEIGHTINGS):
        held = (batch.weighting_N == code).nonzero()[:, 0]  # apart: ρ may overflow where another weighting is asked for
        if not len(held):
            continue
        ratio, advantages = log_ratio_N[held].exp(), batch.advantages_N[held]
        if name == "ppo":
            part = surrogate(ratio, advantages, config)
        elif name == "cispo":
            part = ratio.detach().clamp(1 - config.clip_low, 1 + config.clip_high) * advantages * logp_N[held]
        else:
            part = ratio * advantages
        value_N = value_N.index_add(0, held, part)
    return value_N


def pulled(logp_N: torch.Tensor, batch: TokenBatch, pull: Pull) -> tuple[torch.Tensor, torch.Tensor]:
    """The kl stream's loss and, for the metrics, its estimate of the divergence at each token with kl weight, [M].

    Raises `ValueError` where the reference, or the divergence of whole distributions, is missing.
    """
    held_N = batch.kl_N != 0  # elsewhere the reference may be unknown, and exp(d) may overflow: inf · 0 is NaN
    logp_M = logp_N[held_N]
    if pull.form in ("full", "top_k"):
        if batch.divergence_N is None:
            raise ValueError("The divergence of whole distributions needs those of the reference.")
        loss_M = told_M = batch.divergence_N[held_N]
    else:
        if batch.reference_N is None:
            raise ValueError("A kl weight needs the reference's log-probabilities.")
        reference_M = batch.reference_N[held_N]
        loss_M = k3(logp_M, reference_M) if pull.form == "k3" else score_function(logp_M, reference_M)
        told_M = loss_M if pull.form == "k3" else logp_M - reference_M
    if pull.ratio_clip is not None:
        loss_M = loss_M * ratio_weights(logp_M, batch.behaviour_N[held_N], pull.ratio_clip)
    return loss_M, told_M.detach()


def loss(
    logp_N: torch.Tensor, batch: TokenBatch, norms: Norms, config: LossConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """This micro-batch's part of the loss, and sums for the metrics (divide each by its stream's norm).

    Raises `ValueError` where a kl weight has no reference (`pulled`).
    """
    total = logp_N.new_zeros(())
    sums: dict[str, float] = {}
    if norms.rl:
        part = -(objective(logp_N, batch, config) * batch.rl_N).sum()
        total = total + part / norms.rl
        sums["rl"] = float(part.detach())
        sums |= _ratios(logp_N.detach(), batch, config)
    if norms.ce:
        part = -(logp_N * batch.ce_N).sum()
        total = total + config.ce_coef * part / norms.ce
        sums["ce"] = float(part.detach())
    if norms.kl:
        weights_M = batch.kl_N[batch.kl_N != 0]
        loss_M, told_M = pulled(logp_N, batch, config.pull)
        total = total + config.kl_coef * (loss_M * weights_M).sum() / norms.kl
        sums["kl"] = float((told_M * weights_M).sum())
    return total, sums


def _ratios(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> dict[str, float]:
    """Sums over the rl stream of ρ, of what the clip holds and of ρ − 1 − log ρ; apart for foreign tokens (`off_…`)."""
    log_ratio_N = logp_N - batch.behaviour_N
    ratio_N = log_ratio_N.exp()
    outside_N = (ratio_N < 1 - config.clip_low) | (ratio_N > 1 + config.clip_high)
    if batch.weighting_N is not None:
        outside_N &= (batch.weighting_N == WEIGHTINGS.index("ppo")) | (batch.weighting_N == WEIGHTINGS.index("cispo"))
    active_N = batch.rl_N * (batch.advantages_N != 0)
    none_N = torch.zeros_like(outside_N) if batch.foreign_N is None else batch.foreign_N
    sums: dict[str, float] = {}
    for prefix, held in (("", ~none_N), ("off_", none_N)):
        weight_N = batch.rl_N[held]
        sums[f"{prefix}weight"] = float(weight_N.sum())
        sums[f"{prefix}ratio"] = float((ratio_N[held] * weight_N).sum())
        sums[f"{prefix}clipped"] = float((outside_N[held] * active_N[held]).sum())
        sums[f"{prefix}mismatch"] = float(((ratio_N[held] - 1 - log_ratio_N[held]) * weight_N).sum())
    return sums
