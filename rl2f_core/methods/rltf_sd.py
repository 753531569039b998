"""RLTF-SD, self-distillation: what the student found with feedback it learns to say without (arXiv 2602.02482, Alg. 1).

Beside `rltf_grpo` a row x_0 → y_k for every later attempt, with A = r_k − mean of r_0 over the whole group: the first
turn's mean stays a baseline where nearly all second attempts are right, and a mean over those leaves nothing.  Every
option goes with every other; the released code drops the first-turn baseline on the way, and mask and coefficient in
its ppo and cispo variants.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config import BASIC
from rl2f_core.methods.coefficient import TermConfig
from rl2f_core.methods.credit import turn_credit
from rl2f_core.methods.rltf_grpo import RLTFGRPO, FreshGradientConfig
from rl2f_core.methods.rows import distilled_row
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample, Weighting

Baseline = Literal["first", "second", "none"]
NOTHING = 1e-9
"""An advantage that differs less from 0 is rounding."""


def revision_advantages(rewards: list[list[float]], baseline: Baseline) -> list[list[float]]:
    """For each dialogue the advantage of each later attempt k ≥ 1, in order.

    Args:
        rewards: One number a turn, for each dialogue of a group.
        baseline: What is taken from r_k: `first` the mean of r_0 over all dialogues; `second` the mean of r_k over
            those that reached turn k (then 0 where only one did); `none` nothing.
    """
    if baseline == "second":
        return [turns[1:] for turns in turn_credit(rewards, gamma=0.0)]
    mean = sum(turns[0] for turns in rewards) / len(rewards) if rewards and baseline == "first" else 0.0
    return [[r - mean for r in turns[1:]] for turns in rewards]


@register("method")
class RLTFSD(RLTFGRPO):
    """Self-distillation of revisions into first attempts."""

    plain = False

    class Config(FreshGradientConfig, TermConfig):
        """Reinforcement on both turns, and on the revision as an answer to the bare question."""

        type: Literal["rltf_sd"] = "rltf_sd"
        sd_baseline: Baseline = Field("first", json_schema_extra=BASIC)
        """What a revision's reward is compared with: the group's first attempts, its revisions, or nothing."""
        weighting: Weighting = "awr"
        """How its tokens are weighed, which were sampled under another prompt. awr: ratio 1 at the start; is: the whole
        ratio; ppo: the clipped one; cispo: the clipped one as a constant factor."""
        rl_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC)
        """Weight of a token of these rows; one of the others has 1."""
        min_logprob: float | None = Field(-5.0, le=0)
        """Tokens that are less likely than this under the bare question drop out (in nats); None keeps all."""

    def further(self, group: Group) -> list[Sample]:
        config, scene = self.config, self.scene
        weight = config.weight(config.rl_coef, scene.step, scene.steps)
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.trainable]
        return [
            distilled_row(rollout, k, advantage, weight=weight, weighting=config.weighting, floor=config.min_logprob)
            for rollout, row in zip(group.trainable, revision_advantages(rewards, config.sd_baseline), strict=True)
            for k, advantage in enumerate(row, start=1)
            if weight and abs(advantage) > NOTHING
        ]
