"""REINFORCE++: returns of tokens, whitened over the whole batch (arXiv 2501.03262; Logic-RL, arXiv 2502.14768).

No value head, and no comparison within a group by default: a turn's reward stands on its last token, each token may
pay for its drift from the reference, and what follows is the return-to-go of every token.  The mean and the standard
deviation of all tokens of a step make them advantages, so a group of equal returns teaches as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import KLEstimator, returns_to_go
from rl2f_core.methods.objectives import BatchCredit
from rl2f_core.methods.rows import reward_row
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample


class TokenRewardConfig(BaseConfig):
    """What policy gradients over token rewards share."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount a token."""
    turn_gamma: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC)
    """A further discount a turn: below 1, an answer that comes later is worth less."""
    whiten: bool = True
    """Subtract the mean of the step's advantages, over all its tokens, and divide by their standard deviation."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """ε_low: the ratio is clipped below 1 − ε_low."""
    clip_high: float = Field(0.2, gt=0)
    """ε_high: the ratio is clipped above 1 + ε_high."""
    kl_coef: float = Field(0.0, ge=0)
    """β of the KL to the reference: what a token pays for its drift."""
    kl_in: Literal["reward", "loss"] = "reward"
    """reward: β·KL is subtracted from each token's reward; loss: it is a term of the loss, by k3."""
    kl_estimator: KLEstimator = "k1"
    """KL of a token in the reward: k1 = log π − log π_ref, k2 = ½ k1², k3 = exp(−k1) − 1 + k1."""

    def check_stage(self, stage: Any, run: Any) -> None:
        """Refuse impossible combinations; raises `ValueError`."""
        if stage.max_resamples:
            raise ValueError(
                f"stage {stage.name!r}: max_resamples {stage.max_resamples} draws groups of equal returns again, but "
                f"{stage.method.type} learns from them as well; set it to 0"
            )


class TokenReward(Method):
    """Rows of token rewards that the whole batch is credited with."""

    histories = ("dialogue",)

    def baselines(self, group: Group) -> list[list[float]] | None:
        """What is subtracted from the returns of each turn of each trainable rollout, or None."""
        return None

    def advantages(self, group: Group) -> list[list[float]]:
        """Returns of turns, less their baselines: what one group can tell before the batch is whitened."""
        returns = _returns(group, self.config.turn_gamma)
        baselines = self.baselines(group) or [[0.0] * len(r) for r in returns]
        return [[r - b for r, b in zip(*pair, strict=True)] for pair in zip(returns, baselines, strict=True)]

    def teaches(self, group: Group) -> bool:
        """A batch compares all its groups, so each of them teaches."""
        return bool(group.trainable)

    def samples(self, group: Group) -> list[Sample]:
        baselines: Sequence[list[float] | None] = self.baselines(group) or [None] * len(group.trainable)
        kl = self.config.kl_coef > 0 and self.config.kl_in == "loss"
        return [
            reward_row(rollout, self.config.gamma, self.config.turn_gamma, baseline, kl=kl)
            for rollout, baseline in zip(group.trainable, baselines, strict=True)
        ]

    def credit(self, **more: Any) -> BatchCredit:
        """How the batch is credited; `more` are fields of `BatchCredit`."""
        penalty = self.config.kl_coef if self.config.kl_in == "reward" else 0.0
        return BatchCredit(whiten=self.config.whiten, kl_coef=penalty, kl_estimator=self.config.kl_estimator, **more)

    def loss_options(self) -> dict[str, Any]:
        clips = {"clip_low": self.config.clip_low, "clip_high": self.config.clip_high}
        in_loss = self.config.kl_coef if self.config.kl_in == "loss" else 0.0
        return {**clips, "kl_coef": in_loss, "credit": self.credit()}


@register("method")
class ReinforcePP(TokenReward):
    """Whitened returns of tokens."""

    class Config(TokenRewardConfig):
        """Returns of tokens, whitened over the whole batch."""

        type: Literal["reinforce_pp"] = "reinforce_pp"
        """Name of the method."""
        baseline: Literal["batch", "group"] = Field("batch", json_schema_extra=BASIC)
        """batch: the mean of all tokens, by whitening; group: the mean of the group's members that reached the turn is
        subtracted before (REINFORCE++-baseline)."""

        def check_stage(self, stage: Any, run: Any) -> None:
            """Also refuses a group's mean of one."""
            super().check_stage(stage, run)
            if self.baseline == "group" and stage.group_size < 2:
                raise ValueError(
                    f"stage {stage.name!r}: baseline group with group_size {stage.group_size} leaves nothing to "
                    "compare with; set group_size to 2 or more, or baseline to batch"
                )

    def baselines(self, group: Group) -> list[list[float]] | None:
        if self.config.baseline == "batch":
            return None
        returns = _returns(group, self.config.turn_gamma)
        means = []
        for k in range(max(map(len, returns), default=0)):
            reached = [r[k] for r in returns if len(r) > k]
            means.append(sum(reached) / len(reached))
        return [means[: len(r)] for r in returns]


def _returns(group: Group, gamma: float) -> list[list[float]]:
    return [returns_to_go([turn.reward for turn in r.dialogue.turns], gamma) for r in group.trainable]
