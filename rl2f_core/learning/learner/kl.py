"""KL divergences of the policy from the reference, per token.

No gradient flows into the reference. Averaged over the policy's samples, the gradient of `k3` is that of
KL(reference ‖ policy), while `score_function` has the gradient of KL(policy ‖ reference). The divergences of whole
distributions follow SDPO (arXiv 2601.20802) and TRL 1.16.
"""

from __future__ import annotations

import math

import torch

from rl2f_core.learning.methods.loss_spec import KLConfig


def k3(logp_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate of KL(π ‖ π_ref) of each token, [N], ≥ 0."""
    difference_N = reference_N - logp_N
    return difference_N.exp() - 1 - difference_N


def score_function(logp_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """Return (log π − log π_ref)·log π of each token, [N], with a constant first factor.

    Only the gradient is meaningful: its mean over the policy's samples is that of KL(π ‖ π_ref).
    """
    return (logp_N - reference_N).detach() * logp_N


def ratio_weights(logp_N: torch.Tensor, old_logprobs_N: torch.Tensor, limit: float) -> torch.Tensor:
    """Return min(π / π_old, limit) of each token, [N], without gradient."""
    return (logp_N - old_logprobs_N).detach().clamp(-20, 20).exp().clamp(max=limit)


def divergence(policy_NV: torch.Tensor, reference_NV: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return the divergence of two log distributions in nats, [N].

    Args:
        policy_NV: log π.
        reference_NV: log π_ref over the same tokens.
        alpha: 0 is KL(π_ref ‖ π), 1 is KL(π ‖ π_ref). Values between give the generalized Jensen-Shannon divergence
            (arXiv 2306.13649): (1 − α)·KL(π ‖ m) + α·KL(π_ref ‖ m) with m = (1 − α)·π + α·π_ref.
    """
    if alpha == 0:
        return _kl(reference_NV, policy_NV)
    if alpha == 1:
        return _kl(policy_NV, reference_NV)
    mixture_NV = torch.logaddexp(policy_NV + math.log1p(-alpha), reference_NV + math.log(alpha))
    return (1 - alpha) * _kl(policy_NV, mixture_NV) + alpha * _kl(reference_NV, mixture_NV)


def top_k_logprobs(
    policy_NV: torch.Tensor, reference_NV: torch.Tensor, top_k: int, *, tail: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both log distributions on the policy's `top_k` most likely tokens.

    With `tail` all other tokens form one more entry, [N, top_k + 1]. Otherwise both are renormalized, [N, top_k].
    """
    indices_NK = policy_NV.topk(min(top_k, policy_NV.shape[1]), dim=1).indices
    policy_NK, reference_NK = policy_NV.gather(1, indices_NK), reference_NV.gather(1, indices_NK)
    if tail:
        return _append_tail(policy_NK), _append_tail(reference_NK)
    return policy_NK.log_softmax(1), reference_NK.log_softmax(1)


def distribution_divergence(policy_NV: torch.Tensor, reference_NV: torch.Tensor, kl: KLConfig) -> torch.Tensor:
    """Return the divergence `full_logits` or `topk_logits`, [N]."""
    if kl.divergence == "topk_logits":
        policy_NV, reference_NV = top_k_logprobs(policy_NV, reference_NV, kl.top_k, tail=kl.tail)
    return divergence(policy_NV, reference_NV, kl.alpha)


def _kl(first_NV: torch.Tensor, second_NV: torch.Tensor) -> torch.Tensor:
    return (first_NV.exp() * (first_NV - second_NV)).sum(1)


def _append_tail(logp_NK: torch.Tensor) -> torch.Tensor:
    total_N1 = logp_NK.logsumexp(1, keepdim=True).clamp(max=-1e-7)  # rounding may give a sum above 1
    return torch.cat([logp_NK, torch.log(-torch.expm1(total_N1))], 1)
