"""RL²F: reinforcement on every student turn of a dialogue with a teacher (arXiv 2602.16066).

One sample per dialogue, or per turn with reprompting; the teacher's messages are context only. The paper prints no
settings. The defaults are those of the companion paper (arXiv 2602.16488): G 8, γ 0.7, no KL, 4 turns.

`rlvr` is the single-turn control. `rl2f_self` (2602.16066 §4) adds λ·CE on each hint h_k under a prompt without the
teacher's privileged data; the paper does not print λ. At test time the teacher `self_critique` uses the same prompt.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.learning.methods.aux_loss import CritiqueConfig, CritiqueImitation
from rl2f_core.learning.methods.policy_gradient import PolicyGradient, PolicyGradientConfig, RevisionGradientConfig
from rl2f_core.registry import register


@register("method")
class RLVR(PolicyGradient["RLVR.Config"]):
    """One turn without teacher; otherwise as `rl2f`."""

    class Config(PolicyGradientConfig):
        """Reinforcement on the first attempt only."""

        type: Literal["rlvr"] = "rlvr"
        advantage_level: Literal["dialogue"] = "dialogue"
        """A single turn has one return."""
        gamma: float = Field(1.0, ge=1, le=1)
        """A single turn has no discount."""

    def max_turns(self, turns: int) -> int:
        return 1


class RL2FConfig(RevisionGradientConfig):
    """Settings of the RL²F family."""

    advantage_level: Literal["turn", "dialogue"] = "turn"
    """turn: return-to-go against the members that reached the turn; dialogue: one return for all turns."""
    gamma: float = Field(0.7, ge=0, le=1, json_schema_extra=BASIC_FIELD)
    """Discount per turn."""


@register("method")
class RL2F(PolicyGradient["RL2F.Config"]):
    """Policy gradient over whole dialogues."""

    prompt_modes = ("append", "reprompt", "enumerate")

    class Config(RL2FConfig):
        """Reinforcement on every student turn."""

        type: Literal["rl2f"] = "rl2f"


@register("method")
class RL2FSelf(CritiqueImitation["RL2FSelf.Config"]):
    """RL²F, and imitation of the teacher."""

    class Config(CritiqueConfig, RL2FConfig):
        """Reinforcement on every student turn, and imitation of the hints."""

        type: Literal["rl2f_self"] = "rl2f_self"
