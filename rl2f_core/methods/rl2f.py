"""RL²F: reinforcement on every student turn of a dialogue with a teacher (arXiv 2602.16066).

One row a dialogue; teacher turns are context only.  The paper prints no settings; the defaults are those of the
companion paper (arXiv 2602.16488): G 8, γ 0.7, no KL, 4 turns.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import dialogue_credit, has_gradient, turn_credit
from rl2f_core.methods.rows import policy_row
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


@register("method")
class RL2F(Method):
    """Group-baseline policy gradient over whole dialogues."""

    class Config(PolicyGradientConfig):
        """Reinforcement on every student turn."""

        type: Literal["rl2f"] = "rl2f"
        credit: Literal["turn", "dialogue"] = "turn"
        """turn: return-to-go against the members that reached the turn; dialogue: one return for all turns."""
        gamma: float = Field(0.7, ge=0, le=1, json_schema_extra=BASIC)
        """Discount a turn."""

        def check_stage(self, stage: Any, run: Any) -> None:
            """Also refuses dialogues without a second turn."""
            super().check_stage(stage, run)
            if run.rollout.max_turns < 2:
                raise ValueError(
                    f"stage {stage.name!r}: rl2f with rollout.max_turns {run.rollout.max_turns} has no hint to learn "
                    "from; allow at least 2 turns, or use method rlvr"
                )

    def advantages(self, group: Group) -> list[list[float]]:
        credit = turn_credit if self.config.credit == "turn" else dialogue_credit
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.trainable]
        return credit(rewards, self.config.gamma, std=self.config.std, baseline=self.config.baseline)

    def samples(self, group: Group) -> list[Sample]:
        advantages = self.advantages(group)
        if not has_gradient(advantages):
            return []
        kl = self.config.kl_coef > 0
        return [policy_row(r, a, kl=kl) for r, a in zip(group.trainable, advantages, strict=True)]

    def loss_options(self) -> dict[str, Any]:
        return {k: getattr(self.config, k) for k in ("clip_low", "clip_high", "kl_coef")}
