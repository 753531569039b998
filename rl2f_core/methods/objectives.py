"""What a method may declare of its loss beyond coefficients: plain values, so that the trainer knows no method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl2f_core.methods.credit import KLEstimator


@dataclass(frozen=True)
class Critic:
    """A value head on the policy's last hidden state, and how it is trained."""

    coef: float = 0.5
    """Weight of the value loss beside the policy's."""
    clip: float | None = 0.2
    """How far a value may move from the one at crediting before its loss stops to fall; None sets no limit."""
    learning_rate: float | None = None
    """Peak rate of the head; None takes the stage's."""
    shared: bool = True
    """The value loss trains the adapter too, not the head alone."""


@dataclass(frozen=True)
class BatchCredit:
    """How the rows of a step that carry token rewards get their advantages (`methods.batch_credit`)."""

    lam: float = 1.0
    """λ of the generalised advantage estimate; without a critic it must be 1."""
    whiten: bool = True
    """Subtract the mean over all tokens of the step and divide by their standard deviation."""
    kl_coef: float = 0.0
    """β of the penalty on drift from the reference, subtracted from each token's reward."""
    kl_estimator: KLEstimator = "k1"
    """How a token's drift is estimated."""
    critic: Critic | None = None
    """The value head, or None for returns without one."""

    def __post_init__(self) -> None:
        if self.critic is None and self.lam != 1:
            raise ValueError(f"BatchCredit: λ {self.lam} without a critic; returns without values have λ = 1.")


@dataclass(frozen=True)
class Pull:
    """What the kl stream pulls to, and by which divergence (`training.divergence`)."""

    form: Literal["k3", "sampled", "full", "top_k"] = "k3"
    """Of the sampled token alone (k3, or the score function of the reverse KL), or of whole distributions."""
    alpha: float = 1.0
    """For whole distributions: 0 is KL(reference ‖ policy), 1 is KL(policy ‖ reference), between them the mixture."""
    top_k: int = 100
    """For `top_k`: tokens that the policy finds likeliest."""
    tail: bool = False
    """For `top_k`: put all other tokens into one more, instead of leaving them out."""
    ratio_clip: float | None = None
    """Weigh each token by π / π_behaviour, at most this; None weighs all alike."""
    weights: Literal["stage", "live", "ema"] = "stage"
    """Whose weights the reference has: the stage's `reference`, the policy's own, or their moving average."""
    rate: float = 0.05
    """For `ema`: the share of the policy's weights that each update mixes in."""
