"""RLTF's multi-turn GRPO: reinforcement on y_0 under x_0 and on y_1 under the reprompt x_1 (arXiv 2602.02482).

The other methods of the RLTF family add samples to these (`extra_samples`). Settings are the paper's: γ 0.1,
return-to-go against the members that reached the turn, no division by the standard deviation.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.methods.rl2f import PolicyGradient, RevisionGradientConfig
from rl2f_core.registry import register


class RepromptGradientConfig(RevisionGradientConfig):
    """Settings of the RLTF family."""

    advantage_level: Literal["turn"] = "turn"
    """Return-to-go against the members that reached the turn."""
    gamma: float = Field(0.1, ge=0, le=1, json_schema_extra=BASIC_FIELD)
    """Discount per turn."""


RepromptConfigT = TypeVar("RepromptConfigT", bound=RepromptGradientConfig)


class RepromptPolicyGradient(PolicyGradient[RepromptConfigT]):
    """Policy gradient with reprompting, one sample per turn."""

    prompt_modes = ("reprompt",)


@register("method")
class RLTFGRPO(RepromptPolicyGradient["RLTFGRPO.Config"]):
    """Multi-turn GRPO with reprompting."""

    class Config(RepromptGradientConfig):
        """Reinforcement on first attempts and on revisions under a new prompt."""

        type: Literal["rltf_grpo"] = "rltf_grpo"
