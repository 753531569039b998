"""PPO with a value head: generalised advantage estimates over the tokens of a dialogue (arXiv 1707.06347, 1506.02438).

The reward of a turn stands on its last token; the head reads the policy's last hidden state before each token.  It
starts at zero, so that the first advantages are plain returns.  `minibatches` and `passes` of the stage say how often
a step's rows are used.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC
from rl2f_core.methods.objectives import Critic
from rl2f_core.methods.reinforce_pp import TokenReward, TokenRewardConfig
from rl2f_core.registry import register


@register("method")
class PPO(TokenReward):
    """Clipped policy gradient against a value head."""

    class Config(TokenRewardConfig):
        """Generalised advantages of tokens against a value head."""

        type: Literal["ppo"] = "ppo"
        """Name of the method."""
        lam: float = Field(0.95, ge=0, le=1, json_schema_extra=BASIC)
        """λ of the generalised advantage estimate: 0 trusts the values, 1 the rewards."""
        value_coef: float = Field(0.5, gt=0)
        """Weight of the value loss beside the policy's."""
        value_clip: float | None = Field(0.2, gt=0)
        """How far a value may move in one step before its loss stops to fall; None sets no limit."""
        value_learning_rate: float | None = Field(None, gt=0)
        """Peak rate of the value head; None takes the stage's. The stage's schedule applies."""
        value_shared: bool = True
        """The value loss trains the adapter too; false trains the head alone."""

    def loss_options(self) -> dict[str, Any]:
        config = self.config
        critic = Critic(config.value_coef, config.value_clip, config.value_learning_rate, config.value_shared)
        return {**super().loss_options(), "credit": self.credit(lam=config.lam, critic=critic)}
