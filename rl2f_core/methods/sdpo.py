"""SDPO: the model conditioned on feedback teaches the model without it (arXiv 2601.20802).

The first attempt y_0 is scored twice: under the problem x_0, as the student speaks, and under a prompt that also holds
the hint that came after it and the right attempt of another dialogue of the group.  The kl stream pulls the first
toward the second, token by token, and no gradient flows into the second.  With the hint after it a dialogue has two
turns; the second is played for its verdict, and trained on by nothing.

The defaults are those of TRL 1.16's `SDPOTrainer`, but for the feedback, which TRL leaves out unless told.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl2f_core import prompts
from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import centred
from rl2f_core.methods.objectives import Pull
from rl2f_core.methods.rows import attempt_row
from rl2f_core.registry import register
from rl2f_core.types import Group, Rollout, Sample

TEMPLATE = str(prompts.FOLDER / "contexts" / "hindsight.txt")


@register("method")
class SDPO(Method):
    """Self-distillation from hindsight, beside or instead of reinforcement."""

    plain = False

    class Config(BaseConfig):
        """The first attempt, pulled toward what the model would say had it read the feedback."""

        type: Literal["sdpo"] = "sdpo"
        """Name of the method."""
        feedback: Literal["always", "without_solution", "never"] = Field("always", json_schema_extra=BASIC)
        """When the reference reads the hint on the attempt: always, only where it has no solution, or never."""
        solutions: Literal["first", "any", "none"] = Field("first", json_schema_extra=BASIC)
        """What the reference reads of another dialogue of the group: its first attempt where that is right, its right
        attempt at any turn, or nothing."""
        kl_coef: float = Field(1.0, gt=0, json_schema_extra=BASIC)
        """Weight of the pull."""
        rl_coef: float = Field(0.0, ge=0, json_schema_extra=BASIC)
        """Weight of the policy gradient on the same attempts; 0 is distillation alone."""
        std: bool = True
        """Divide the policy gradient's advantages by the group's standard deviation."""
        clip_low: float = Field(0.2, gt=0, lt=1)
        """ε_low: the ratio is clipped below 1 − ε_low."""
        clip_high: float = Field(0.2, gt=0)
        """ε_high: the ratio is clipped above 1 + ε_high."""
        divergence: Literal["sampled", "k3", "full", "top_k"] = "sampled"
        """sampled: the score function of KL(policy ‖ reference) on the sampled tokens; k3: of the sampled tokens too,
        with the gradient of KL(reference ‖ policy); full: of whole distributions; top_k: of the likeliest tokens."""
        alpha: float = Field(1.0, ge=0, le=1)
        """For full and top_k: 0 is KL(reference ‖ policy), 1 is KL(policy ‖ reference), ½ is Jensen-Shannon."""
        top_k: int = Field(100, ge=1)
        """For top_k: how many of the policy's likeliest tokens are compared."""
        tail: bool = False
        """For top_k: count all other tokens as one more."""
        ratio_clip: float | None = Field(2.0, gt=0)
        """Weigh each token by π / π_behaviour, at most this; None weighs all alike."""
        mean: Literal["attempt", "token"] = "attempt"
        """The pull is a mean over attempts, each a mean over its tokens; or one mean over all tokens."""
        teacher: Literal["ema", "live", "stage"] = "ema"
        """Whose weights read the feedback: a moving average of the policy's since the stage's start, the policy's own,
        or the stage's `reference`, which stays."""
        teacher_rate: float = Field(0.05, gt=0, le=1)
        """For ema: the share of the policy's weights that each update mixes in."""
        context_tokens: int = Field(10240, ge=1)
        """Longest prompt of the reference; an attempt that needs a longer one is not pulled. The model's limit applies
        too."""

        def check_stage(self, stage: Any, run: Any) -> None:
            """Refuse impossible combinations; raises `ValueError`."""
            name = f"stage {stage.name!r}"
            if self.feedback == "never" and self.solutions == "none":
                raise ValueError(f"{name}: sdpo without feedback and without solutions has nothing to learn from; "
                                 "set feedback to always, or solutions to first")  # fmt: skip
            if self.feedback == "never" and stage.group_size < 2:
                raise ValueError(f"{name}: group_size {stage.group_size} has no other dialogue to take a solution "
                                 "from; set group_size to 2 or more, or feedback to always")  # fmt: skip
            if self.feedback != "never" and run.rollout.max_turns < 2:
                raise ValueError(f"{name}: sdpo with rollout.max_turns {run.rollout.max_turns} has no hint to learn "
                                 "from; allow at least 2 turns, or set feedback to never")  # fmt: skip
            if self.rl_coef and stage.group_size < 2:
                raise ValueError(f"{name}: group_size {stage.group_size} leaves nothing to compare with; set rl_coef "
                                 "to 0, or group_size to 2 or more")  # fmt: skip
            if stage.max_resamples:
                raise ValueError(f"{name}: max_resamples {stage.max_resamples} draws groups of equal returns again, "
                                 "but sdpo learns from their feedback as well; set it to 0")  # fmt: skip

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.prompt = prompts.load(TEMPLATE)

    def max_turns(self, turns: int) -> int:
        later = self.config.feedback != "never" or self.config.solutions == "any"
        return min(turns, 2 if later else 1)

    def advantages(self, group: Group) -> list[list[float]]:
        """Of the first attempts among themselves; the pull has no advantage."""
        first = [r.dialogue.turns[0].reward for r in group.trainable]
        scaled = [self.config.rl_coef * a for a in centred(first, std=self.config.std, baseline="mean")]
        rest = [[0.0] * (len(r.dialogue.turns) - 1) for r in group.trainable]
        return [[a, *zeros] for a, zeros in zip(scaled, rest, strict=True)]

    def teaches(self, group: Group) -> bool:
        """A group of equal returns has feedback too."""
        return bool(self.samples(group))

    def samples(self, group: Group) -> list[Sample]:
        rows = []
        for rollout, (advantage, *_) in zip(group.trainable, self.advantages(group), strict=True):
            context = self.context(group, rollout)
            tokens = sum(s and k == 0 for s, k in zip(rollout.streams[0].student, rollout.streams[0].turn, strict=True))
            weight = 1 / max(1, tokens) if self.config.mean == "attempt" else 1.0
            if context or self.config.rl_coef:
                row = attempt_row(rollout, 0, advantage, rl=self.config.rl_coef > 0, kl=weight if context else 0.0,
                                  context=context)  # fmt: skip
                rows.append(row)
        return rows

    def context(self, group: Group, rollout: Rollout) -> tuple[int, ...]:
        """What the reference reads before the first attempt; empty where it would know no more than the student."""
        solution = self._solution(group, rollout)
        hint = rollout.dialogue.turns[0].hint
        wanted = self.config.feedback == "always" or (self.config.feedback == "without_solution" and solution is None)
        feedback = hint.text if wanted and hint is not None and hint.text.strip() else None
        if solution is None and feedback is None:
            return ()
        problem = self.scene.environment.prompt(group.task.public)
        *_, message = self.prompt.render({"problem": problem, "feedback": feedback, "solution": solution})
        tokens = self.scene.renderer.opening(message["content"])
        own = sum(s and k == 0 for s, k in zip(rollout.streams[0].student, rollout.streams[0].turn, strict=True))
        fits = len(tokens) <= self.config.context_tokens and len(tokens) + own <= self.scene.context
        return tokens if fits else ()

    def _solution(self, group: Group, rollout: Rollout) -> str | None:
        """The first right attempt of another dialogue of the group, or None."""
        for other in group.trainable:
            turns = other.dialogue.turns[: 1 if self.config.solutions == "first" else None]
            right = next((turn.attempt for turn in turns if turn.verdict.correct), None)
            if self.config.solutions != "none" and other is not rollout and right is not None:
                return right
        return None

    def loss_options(self) -> dict[str, Any]:
        config = self.config
        pull = Pull(config.divergence, config.alpha, config.top_k, config.tail, config.ratio_clip, config.teacher,
                    config.teacher_rate)  # fmt: skip
        return {**{k: getattr(config, k) for k in ("clip_low", "clip_high", "kl_coef")}, "pull": pull}
