"""What TRL's GRPO loss supports, per sample and per option; pure functions without tensors.

`_compute_loss` of TRL 1.16 supports a 0/1 token mask, an advantage and an old logprob per token, the clipped surrogate,
and with `beta` the k3 divergence on the tokens of the mask. It does not support cross-entropy, other weights, other
divergences or tokens for the KL, other policy losses per sample, and a value head.
"""

from __future__ import annotations

from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.types import TrainingSample


def unsupported_options(options: LossConfig) -> str:
    """Return what TRL's loss does not support of a stage's loss options; empty if it supports all."""
    kl_coef, kl = options.kl_coef, options.kl
    if options.critic is not None:
        return "a value head (PPO's critic)"
    if options.entropy_coef:
        return "the entropy term"
    if kl_coef and (kl.divergence != "k3" or kl.distillation_is_clip is not None):
        return f"the divergence {kl.divergence!r}: its beta weights k3 of the sampled token"
    if kl_coef and kl.reference != "base":
        return f"the reference {kl.reference!r}"
    return ""


def unsupported_sample(sample: TrainingSample, kl_coef: float) -> str:
    """Return what TRL's loss does not support of a sample; with `kl_coef` 0 its kl weights are ignored."""
    if any(sample.ce_weights):
        return "cross-entropy (the ce term)"
    if any(w not in (0, 1) for w in sample.rl_weights):
        return "token weights other than 0 and 1"
    if sample.policy_loss != "ppo":
        return f"the policy loss {sample.policy_loss!r} of single samples"
    if sample.min_logprob is not None:
        return "min_logprob of single samples"
    if kl_coef and list(map(float, sample.kl_weights)) != list(map(float, sample.rl_weights)):
        return "kl weights that differ from the rl weights"
    if kl_coef and sample.reference_prompt_ids is not None:
        return "another prompt for the reference"
    return ""
