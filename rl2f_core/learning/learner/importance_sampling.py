"""Logprobs under π_old before the update: recomputation, the `min_logprob` mask, and truncated importance sampling.

RLTF-SD (arXiv 2602.02482) trains the second attempt as an answer to the first prompt, under which it was not sampled.
The old logprobs of policy loss `awr` are therefore the current log π(y_1 | x_0), so that ρ starts at 1.
Tokens below `TrainingSample.min_logprob` leave the rl term. Both options work with every sample.

Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"): an engine samples tokens from μ, while the learner computes π_old with the same weights. The gradient of

    E_μ[ min(π_old / μ, C) · min(ρA, clip(ρ)·A) ]   with ρ = π / π_old

corrects this mismatch with a weight of at most C. ρ starts at 1, so the clip bounds the update and not the mismatch.
TRL 1.16: `vllm_importance_sampling_mode="token_truncate"`, with C as `vllm_importance_sampling_clip_max`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.types import TrainingSample

if TYPE_CHECKING:
    from rl2f_core.learning.learner.scoring import Scorer


def needs_old_logprobs(sample: TrainingSample, clip_max: float | None = None) -> bool:
    """Return whether the policy must score a trained sample before the update; `clip_max` None corrects nothing.

    Tokens without advantage count too: they have a ratio, and in other terms a gradient.
    """
    corrected = clip_max is not None and not sample.off_context
    return any(sample.rl_weights) and (corrected or sample.policy_loss == "awr" or sample.min_logprob is not None)


def with_old_logprobs(sample: TrainingSample, logps: Sequence[float], clip_max: float | None = None) -> TrainingSample:
    """Return the sample with recomputed old logprobs, correction and `min_logprob` mask.

    Args:
        sample: A sample; its own logprobs are those of the sampler.
        logps: log π of its weighted tokens before the update, in nats.
        clip_max: C of the correction; None corrects nothing. The correction multiplies advantages by min(π_old / μ, C),
            which equals weighting the objective. Off-context samples are never corrected.
    """
    old_logprobs, rl, advantages = list(sample.logprobs), list(sample.rl_weights), list(sample.advantages)
    corrected = clip_max is not None and not sample.off_context
    for position, logp in zip(sample.weighted_positions, logps, strict=True):
        if corrected and rl[position]:
            advantages[position] *= truncated_ratio(logp, old_logprobs[position], clip_max)
        if rl[position] and (corrected or sample.policy_loss == "awr"):
            old_logprobs[position] = logp
        if sample.min_logprob is not None and logp < sample.min_logprob:
            rl[position] = 0.0
    return dataclasses.replace(sample, logprobs=old_logprobs, rl_weights=rl, advantages=advantages)


def truncated_ratio(logp: float, sampling_logp: float, clip_max: float | None) -> float:
    """Return min(π_old / μ, C) from both logprobs; with C None, π_old / μ."""
    difference = logp - sampling_logp
    if clip_max is not None and difference >= math.log(clip_max):
        return clip_max
    return math.exp(difference)


def sampler_mismatch(scored: Iterable[tuple[TrainingSample, Sequence[float]]], clip_max: float) -> dict[str, float]:
    """Return metrics of the difference between learner and sampler, over the rl term of corrected samples.

    Replayed samples, which earlier weights generated, are left out.
    These are `sampling/kl` (KL(μ ‖ π_old) in nats, by ρ − 1 − log ρ) and the ratio's mean and truncated fraction;
    without a token the result is empty.

    Args:
        scored: Uncorrected samples with log π of their weighted tokens before the update.
        clip_max: C of the correction.
    """
    total = kl = ratio = truncated = 0.0
    for sample, logps in scored:
        for position, logp in zip(sample.weighted_positions, logps, strict=True):
            weight = sample.rl_weights[position]
            if not weight or sample.off_context or sample.policy_loss == "importance_sampling":
                continue
            difference = logp - sample.logprobs[position]
            total += weight
            kl += weight * (math.exp(min(difference, 700.0)) - 1 - difference)
            ratio += weight * truncated_ratio(logp, sample.logprobs[position], clip_max)
            truncated += weight * (difference > math.log(clip_max))
    if not total:
        return {}
    return {
        "sampling/kl": kl / total,
        "sampling/importance_sampling_ratio/mean": ratio / total,
        "sampling/importance_sampling_ratio/truncated_frac": truncated / total,
    }


def recompute_old_logprobs(
    samples: Sequence[TrainingSample], clip_max: float | None, scorer: Scorer, options: LossConfig
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Apply `with_old_logprobs` to the samples of a step that need it; also return metrics.

    Args:
        samples: All samples of the step.
        clip_max: C of the correction; None corrects nothing.
        scorer: Scores with the weights before the update.
        options: Decides which samples are trained.
    """
    stale = [sample for sample in samples if options.trains(sample) and needs_old_logprobs(sample, clip_max)]
    scores = scorer.score(stale, scorer.logprobs)
    scored = [(sample, logps) for sample, logps in zip(stale, scores, strict=True) if logps]
    updated = {id(sample): with_old_logprobs(sample, logps, clip_max) for sample, logps in scored}
    maskable = [sample for sample in stale if needs_old_logprobs(sample)]
    before = sum(sum(map(bool, sample.rl_weights)) for sample in maskable)
    after = sum(sum(map(bool, updated[id(sample)].rl_weights)) for sample in maskable if id(sample) in updated)
    metrics = {"off_context/masked_frac": 1 - after / before} if before else {}
    if clip_max is not None:
        metrics |= sampler_mismatch(scored, clip_max)
    return [updated.get(id(sample), sample) for sample in samples], metrics
