"""What a row's tokens were worth to the policy before the update: recomputed behaviour, the mask of the unlikely, and
the correction for a sampler that does not compute quite what the learner does.

RLTF-SD (arXiv 2602.02482) trains the second answer under the first question, where it was not sampled. There the
behaviour is the current policy's own log π(y_1 | x_0), so that ρ starts at 1, and a token that is all but impossible
there drops out. Both are options of a row, and the mask goes with every weighting.

Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"): tokens are drawn by an engine's μ, while the learner, with the same weights, computes π_old. The gradient of

    E_μ[ min(π_old / μ, C) · min(ρA, clip(ρ)·A) ]   with ρ = π / π_old

corrects for it with a weight of at most C, and ρ starts at 1, so that the clip bounds the update and not the mismatch.
TRL 1.16 calls this `vllm_importance_sampling_mode="token_truncate"`, and C `vllm_importance_sampling_clip_max`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rl2f_core.training.batch import weighted_positions
from rl2f_core.types import Sample


def unsettled(sample: Sample, cap: float | None = None) -> bool:
    """Whether the row has to be read by the policy before the update; `cap` is C of the correction, None without."""
    corrected = cap is not None and not sample.foreign
    return any(sample.rl) and (corrected or sample.weighting == "awr" or sample.floor is not None)


def settled(sample: Sample, logps: Sequence[float], cap: float | None = None) -> Sample:
    """The row with its behaviour (`awr`, or corrected) and without the tokens below its `floor`.

    Args:
        sample: A row.
        logps: log π of each weighted token under this very row, in nats, in order, before the update.
        cap: C of the correction of the rl stream: advantages are multiplied by min(π_old / μ, C), which is the same as
            weighting the objective, and the behaviour becomes π_old. None corrects nothing; nor is a foreign row
            corrected, whose tokens were drawn under another context.
    """
    behaviour, rl, advantages = list(sample.logprobs), list(sample.rl), list(sample.advantages)
    corrected = cap is not None and not sample.foreign
    for position, logp in zip(weighted_positions(sample), logps, strict=True):
        if corrected and rl[position]:
            advantages[position] *= importance(logp, behaviour[position], cap)
        if rl[position] and (corrected or sample.weighting == "awr"):
            behaviour[position] = logp
        if sample.floor is not None and logp < sample.floor:
            rl[position] = 0.0
    return dataclasses.replace(sample, logprobs=behaviour, rl=rl, advantages=advantages)


def importance(logp: float, sampler: float, cap: float | None) -> float:
    """min(π_old / μ, C), from both log-probabilities; C None does not truncate."""
    difference = logp - sampler
    if cap is not None and difference >= math.log(cap):
        return cap
    return math.exp(difference)


class Mismatch:
    """What the correction found: how far learner and sampler are apart, over the rl stream of corrected rows."""

    def __init__(self, cap: float) -> None:
        self.cap = cap
        self._weight = self._kl = self._importance = self._truncated = 0.0

    def add(self, sample: Sample, logps: Sequence[float]) -> None:
        """Take in a row as it came from the sampler, and log π of its weighted tokens before the update."""
        for position, logp in zip(weighted_positions(sample), logps, strict=True):
            weight = sample.rl[position]
            if not weight or sample.foreign:
                continue
            difference = logp - sample.logprobs[position]
            self._weight += weight
            self._kl += weight * (math.exp(min(difference, 700.0)) - 1 - difference)
            self._importance += weight * importance(logp, sample.logprobs[position], self.cap)
            self._truncated += weight * (difference > math.log(self.cap))

    def metrics(self) -> dict[str, float]:
        """`mismatch_kl` in nats (the estimate ρ − 1 − log ρ of KL(μ ‖ π_old)), the mean weight, the truncated share;
        nothing without a token."""
        if not self._weight:
            return {}
        return {
            "mismatch_kl": self._kl / self._weight,
            "importance/mean": self._importance / self._weight,
            "importance/truncated_frac": self._truncated / self._weight,
        }
