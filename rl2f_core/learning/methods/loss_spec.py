"""Loss configuration that a method declares, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rl2f_core.types import TrainingSample

KLEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class ValueConfig:
    """Training of the value head on the policy's last hidden state."""

    coef: float = 0.5
    """Weight of the value loss."""
    clip: float | None = 0.2
    """Clip range of a value around its estimate before the update; None does not clip."""
    learning_rate: float | None = None
    """Peak learning rate of the head; None is the stage's."""
    trains_adapter: bool = True
    """Whether the value loss also trains the adapter."""


@dataclass(frozen=True)
class AdvantageConfig:
    """Advantages of samples with token rewards (`methods.advantages`)."""

    gae_lambda: float = 1.0
    """λ of GAE; must be 1 without a critic."""
    whiten_advantages: bool = True
    """Whiten over all tokens of the step."""
    kl_coef: float = 0.0
    """β of the KL penalty, which is subtracted from each token's reward."""
    kl_estimator: KLEstimator = "k1"
    """Estimator of the KL penalty."""
    critic: ValueConfig | None = None
    """Value head; None for returns without one."""

    def __post_init__(self) -> None:
        if self.critic is None and self.gae_lambda != 1:
            raise ValueError(
                f"AdvantageConfig: λ {self.gae_lambda} without a critic; returns without values have λ = 1."
            )


@dataclass(frozen=True)
class KLConfig:
    """Reference and divergence of the kl term (`learner.kl`)."""

    divergence: Literal["k3", "sampled_token", "full_logits", "topk_logits"] = "k3"
    """Of the sampled token (k3, or the score function of the reverse KL) or of whole distributions."""
    alpha: float = 1.0
    """For whole distributions: 0 is KL(reference ‖ policy), 1 is KL(policy ‖ reference), between them the JSD."""
    top_k: int = 100
    """For `topk_logits`: number of the policy's most likely tokens."""
    tail: bool = False
    """For `topk_logits`: merge all other tokens into one entry instead of dropping them."""
    distillation_is_clip: float | None = None
    """Weight each token by π / π_old, at most this; None weights all equally."""
    reference: Literal["base", "live", "ema"] = "base"
    """Weights of the reference: the stage's `ref_model`, the policy's, or their moving average."""
    ema_rate: float = 0.05
    """For `ema`: update rate of the moving average."""

    @property
    def compares_distributions(self) -> bool:
        """Whether the divergence needs the reference's whole distributions."""
        return self.divergence in ("full_logits", "topk_logits")


DEFAULT_KL = KLConfig()
"""k3 with the stage's `ref_model`."""


@dataclass(frozen=True)
class LossConfig:
    """Coefficients and settings of the loss terms."""

    epsilon: float = 0.2
    epsilon_high: float = 0.2
    ce_coef: float = 1.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    kl: KLConfig = DEFAULT_KL
    """Reference and divergence of the kl term."""
    advantage: AdvantageConfig | None = None
    """Advantages of samples with token rewards; None if the samples have their advantages."""

    def trains(self, sample: TrainingSample) -> bool:
        """Whether a sample has a gradient under these coefficients; entropy has one without advantage too."""
        return sample.has_gradient or (self.entropy_coef > 0 and any(sample.rl_weights))

    @property
    def critic(self) -> ValueConfig | None:
        """Training of the value head, if there is one."""
        return None if self.advantage is None else self.advantage.critic

    @property
    def uses_ema(self) -> bool:
        """Whether the loss has a KL term to the policy's moving average."""
        return self.kl_coef > 0 and self.kl.reference == "ema"

    @property
    def uses_ref_model(self) -> bool:
        """Whether the loss or the reward has a KL term to the stage's `ref_model`."""
        in_loss = self.kl_coef > 0 and self.kl.reference == "base"
        return in_loss or (self.advantage is not None and self.advantage.kl_coef > 0)


def clip_range(epsilon: float | None, epsilon_high: float | None) -> tuple[float, float]:
    """Return the clip range of a configuration; None is an infinite ε."""
    return math.inf if epsilon is None else epsilon, math.inf if epsilon_high is None else epsilon_high
