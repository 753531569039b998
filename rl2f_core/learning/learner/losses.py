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

CLIPPED = [POLICY_LOSSES.index("ppo"), POLICY_LOSSES.index("cispo")]


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
        indices = (batch.policy_loss_N == code).nonzero()[:, 0]  # separate: ρ of another loss's tokens may overflow
        if not len(indices):
            continue
        ratio, advantages = log_ratio_N[indices].exp(), batch.advantages_N[indices]
        if name == "ppo":
            part = clipped_surrogate(ratio, advantages, config)
        elif name == "cispo":
            part = ratio.detach().clamp(1 - config.epsilon, 1 + config.epsilon_high) * advantages * logp_N[indices]
        else:
            part = ratio * advantages
        value_N = value_N.index_add(0, indices, part)
    return value_N


def kl_loss(logp_N: torch.Tensor, batch: TokenBatch, kl: KLConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the kl term and the estimated divergence, both for the M tokens with kl weight, [M].

    Raises:
        ValueError: The reference, or the divergence of whole distributions, is missing.
    """
    mask_N = batch.kl_N != 0  # other tokens may have no reference, and exp(d) may overflow: inf · 0 is NaN
    logp_M = logp_N[mask_N]
    if kl.compares_distributions:
        if batch.divergence_N is None:
            raise ValueError("The divergence of whole distributions needs those of the reference.")
        loss_M = estimate_M = batch.divergence_N[mask_N]
    else:
        if batch.reference_N is None:
            raise ValueError("A kl weight needs the reference's log-probabilities.")
        reference_M = batch.reference_N[mask_N]
        loss_M = k3(logp_M, reference_M) if kl.divergence == "k3" else score_function(logp_M, reference_M)
        estimate_M = loss_M if kl.divergence == "k3" else logp_M - reference_M
    if kl.distillation_is_clip is not None:
        loss_M = loss_M * ratio_weights(logp_M, batch.old_logprobs_N[mask_N], kl.distillation_is_clip)
    return loss_M, estimate_M.detach()


def loss(
    logp_N: torch.Tensor, batch: TokenBatch, norms: LossNormalizers, config: LossConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return this micro-batch's part of the loss, and sums for the metrics (divide each by its term's norm).

    Raises:
        ValueError: A kl weight has no reference (`kl_loss`), or the entropies are missing.
    """
    total = logp_N.new_zeros(())
    sums: dict[str, float] = {}
    if norms.rl:
        part = -(policy_objective(logp_N, batch, config) * batch.rl_N).sum()
        total = total + part / norms.rl
        sums["rl"] = float(part.detach())
        sums |= _ratio_sums(logp_N.detach(), batch, config)
        if config.entropy_coef:
            if batch.entropy_N is None:
                raise ValueError("The entropy term needs the policy's entropies.")
            part = -(batch.entropy_N * batch.rl_N).sum()
            total = total + config.entropy_coef * part / norms.rl
            sums["negative_entropy"] = float(part.detach())
    if norms.ce:
        part = -(logp_N * batch.ce_N).sum()
        total = total + config.ce_coef * part / norms.ce
        sums["ce"] = float(part.detach())
    if norms.kl:
        weights_M = batch.kl_N[batch.kl_N != 0]
        loss_M, estimate_M = kl_loss(logp_N, batch, config.kl)
        total = total + config.kl_coef * (loss_M * weights_M).sum() / norms.kl
        sums["kl"] = float((estimate_M * weights_M).sum())
    return total, sums


def _ratio_sums(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> dict[str, float]:
    """Return weighted sums of ρ, of clipped tokens and of ρ − 1 − log ρ; `off_…` for off-context tokens."""
    log_ratio_N = logp_N - batch.old_logprobs_N
    ratio_N = log_ratio_N.exp()
    outside_N = (ratio_N < 1 - config.epsilon) | (ratio_N > 1 + config.epsilon_high)
    if batch.policy_loss_N is not None:
        outside_N &= torch.isin(batch.policy_loss_N, torch.tensor(CLIPPED, device=logp_N.device))
    active_N = batch.rl_N * (batch.advantages_N != 0)
    off_context_N = torch.zeros_like(outside_N) if batch.off_context_N is None else batch.off_context_N
    sums: dict[str, float] = {}
    for prefix, mask_N in (("", ~off_context_N), ("off_", off_context_N)):
        weight_N = batch.rl_N[mask_N]
        sums[f"{prefix}weight"] = float(weight_N.sum())
        sums[f"{prefix}ratio"] = float((ratio_N[mask_N] * weight_N).sum())
        sums[f"{prefix}clipped"] = float((outside_N[mask_N] * active_N[mask_N]).sum())
        sums[f"{prefix}mismatch"] = float(((ratio_N[mask_N] - 1 - log_ratio_N[mask_N]) * weight_N).sum())
    return sums
