"""Policy gradient over dialogues with a group baseline, the base of the RL²F and RLTF families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.errors import FieldValueError
from rl2f_core.learning.methods.advantages import dialogue_advantages, has_gradient, turn_advantages
from rl2f_core.learning.methods.base import Method
from rl2f_core.learning.methods.loss_spec import LossConfig, clip_range
from rl2f_core.learning.methods.samples import policy_samples
from rl2f_core.types import Group, TrainingSample


class PolicyGradientConfig(ComponentConfig):
    """Settings of policy gradients with a group baseline."""

    if TYPE_CHECKING:  # declared by each method
        advantage_level: str
        gamma: float
    scale_rewards: bool = False
    """Divide advantages by the group's standard deviation (GRPO) or not (Dr. GRPO)."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """The group's mean, or the mean of the others (RLOO)."""
    epsilon: float | None = Field(0.2, gt=0, lt=1)
    """ε_low: the ratio is clipped below 1 − ε_low; None does not clip it below."""
    epsilon_high: float | None = Field(0.2, gt=0)
    """ε_high: the ratio is clipped above 1 + ε_high; None does not clip it above."""
    kl_coef: float = Field(0.0, ge=0)
    """β of the KL to the reference."""
    entropy_coef: float = Field(0.0, ge=0)
    """c of the entropy term: the loss contains −c times the mean entropy of the sampled tokens' distributions. Above 0,
    groups with equal returns have a gradient too."""

    def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
        """Refuse impossible combinations; raises `ValueError`."""
        if stage.group_size < 2:
            raise FieldValueError(
                f"stage {stage.name!r}: group_size {stage.group_size} has no other dialogue to compare with; "
                "group baselines need at least 2",
                *run.loc_of(stage, "group_size"),
            )


class RevisionGradientConfig(PolicyGradientConfig):
    """A policy gradient over attempts and their revisions."""

    def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
        """Also refuse dialogues without a second turn."""
        super().check_stage(stage, run)
        if run.rollout.max_turns < 2:
            raise FieldValueError(
                f"stage {stage.name!r}: {stage.method.type} with rollout.max_turns {run.rollout.max_turns} has no hint "
                "to learn from; allow at least 2 turns, or use method rlvr",
                *("rollout", "max_turns"),
            )


GradientConfigT = TypeVar("GradientConfigT", bound=PolicyGradientConfig)


class PolicyGradient(Method[GradientConfigT]):
    """Policy gradient over dialogues with a group baseline."""

    @property
    def turn_discount(self) -> float:
        return self.config.gamma

    def advantages(self, group: Group) -> list[list[float]]:
        compute = turn_advantages if self.config.advantage_level == "turn" else dialogue_advantages
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.trainable]
        return compute(rewards, self.config.gamma, std=self.config.scale_rewards, baseline=self.config.baseline)

    def has_different_returns(self, group: Group) -> bool:
        return has_gradient(self.advantages(group))

    def samples(self, group: Group) -> list[TrainingSample]:
        kl, pairs = self.config.kl_coef > 0, zip(group.trainable, self.advantages(group), strict=True)
        return [*(s for r, a in pairs for s in policy_samples(r, a, kl=kl)), *self.extra_samples(group)]

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        """Return additional samples; none by default."""
        return []

    def loss_options(self) -> LossConfig:
        config = self.config
        return LossConfig(
            *clip_range(config.epsilon, config.epsilon_high), kl_coef=config.kl_coef, entropy_coef=config.entropy_coef
        )
