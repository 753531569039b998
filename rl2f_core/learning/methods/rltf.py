"""RLTF: reinforcement on y_0 under x_0 and on y_1 under the reprompt x_1 (arXiv 2602.02482).

Every method of the family adds samples to those of `rltf_grpo` (`extra_samples`). Settings are the paper's: γ 0.1,
return-to-go against the members that reached the turn, no division by the standard deviation.

`rltf_sd`, self-distillation (Alg. 1), learns revisions as answers to the bare problem: a sample x_0 → y_k for every
later attempt, with A = r_k − mean of r_0 over the whole group, unless A is 0. This first-turn baseline leaves a signal
if nearly all revisions are correct, unlike their own mean. All options combine; the released code loses the first-turn
baseline, and the mask and coefficient in its ppo and cispo variants.

`rltf_fm`, feedback modeling, also learns to write the hints it received, under the prompt of self-critique at test
time. The released code cuts the critique out of decoded tokens and trains it under another prompt than at test time.

`sft_correct` is the supervised alternative to RLTF-SD: cross-entropy on every correct later attempt, x_0 → y_k.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field

from rl2f_core.common import prompt_templates
from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.dialogue.teachers.self_critique import TEMPLATE, SelfCritiqueTeacher
from rl2f_core.errors import FieldValueError
from rl2f_core.learning.methods.advantages import MIN_ADVANTAGE, has_gradient, turn_advantages
from rl2f_core.learning.methods.aux_loss import (
    AuxCrossEntropy,
    AuxLossConfig,
    CritiqueConfig,
    CritiqueImitation,
    encode_critique,
)
from rl2f_core.learning.methods.base import refuse_random_rewards
from rl2f_core.learning.methods.policy_gradient import PolicyGradient, RevisionGradientConfig
from rl2f_core.learning.methods.samples import off_context_sample, revision_distillation_sample, revision_sft_sample
from rl2f_core.registry import register
from rl2f_core.types import Group, PolicyLoss, TrainingSample

Baseline = Literal["first", "second", "none"]


def revision_advantages(rewards: list[list[float]], baseline: Baseline) -> list[list[float]]:
    """Return the advantages of the later attempts k ≥ 1 of each dialogue.

    Args:
        rewards: One number per turn, for each dialogue of a group.
        baseline: `first` subtracts the mean of r_0 over all dialogues; `second` the mean of r_k over those that reached
            turn k (0 if only one did); `none` nothing.
    """
    if baseline == "second":
        return [turns[1:] for turns in turn_advantages(rewards, gamma=0.0)]
    mean = sum(turns[0] for turns in rewards) / len(rewards) if rewards and baseline == "first" else 0.0
    return [[r - mean for r in turns[1:]] for turns in rewards]


class RepromptGradientConfig(RevisionGradientConfig):
    """Settings of the RLTF family."""

    advantage_level: Literal["turn"] = "turn"
    """Return-to-go against the members that reached the turn."""
    gamma: float = Field(0.1, ge=0, le=1, json_schema_extra=BASIC_FIELD)
    """Discount per turn."""
    branches: int = Field(1, ge=1)
    """Tree rollouts: dialogues of a group that share a first attempt and its hint. Later turns are then compared with
    those of the same first attempt only."""

    dual_critique: SelfCritiqueTeacher.Config | None = None
    """Dual critique: every second dialogue continues the first attempt of the one before with the policy's own
    critiques. These are trained with the advantages of the revisions after them. `{}` uses the defaults."""

    @property
    def tree_size(self) -> int:
        """Dialogues per first attempt."""
        return 2 if self.dual_critique is not None else self.branches

    def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
        """Also refuse a group that is not made of at least two trees of equal size; raises `ValueError`."""
        super().check_stage(stage, run)
        size, dual = self.tree_size, self.dual_critique is not None
        if stage.group_size % size or stage.group_size < 2 * size:
            raise FieldValueError(
                f"stage {stage.name!r}: group_size {stage.group_size} with {size} dialogues per first attempt: a group "
                "needs at least two first attempts; choose a multiple, at least twice as many",
                *run.loc_of(stage, "group_size"),
            )
        if dual and (self.branches > 1 or stage.trainer == "trl"):
            other, field = ("branches above 1", ("method", "branches")) if self.branches > 1 else ("TRL", ("trainer",))
            raise FieldValueError(
                f"stage {stage.name!r}: dual_critique does not work with {other}", *run.loc_of(stage, *field)
            )


RepromptConfigT = TypeVar("RepromptConfigT", bound=RepromptGradientConfig)


class RepromptPolicyGradient(PolicyGradient[RepromptConfigT]):
    """Policy gradient with reprompting, one sample per turn."""

    prompt_modes = ("reprompt",)

    @property
    def branches(self) -> int:
        return self.config.tree_size

    @property
    def second_teacher(self) -> SelfCritiqueTeacher.Config | None:
        return self.config.dual_critique

    def advantages(self, group: Group) -> list[list[float]]:
        config, members = self.config, group.trainable
        return turn_advantages(
            [[turn.reward for turn in r.dialogue.turns] for r in members],
            config.gamma,
            std=config.scale_rewards,
            baseline=config.baseline,
            trees=[r.dialogue.index // config.branches for r in members] if config.branches > 1 else None,
        )

    def samples(self, group: Group) -> list[TrainingSample]:
        return [*super().samples(group), *self._own_critiques(group)]

    def _own_critiques(self, group: Group) -> list[TrainingSample]:
        """Return the policy's own critiques, each with the advantage of the attempt after it, unless that is 0."""
        dual = self.config.dual_critique
        if dual is None:
            return []
        prompt = prompt_templates.load(dual.prompt or TEMPLATE)
        samples = []
        for rollout, advantages in zip(group.trainable, self.advantages(group), strict=True):
            dialogue = rollout.dialogue
            for k, advantage in enumerate(advantages[1:] if dialogue.index % 2 else []):
                encoded = encode_critique(group.task, dialogue, k, self.context, prompt)
                if encoded is not None and abs(advantage) > MIN_ADVANTAGE:
                    logprobs = [0.0] * len(encoded[1])
                    samples.append(off_context_sample(*encoded, logprobs, dialogue.id, advantage=advantage))
        return samples


@register("method")
class RLTFGRPO(RepromptPolicyGradient["RLTFGRPO.Config"]):
    """Multi-turn GRPO with reprompting."""

    class Config(RepromptGradientConfig):
        """Reinforcement on first attempts and on revisions under a new prompt."""

        type: Literal["rltf_grpo"] = "rltf_grpo"


@register("method")
class RLTFSD(RepromptPolicyGradient["RLTFSD.Config"]):
    """Self-distillation of revisions into first attempts."""

    uniform_weights = False

    class Config(RepromptGradientConfig, AuxLossConfig):
        """Reinforcement on both turns, and on the revision as an answer to the bare problem."""

        type: Literal["rltf_sd"] = "rltf_sd"
        sd_baseline: Baseline = Field("first", json_schema_extra=BASIC_FIELD)
        """Baseline of a revision's reward: the mean of the group's first attempts, of its revisions, or none."""
        policy_loss: PolicyLoss = "awr"
        """Policy loss of its tokens, which were sampled under another prompt. awr: initial ratio 1;
        importance_sampling: unclipped ratio; ppo: clipped ratio; cispo: clipped ratio as a constant factor."""
        rl_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC_FIELD)
        """Weight of these tokens; those of the policy gradient have 1."""
        min_logprob: float | None = Field(-5.0, le=0)
        """Lowest logprob of a token under the bare problem, in nats; others are masked. None masks none."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse random rewards that say whether an attempt was followed by another one."""
            super().check_stage(stage, run)
            if self.rl_coef and self.gamma and run.rollout.max_turns > 2:
                refuse_random_rewards(
                    stage,
                    run,
                    "it compares rewards of single turns, and only returns of turns can be exchanged",
                    "set rollout.max_turns to 2, or method.gamma to 0",
                )

    @property
    def _revision_weight(self) -> float:
        """Weight of the revisions as answers to the bare problem, at this step."""
        config, context = self.config, self.context
        return config.weight(config.rl_coef, context.step, context.steps)

    def _revision_advantages(self, group: Group) -> list[list[float]]:
        """Return the advantages of the later attempts of each trainable rollout."""
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.trainable]
        return revision_advantages(rewards, self.config.sd_baseline)

    def has_learning_signal(self, group: Group) -> bool:
        """Return whether attempts have different returns, or a revision has an advantage."""
        revisions = self._revision_weight > 0 and has_gradient(self._revision_advantages(group))
        return revisions or super().has_learning_signal(group)

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        config, weight = self.config, self._revision_weight
        return [
            revision_distillation_sample(
                rollout, k, advantage, weight=weight, policy_loss=config.policy_loss, min_logprob=config.min_logprob
            )
            for rollout, advantages in zip(group.trainable, self._revision_advantages(group), strict=True)
            for k, advantage in enumerate(advantages, start=1)
            if weight and abs(advantage) > MIN_ADVANTAGE
        ]


@register("method")
class RLTFFM(CritiqueImitation["RLTFFM.Config"], RepromptPolicyGradient["RLTFFM.Config"]):
    """Feedback modeling."""

    class Config(CritiqueConfig, RepromptGradientConfig):
        """Reinforcement on both turns, and imitation of the critiques."""

        type: Literal["rltf_fm"] = "rltf_fm"

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse dual critique, whose own critiques would be imitated; raises `ValueError`."""
            super().check_stage(stage, run)
            if self.dual_critique is not None:
                raise FieldValueError(
                    f"stage {stage.name!r}: rltf_fm imitates critiques, also the policy's own ones of dual_critique; "
                    "use rltf_grpo, rltf_sd or sft_correct",
                    *run.loc_of(stage, "method", "dual_critique"),
                )


@register("method")
class SFTCorrect(AuxCrossEntropy["SFTCorrect.Config"], RepromptPolicyGradient["SFTCorrect.Config"]):
    """Reinforcement on both turns, and imitation of correct revisions."""

    class Config(RepromptGradientConfig, AuxLossConfig):
        """Reinforcement on both turns, and imitation of correct revisions."""

        type: Literal["sft_correct"] = "sft_correct"
        ce_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC_FIELD)
        """λ: weight of the cross-entropy on correct revisions."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Also refuse random rewards, which do not change the verdicts."""
            super().check_stage(stage, run)
            if self.ce_coef:
                refuse_random_rewards(
                    stage, run, "it imitates revisions by their verdicts, not by their rewards", "use rltf_grpo"
                )

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        if not self.ce_coef:
            return []
        return [
            revision_sft_sample(rollout, turn.index)
            for rollout in group.trainable
            for turn in rollout.dialogue.turns[1:]
            if turn.verdict.correct
        ]
