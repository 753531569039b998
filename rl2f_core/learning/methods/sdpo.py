"""SDPO: self-distillation from the feedback-conditioned model (arXiv 2601.20802).

The first attempt y_0 is scored twice: under the problem x_0, and under a reference prompt that also contains the hint
on it and a correct attempt of another dialogue of the group. The kl term moves the policy toward the reference, token
by token, without gradient to the reference. With hints a dialogue has two turns; the second is not trained on.

The defaults are those of TRL 1.16's `SDPOTrainer`, except that TRL uses no feedback by default.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.common import prompt_templates
from rl2f_core.common.paths import PROMPTS
from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.errors import FieldValueError
from rl2f_core.learning.methods.advantages import subtract_baseline
from rl2f_core.learning.methods.base import Method, refuse_random_rewards, refuse_unused
from rl2f_core.learning.methods.loss_spec import KLConfig, LossConfig
from rl2f_core.learning.methods.samples import first_attempt_sample, turn_mask
from rl2f_core.registry import register
from rl2f_core.types import Group, Rollout, TrainingSample

TEMPLATE = str(PROMPTS / "contexts" / "hindsight.txt")


@register("method")
class SDPO(Method["SDPO.Config"]):
    """Self-distillation from feedback, with optional reinforcement."""

    uniform_weights = False

    class Config(BaseConfig):
        """Distill the feedback-conditioned model into its first attempts."""

        type: Literal["sdpo"] = "sdpo"
        feedback: Literal["always", "without_solution", "never"] = Field("always", json_schema_extra=BASIC_FIELD)
        """When the reference prompt contains the hint: always, only without a peer solution, or never."""
        peer_solutions: Literal["first", "any", "none"] = Field("first", json_schema_extra=BASIC_FIELD)
        """Which correct attempt of another dialogue of the group the reference prompt contains: a first attempt, one at
        any turn, or none."""
        kl_coef: float = Field(1.0, gt=0, json_schema_extra=BASIC_FIELD)
        """Weight of the distillation."""
        rl_coef: float = Field(0.0, ge=0, json_schema_extra=BASIC_FIELD)
        """Weight of the policy gradient on the same attempts; 0 is only distillation."""
        scale_rewards: bool = True
        """Divide the policy gradient's advantages by the group's standard deviation."""
        epsilon: float = Field(0.2, gt=0, lt=1)
        """ε_low: the ratio is clipped below 1 − ε_low."""
        epsilon_high: float = Field(0.2, gt=0)
        """ε_high: the ratio is clipped above 1 + ε_high."""
        distillation_mode: Literal["sampled_token", "k3", "full_logits", "topk_logits"] = "sampled_token"
        """sampled_token: score function of KL(policy ‖ reference) on the sampled tokens; k3: on the same tokens, with
        the gradient of KL(reference ‖ policy); full_logits: whole distributions; topk_logits: most likely tokens."""
        distillation_alpha: float = Field(1.0, ge=0, le=1)
        """For full_logits and topk_logits: 0 is KL(reference ‖ policy), 1 KL(policy ‖ reference), ½ Jensen-Shannon."""
        distillation_topk: int = Field(100, ge=1)
        """For topk_logits: number of the policy's most likely tokens."""
        distillation_add_tail: bool = False
        """For topk_logits: merge all other tokens into one entry."""
        distillation_is_clip: float | None = Field(2.0, gt=0)
        """Weight each token by π / π_old, at most this; None weights all equally."""
        loss_reduction: Literal["attempt", "token"] = "attempt"
        """Reduction of the distillation; the policy gradient is a mean over tokens. attempt: mean over attempts of each
        attempt's token mean; token: mean over all tokens."""
        teacher_model_kind: Literal["ema", "live", "base"] = "ema"
        """Weights of the reference: the policy's moving average since the start of the stage, the policy's, or the
        stage's `ref_model`."""
        teacher_update_rate: float = Field(0.05, gt=0, le=1)
        """For ema: update rate of the moving average."""
        max_reprompt_len: int = Field(10240, ge=1)
        """Longest reference prompt in tokens; attempts that need a longer one are not distilled. The model's limit also
        applies."""

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Refuse impossible combinations; raises `ValueError`."""
            name = f"stage {stage.name!r}"
            if self.feedback == "never" and self.peer_solutions == "none":
                raise FieldValueError(
                    f"{name}: sdpo without feedback and without peer_solutions has nothing to learn from; "
                    "set feedback to always, or peer_solutions to first",
                    *run.loc_of(stage, "method", "feedback"),
                )
            if self.feedback == "never" and stage.group_size < 2:
                raise FieldValueError(
                    f"{name}: group_size {stage.group_size} has no other dialogue to take a solution "
                    "from; set group_size to 2 or more, or feedback to always",
                    *run.loc_of(stage, "group_size"),
                )
            if self.feedback != "never" and run.rollout.max_turns < 2:
                raise FieldValueError(
                    f"{name}: sdpo with rollout.max_turns {run.rollout.max_turns} has no hint to learn "
                    "from; allow at least 2 turns, or set feedback to never",
                    *("rollout", "max_turns"),
                )
            if self.rl_coef and stage.group_size < 2:
                raise FieldValueError(
                    f"{name}: group_size {stage.group_size} has no other dialogue to compare with; set rl_coef "
                    "to 0, or group_size to 2 or more",
                    *run.loc_of(stage, "group_size"),
                )
            if not self.rl_coef:
                refuse_random_rewards(stage, run, "nothing reads rewards with rl_coef 0", "leave rewards out")
            reason = f"with distillation_mode {self.distillation_mode}"
            if self.distillation_mode not in ("full_logits", "topk_logits"):
                refuse_unused(stage, run, reason, "distillation_alpha")
            if self.distillation_mode != "topk_logits":
                refuse_unused(stage, run, reason, "distillation_topk", "distillation_add_tail")
            if self.teacher_model_kind != "ema":
                refuse_unused(stage, run, f"with teacher_model_kind {self.teacher_model_kind}", "teacher_update_rate")
            if stage.max_group_resamples:
                raise FieldValueError(
                    f"{name}: max_group_resamples {stage.max_group_resamples} replaces groups of equal returns, "
                    "but sdpo learns from their feedback as well; set it to 0",
                    *run.loc_of(stage, "max_group_resamples"),
                )

    def __init__(self, config: SDPO.Config) -> None:
        super().__init__(config)
        self.prompt = prompt_templates.load(TEMPLATE)

    @property
    def turn_discount(self) -> float:
        return 0.0  # it reads the reward of the first attempt alone

    def max_turns(self, turns: int) -> int:
        later = self.config.feedback != "never" or self.config.peer_solutions == "any"
        return min(turns, 2 if later else 1)

    def trained_turns(self, turns: int) -> int:
        return min(turns, 1)

    def advantages(self, group: Group) -> list[list[float]]:
        """Return advantages of the first attempts within the group; 0 for later turns."""
        dialogues = [r.dialogue for r in group.trainable]
        rewards = [dialogue.turns[0].reward for dialogue in dialogues]
        first = subtract_baseline(rewards, std=self.config.scale_rewards, baseline="mean")
        return [
            [self.config.rl_coef * a] + [0.0] * (len(dialogue.turns) - 1)
            for a, dialogue in zip(first, dialogues, strict=True)
        ]

    def has_learning_signal(self, group: Group) -> bool:
        """Return whether a sample has a gradient; groups of equal returns have feedback too."""
        return any(sample.has_gradient for sample in self.samples(group))

    def samples(self, group: Group) -> list[TrainingSample]:
        samples = []
        for rollout, (advantage, *_) in zip(group.trainable, self.advantages(group), strict=True):
            prompt_ids = self.reference_prompt(group, rollout)
            tokens = sum(turn_mask(rollout.sequences[0], 0))
            weight = 1 / max(1, tokens) if self.config.loss_reduction == "attempt" else 1.0
            if prompt_ids or self.config.rl_coef:
                kl, rl = weight if prompt_ids else 0.0, self.config.rl_coef > 0
                samples.append(first_attempt_sample(rollout, advantage, rl=rl, kl=kl, reference_prompt_ids=prompt_ids))
        return samples

    def reference_prompt(self, group: Group, rollout: Rollout) -> tuple[int, ...]:
        """Return the reference prompt of the first attempt; empty without hint and solution, or if too long."""
        solution = self._solution(group, rollout)
        reply = rollout.dialogue.turns[0].reply
        use_hint = self.config.feedback == "always" or (self.config.feedback == "without_solution" and solution is None)
        feedback = reply if use_hint and reply.strip() else None
        if solution is None and feedback is None:
            return ()
        engine = self.context.engine_of(group.task)
        problem = engine.environment.prompt(group.task.public)
        *_, message = self.prompt.render({"problem": problem, "feedback": feedback, "solution": solution})
        prompt_ids = engine.renderer.initial_prompt(message["content"])
        total = len(prompt_ids) + sum(turn_mask(rollout.sequences[0], 0))
        fits = len(prompt_ids) <= self.config.max_reprompt_len and total <= self.context.max_model_len
        return prompt_ids if fits else ()

    def _solution(self, group: Group, rollout: Rollout) -> str | None:
        """Return the first correct attempt of another dialogue of the group, or None."""
        turns = {"first": 1, "any": None, "none": 0}[self.config.peer_solutions]
        peers = (other.dialogue for other in group.trainable if other is not rollout)
        return next((turn.attempt for peer in peers for turn in peer.turns[:turns] if turn.verdict.correct), None)

    def loss_options(self) -> LossConfig:
        config = self.config
        kl = KLConfig(
            config.distillation_mode,
            config.distillation_alpha,
            config.distillation_topk,
            config.distillation_add_tail,
            config.distillation_is_clip,
            config.teacher_model_kind,
            config.teacher_update_rate,
        )
        return LossConfig(config.epsilon, config.epsilon_high, kl_coef=config.kl_coef, kl=kl)
