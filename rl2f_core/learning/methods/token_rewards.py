"""Policy gradients over token rewards, whose advantages need the whole batch.

A turn's reward is at its last token, minus an optional KL penalty per token.

`reinforce_pp` (REINFORCE++, arXiv 2501.03262; Logic-RL, arXiv 2502.14768): advantages are the returns-to-go of all
tokens of a step, whitened. There is no value head and by default no group baseline, so groups of equal returns have a
learning signal too.

`ppo` (arXiv 1707.06347, 1506.02438): GAE over the tokens of a dialogue. The value head takes the policy's last hidden
state before each token. It starts at zero, so with λ = 1 the first advantages are plain returns. The stage sets
`minibatches` and `num_iterations`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeVar

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.errors import FieldValueError, refuse_ineffective
from rl2f_core.learning.methods.advantages import returns_to_go
from rl2f_core.learning.methods.base import Method, refuse_random_rewards, refuse_unused
from rl2f_core.learning.methods.loss_spec import AdvantageConfig, KLEstimator, LossConfig, ValueConfig, clip_range
from rl2f_core.learning.methods.samples import token_reward_sample
from rl2f_core.registry import register
from rl2f_core.types import Group, TrainingSample

FEWER_TOKENS = "an attempt that fewer tokens follow, such as a correct one, is worth more"
"""Why discounts per token do not support random rewards."""


class TokenRewardConfig(BaseConfig):
    """Settings of policy gradients over token rewards."""

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token."""
    turn_gamma: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC_FIELD)
    """Additional discount per turn: below 1, later answers have lower returns."""
    whiten_advantages: bool = True
    """Subtract the mean over all tokens of the step and divide by the standard deviation."""
    epsilon: float | None = Field(0.2, gt=0, lt=1)
    """ε_low: the ratio is clipped below 1 − ε_low; None does not clip it below."""
    epsilon_high: float | None = Field(0.2, gt=0)
    """ε_high: the ratio is clipped above 1 + ε_high; None does not clip it above."""
    kl_coef: float = Field(0.0, ge=0)
    """β of the KL to the reference."""
    entropy_coef: float = Field(0.0, ge=0)
    """c of the entropy term: the loss contains −c times the mean entropy of the sampled tokens' distributions. Above 0,
    groups with equal returns have a gradient too."""
    kl_in: Literal["reward", "loss"] = "reward"
    """reward: subtract β·KL from each token's reward; loss: add a kl term (k3) to the loss."""
    kl_estimator: KLEstimator = "k1"
    """KL of a token in the reward: k1 = log π − log π_ref, k2 = ½ k1², k3 = exp(−k1) − 1 + k1."""

    def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
        """Refuse impossible combinations; raises `ValueError`."""
        if stage.max_group_resamples:
            raise FieldValueError(
                f"stage {stage.name!r}: max_group_resamples {stage.max_group_resamples} replaces groups of equal "
                f"returns, but {stage.method.type} learns from them as well; set it to 0",
                *run.loc_of(stage, "max_group_resamples"),
            )
        if self.kl_in == "loss":
            refuse_unused(stage, run, "with kl_in loss, whose term is k3", "kl_estimator")
        if self.gamma < 1:
            refuse_random_rewards(stage, run, FEWER_TOKENS, "set method.gamma to 1")


TokenRewardConfigT = TypeVar("TokenRewardConfigT", bound=TokenRewardConfig)


class TokenReward(Method[TokenRewardConfigT]):
    """Samples with token rewards, whose advantages need the whole batch."""

    prompt_modes = ("append",)

    @property
    def turn_discount(self) -> float:
        return self.config.turn_gamma

    @property
    def compares_groups(self) -> bool:
        return True

    def baselines(self, group: Group) -> list[list[float]]:
        """Return the baseline of each turn of each trainable rollout; 0 by default."""
        return [[0.0] * len(r.dialogue.turns) for r in group.trainable]

    def advantages(self, group: Group) -> list[list[float]]:
        """Return the turns' returns minus baselines, before whitening."""
        pairs = zip(_returns(group, self.config.turn_gamma), self.baselines(group), strict=True)
        return [[r - b for r, b in zip(*pair, strict=True)] for pair in pairs]

    def has_learning_signal(self, group: Group) -> bool:
        """Return whether any rollout is trainable if the step compares all groups, otherwise as `Method`."""
        return bool(group.trainable) if self.compares_groups else super().has_learning_signal(group)

    def samples(self, group: Group) -> list[TrainingSample]:
        kl = self.config.kl_coef > 0 and self.config.kl_in == "loss"
        return [
            token_reward_sample(rollout, self.config.gamma, self.config.turn_gamma, baseline, kl=kl)
            for rollout, baseline in zip(group.trainable, self.baselines(group), strict=True)
        ]

    def advantage_config(self, lam: float = 1.0, critic: ValueConfig | None = None) -> AdvantageConfig:
        """Return the configuration of the batch advantages."""
        penalty = self.config.kl_coef if self.config.kl_in == "reward" else 0.0
        return AdvantageConfig(lam, self.config.whiten_advantages, penalty, self.config.kl_estimator, critic)

    def loss_options(self) -> LossConfig:
        config = self.config
        in_loss = config.kl_coef if config.kl_in == "loss" else 0.0
        return LossConfig(
            *clip_range(config.epsilon, config.epsilon_high),
            kl_coef=in_loss,
            entropy_coef=config.entropy_coef,
            advantage=self.advantage_config(),
        )


def _returns(group: Group, gamma: float) -> list[list[float]]:
    return [returns_to_go([turn.reward for turn in r.dialogue.turns], gamma) for r in group.trainable]


@register("method")
class ReinforcePP(TokenReward["ReinforcePP.Config"]):
    """Whitened token returns."""

    class Config(TokenRewardConfig):
        """Token returns, whitened over the whole batch."""

        type: Literal["reinforce_pp"] = "reinforce_pp"
        baseline: Literal["batch", "group"] = Field("batch", json_schema_extra=BASIC_FIELD)
        """batch: only whitening; group: first subtract the mean of the members that reached the turn
        (REINFORCE++-baseline)."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse baselines without other dialogues, and a group baseline with discounted tokens.

            Dialogues that reach a turn after different numbers of tokens have no common baseline of discounted returns.
            """
            super().check_stage(stage, run)
            if self.baseline == "group" and self.gamma < 1:
                refuse_ineffective(
                    f"stage {stage.name!r}: baseline group compares turns, and gamma {self.gamma:g} discounts tokens; "
                    "set gamma to 1 (turn_gamma discounts turns), or baseline to batch",
                    *run.loc_of(stage, "method", "gamma"),
                )
            if self.baseline == "batch" and self.whiten_advantages and stage.tasks_per_step * stage.group_size < 2:
                refuse_ineffective(
                    f"stage {stage.name!r}: a step of one dialogue has no other one to compare with; raise group_size "
                    "or tasks_per_step",
                    *run.loc_of(stage, "group_size"),
                )
            if self.baseline == "group" and stage.group_size < 2:
                raise FieldValueError(
                    f"stage {stage.name!r}: baseline group with group_size {stage.group_size} has no other dialogue "
                    "to compare with; set group_size to 2 or more, or baseline to batch",
                    *run.loc_of(stage, "group_size"),
                )

    @property
    def compares_groups(self) -> bool:
        return self.config.baseline == "batch"

    def baselines(self, group: Group) -> list[list[float]]:
        if self.compares_groups:
            return super().baselines(group)
        returns = _returns(group, self.config.turn_gamma)
        means = []
        for k in range(max(map(len, returns), default=0)):
            reached = [r[k] for r in returns if len(r) > k]
            means.append(sum(reached) / len(reached))
        return [means[: len(r)] for r in returns]


@register("method")
class PPO(TokenReward["PPO.Config"]):
    """Clipped policy gradient with a value head."""

    class Config(TokenRewardConfig):
        """Generalized advantage estimates per token, with a value head."""

        type: Literal["ppo"] = "ppo"
        gae_lambda: float = Field(0.95, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """λ of GAE: 0 uses one reward and the next value, 1 all rewards."""
        value_coef: float = Field(0.5, gt=0)
        """Weight of the value loss."""
        value_clip: float | None = Field(0.2, gt=0)
        """Clip range of a value around its estimate before the update; None does not clip."""
        value_learning_rate: float | None = Field(None, gt=0)
        """Peak learning rate of the value head; None is the stage's. The stage's schedule applies; of one with
        points, the head has this rate at the highest."""
        value_trains_adapter: bool = True
        """Whether the value loss also trains the adapter, not only the head."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse random rewards with λ below 1."""
            super().check_stage(stage, run)
            if self.gae_lambda < 1:
                refuse_random_rewards(stage, run, FEWER_TOKENS, "set method.gae_lambda to 1")

    def loss_options(self) -> LossConfig:
        config = self.config
        critic = ValueConfig(
            config.value_coef, config.value_clip, config.value_learning_rate, config.value_trains_adapter
        )
        return dataclasses.replace(super().loss_options(), advantage=self.advantage_config(config.gae_lambda, critic))
