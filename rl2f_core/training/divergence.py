"""Divergences of the policy from a reference, token by token: of the sampled token alone, or of whole distributions.

No gradient flows into the reference.  The gradient of the k3 estimate is not that of what it estimates: averaged over
the policy's samples it is the gradient of KL(reference ‖ policy), while `sampled` has that of KL(policy ‖ reference).
Whole distributions are compared as in SDPO (arXiv 2601.20802) and TRL 1.16.
"""

from __future__ import annotations

import math

import torch

from rl2f_core.methods.objectives import Pull


def k3(logp_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(π ‖ π_ref) at each token, [N], ≥ 0."""
    difference_N = reference_N - logp_N
    return difference_N.exp() - 1 - difference_N


def score_function(logp_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """(log π − log π_ref)·log π at each token, [N], its first factor held fixed: its value means nothing, its gradient
    averages over the policy's samples to that of KL(π ‖ π_ref)."""
    return (logp_N - reference_N).detach() * logp_N


def ratio_weights(logp_N: torch.Tensor, behaviour_N: torch.Tensor, limit: float) -> torch.Tensor:
    """min(π / π_behaviour, limit) at each token, [N], without gradient."""
    return (logp_N - behaviour_N).detach().clamp(-20, 20).exp().clamp(max=limit)


def divergence(policy_NV: torch.Tensor, reference_NV: torch.Tensor, alpha: float) -> torch.Tensor:
    """Between two sets of log-probabilities, [N], in nats, ≥ 0 where both sum to one.

    Args:
        policy_NV: log π.
        reference_NV: log π_ref over the same tokens.
        alpha: 0 is KL(π_ref ‖ π), 1 is KL(π ‖ π_ref); between them (1 − α)·KL(π ‖ m) + α·KL(π_ref ‖ m) with the mixture
            m = (1 − α)·π + α·π_ref, which is Jensen-Shannon's at ½ (generalised JSD, arXiv 2306.13649).
    """
    if alpha == 0:
        return _kl(reference_NV, policy_NV)
    if alpha == 1:
        return _kl(policy_NV, reference_NV)
    mixture_NV = torch.logaddexp(policy_NV + math.log1p(-alpha), reference_NV + math.log(alpha))
    return (1 - alpha) * _kl(policy_NV, mixture_NV) + alpha * _kl(reference_NV, mixture_NV)


def likeliest(
    policy_NV: torch.Tensor, reference_NV: torch.Tensor, top_k: int, *, tail: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sets of log-probabilities on the policy's `top_k` likeliest tokens: with all other tokens as one more, or
    without them and made to sum to one; [N, top_k + 1] or [N, top_k]."""
    places_NK = policy_NV.topk(min(top_k, policy_NV.shape[1]), dim=1).indices
    held = [logp_NV.gather(1, places_NK) for logp_NV in (policy_NV, reference_NV)]
    if not tail:
        first, second = (logp_NK.log_softmax(1) for logp_NK in held)
        return first, second
    first, second = (_with_rest(logp_NK) for logp_NK in held)
    return first, second


def of_distributions(policy_NV: torch.Tensor, reference_NV: torch.Tensor, pull: Pull) -> torch.Tensor:
    """The divergence of `full` and `top_k`, [N]."""
    if pull.form == "top_k":
        policy_NV, reference_NV = likeliest(policy_NV, reference_NV, pull.top_k, tail=pull.tail)
    return divergence(policy_NV, reference_NV, pull.alpha)


def _kl(first_NV: torch.Tensor, second_NV: torch.Tensor) -> torch.Tensor:
    return (first_NV.exp() * (first_NV - second_NV)).sum(1)


def _with_rest(logp_NK: torch.Tensor) -> torch.Tensor:
    total_N1 = logp_NK.logsumexp(1, keepdim=True).clamp(max=-1e-7)  # rounding may leave less than nothing
    return torch.cat([logp_NK, torch.log(-torch.expm1(total_N1))], 1)
