"""RL²F: reinforcement on every student turn of a dialogue with a teacher (arXiv 2602.16066).

One row a dialogue (one a turn, where turns have fresh prompts); teacher turns are context only.  The paper prints no
settings; the defaults are those of the companion paper (arXiv 2602.16488): G 8, γ 0.7, no KL, 4 turns.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import dialogue_credit, has_gradient, turn_credit
from rl2f_core.methods.rows import policy_rows
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample


class PolicyGradientConfig(BaseConfig):
    """What every group-baseline policy gradient shares."""

    std: bool = False
    """Divide advantages by the group's standard deviation (GRPO) or not (Dr. GRPO)."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """The group's mean, or the mean of the others (RLOO)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """ε_low: the ratio is clipped below 1 − ε_low."""
    clip_high: float = Field(0.2, gt=0)
    """ε_high: the ratio is clipped above 1 + ε_high."""
    kl_coef: float = Field(0.0, ge=0)
    """β of the KL to the reference."""

    def check_stage(self, stage: Any, run: Any) -> None:
        """Refuse impossible combinations; raises `ValueError`."""
        if stage.group_size < 2:
            raise ValueError(
                f"stage {stage.name!r}: group_size {stage.group_size} leaves nothing to compare with; "
                "group baselines need at least 2"
            )


class RevisionGradientConfig(PolicyGradientConfig):
    """A policy gradient over attempts and their revisions."""

    def check_stage(self, stage: Any, run: Any) -> None:
        """Also refuses dialogues without a second turn."""
        super().check_stage(stage, run)
        if run.rollout.max_turns < 2:
            raise ValueError(
                f"stage {stage.name!r}: {stage.method.type} with rollout.max_turns {run.rollout.max_turns} has no hint "
                "to learn from; allow at least 2 turns, or use method rlvr"
            )


@register("method")
class RL2F(Method):
    """Group-baseline policy gradient over whole dialogues."""

    class Config(RevisionGradientConfig):
        """Reinforcement on every student turn."""

        type: Literal["rl2f"] = "rl2f"
        credit: Literal["turn", "dialogue"] = "turn"
        """turn: return-to-go against the members that reached the turn; dialogue: one return for all turns."""
        gamma: float = Field(0.7, ge=0, le=1, json_schema_extra=BASIC)
        """Discount a turn."""

    def advantages(self, group: Group) -> list[list[float]]:
        credit = turn_credit if self.config.credit == "turn" else dialogue_credit
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.trainable]
        return credit(rewards, self.config.gamma, std=self.config.std, baseline=self.config.baseline)

    def samples(self, group: Group) -> list[Sample]:
        advantages, further = self.advantages(group), self.further(group)
        if not has_gradient(advantages) and not any(any(row.rl) for row in further):
            return further
        kl = self.config.kl_coef > 0
        rows = [row for r, a in zip(group.trainable, advantages, strict=True) for row in policy_rows(r, a, kl=kl)]
        return [*rows, *further]

    def further(self, group: Group) -> list[Sample]:
        """Rows beside those of the policy gradient; none here. The policy's own rows stand beside every row with rl
        weight, so that the weight of the latter is one among theirs."""
        return []

    def loss_options(self) -> dict[str, Any]:
        return {k: getattr(self.config, k) for k in ("clip_low", "clip_high", "kl_coef")}
