"""The training loss: a mean over tokens for each of the terms rl, ce and kl.

    L = − mean_rl[ min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A) ] + λ · mean_ce[ − log π ] + β · mean_kl[ k3(π ‖ π_ref) ]
        − c · mean_rl[ H(π) ]

Here ρ = exp(log π − log π_old), and H(π) = − Σ_v π(v) log π(v) is the entropy of the whole next-token distribution (the
entropy bonus of arXiv 1707.06347, eq. 9; c is `entropy_coef`). The terms rl, kl and entropy use log π at the sampling
temperature, ce at temperature 1. Each mean is over all samples of an update, also those of groups with equal returns,
by their weights of that term. A sample may select another policy loss (`policy_objective`), `LossConfig.kl` another
divergence. Under a critic, `learner.value_head` adds the value loss. Sources: rl2f_core/learning/methods/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rl2f_core.learning.learner.kl import k3, ratio_weights, score_function
from rl2f_core.learning.methods.loss_spec import KLConfig, LossConfig
from rl2f_core.types import POLICY_LOSSES

PPO, CISPO = POLICY_LOSSES.index("ppo"), POLICY_LOSSES.index("cispo")


@dataclass(frozen=True)
class TokenBatch:
    """Per-token arrays of the weighted tokens of some samples, each [N]; NaN if a value is unknown."""

    old_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    rl_N: torch.Tensor
    ce_N: torch.Tensor
    kl_N: torch.Tensor
    reference_N: torch.Tensor | None = None
    policy_loss_N: torch.Tensor | None = None
    """Index into `types.POLICY_LOSSES`; None is `ppo` for all."""
    allowed_NK: torch.Tensor | None = None
    """Tokens over which the probability is normalized (`logprobs.restrict`); None for all tokens everywhere."""
    off_context_N: torch.Tensor | None = None
    """True for tokens sampled under another prompt than their sample's; None for no token."""
    values_N: torch.Tensor | None = None
    returns_N: torch.Tensor | None = None
    divergence_N: torch.Tensor | None = None
    """Divergence of whole distributions; 0 for tokens without kl weight."""
    entropy_N: torch.Tensor | None = None
    """Entropy of the policy in nats; required with `entropy_coef`."""
    has_kl: bool = True
    """Whether any token has kl weight; the others need no reference."""


@dataclass(frozen=True)
class LossNormalizers:
    """Sum of each term's weights over the whole update, so that micro-batches add up to the means."""

    rl: float
    ce: float
    kl: float


def clipped_surrogate(ratio_N: torch.Tensor, advantages_N: torch.Tensor, config: LossConfig) -> torch.Tensor:
    """Return min(ρA, clip(ρ)·A), [N] (PPO, arXiv 1707.06347, eq. 7, with two ε)."""
    clipped_N = ratio_N.clamp(1 - config.epsilon, 1 + config.epsilon_high)
    return torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)


def policy_objective(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> torch.Tensor:
    """Return the objective of the rl term for each token, [N], by its sample's policy loss.

    ppo                  min(ρA, clip(ρ)·A)
    importance_sampling  ρ·A, unclipped
    cispo                sg(clip(ρ))·A·log π: clipped, but every token has a gradient (arXiv 2506.13585, eq. 4)
    awr                  ρ·A with ρ = 1 before the update (`learner.importance_sampling`)
    """
    log_ratio_N = logp_N - batch.old_logprobs_N
    if batch.policy_loss_N is None:
        return clipped_surrogate(log_ratio_N.exp(), batch.advantages_N, config)
    value_N = torch.zeros_like(logp_N)
    for code, name in enumerate(POLICY_LOSSES):
        is_own_N = batch.policy_loss_N == code
        ratio_N = torch.where(is_own_N, log_ratio_N, 0.0).exp()  # ρ of another loss's tokens may overflow
        if name == "ppo":
            part_N = clipped_surrogate(ratio_N, batch.advantages_N, config)
        elif name == "cispo":
            part_N = ratio_N.detach().clamp(1 - config.epsilon, 1 + config.epsilon_high) * batch.advantages_N * logp_N
        else:
            part_N = ratio_N * batch.advantages_N
        value_N = torch.where(is_own_N, part_N, value_N)
    return value_N


def kl_loss(logp_N: torch.Tensor, batch: TokenBatch, kl: KLConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the kl term and the estimated divergence, both [N] and 0 for tokens without kl weight.

    Raises:
        ValueError: The reference, or the divergence of whole distributions, is missing.
    """
    is_weighted_N = batch.kl_N != 0  # other tokens may have no reference, and exp(d) may overflow: inf · 0 is NaN
    if kl.compares_distributions:
        if batch.divergence_N is None:
            raise ValueError("The divergence of whole distributions needs those of the reference.")
        loss_N = estimate_N = torch.where(is_weighted_N, batch.divergence_N, 0.0)
    else:
        if batch.reference_N is None:
            raise ValueError("A kl weight needs the reference's log-probabilities.")
        own_N, reference_N = (torch.where(is_weighted_N, x_N, 0.0) for x_N in (logp_N, batch.reference_N))
        loss_N = k3(own_N, reference_N) if kl.divergence == "k3" else score_function(own_N, reference_N)
        estimate_N = loss_N if kl.divergence == "k3" else own_N - reference_N
    if kl.distillation_is_clip is not None:
        weights_N = ratio_weights(logp_N, batch.old_logprobs_N, kl.distillation_is_clip)
        loss_N = loss_N * torch.where(is_weighted_N, weights_N, 0.0)
    return loss_N, estimate_N.detach()


def loss(
    logp_N: torch.Tensor, batch: TokenBatch, norms: LossNormalizers, config: LossConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return this micro-batch's part of the loss, and sums for the metrics (divide each by its term's norm).

    Nothing here waits for the device: the sums are tensors without gradient, which a caller reads after its backward
    pass.

    Raises:
        ValueError: A kl weight has no reference (`kl_loss`), or the entropies are missing.
    """
    total = logp_N.new_zeros(())
    sums: dict[str, torch.Tensor] = {}
    if norms.rl:
        part = -(policy_objective(logp_N, batch, config) * batch.rl_N).sum()
        total = total + part / norms.rl
        sums["rl"] = part.detach()
        sums |= _ratio_sums(logp_N.detach(), batch, config)
        if config.entropy_coef:
            if batch.entropy_N is None:
                raise ValueError("The entropy term needs the policy's entropies.")
            part = -(batch.entropy_N * batch.rl_N).sum()
            total = total + config.entropy_coef * part / norms.rl
            sums["negative_entropy"] = part.detach()
    if norms.ce:
        part = -(logp_N * batch.ce_N).sum()
        total = total + config.ce_coef * part / norms.ce
        sums["ce"] = part.detach()
    if norms.kl and batch.has_kl:
        loss_N, estimate_N = kl_loss(logp_N, batch, config.kl)
        total = total + config.kl_coef * (loss_N * batch.kl_N).sum() / norms.kl
        sums["kl"] = (estimate_N * batch.kl_N).sum()
    return total, sums


def _ratio_sums(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> dict[str, torch.Tensor]:
    """Return weighted sums of ρ, of clipped tokens and of ρ − 1 − log ρ; `off_…` for off-context tokens, if any."""
    log_ratio_N = logp_N - batch.old_logprobs_N
    ratio_N = log_ratio_N.exp()
    below_N, above_N = ratio_N < 1 - config.epsilon, ratio_N > 1 + config.epsilon_high
    clipped_N = torch.where(batch.advantages_N > 0, above_N, below_N)  # min(ρA, clip(ρ)·A) = clip(ρ)·A
    if batch.policy_loss_N is not None:
        is_cispo_N = batch.policy_loss_N == CISPO
        clipped_N = torch.where(is_cispo_N, below_N | above_N, clipped_N) & (is_cispo_N | (batch.policy_loss_N == PPO))
    values = {
        "weight": batch.rl_N,
        "ratio": ratio_N * batch.rl_N,
        "clipped": clipped_N * batch.rl_N * (batch.advantages_N != 0),
        "mismatch": (ratio_N - 1 - log_ratio_N) * batch.rl_N,
    }
    off_N = batch.off_context_N
    if off_N is None:
        return {name: value_N.sum() for name, value_N in values.items()}
    return {name: torch.where(off_N, 0.0, value_N).sum() for name, value_N in values.items()} | {
        f"off_{name}": torch.where(off_N, value_N, 0.0).sum() for name, value_N in values.items()
    }
