"""PPO with a value head: GAE over the tokens of a dialogue (arXiv 1707.06347, 1506.02438).

A turn's reward is at its last token. The value head takes the policy's last hidden state before each token. It starts
at zero, so the first advantages are plain returns. The stage sets `minibatches` and `num_iterations`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.methods.loss_spec import LossConfig, ValueConfig
from rl2f_core.methods.reinforce_pp import TokenReward, TokenRewardConfig
from rl2f_core.registry import register


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
        """Peak learning rate of the value head; None is the stage's. The stage's schedule applies."""
        value_trains_adapter: bool = True
        """Whether the value loss also trains the adapter, not only the head."""

    def loss_options(self) -> LossConfig:
        config = self.config
        critic = ValueConfig(
            config.value_coef, config.value_clip, config.value_learning_rate, config.value_trains_adapter
        )
        return dataclasses.replace(super().loss_options(), advantage=self.advantage_config(config.gae_lambda, critic))
