"""RLVR: reinforcement on the first attempt only, the single-turn control of RL²F."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.methods.rl2f import PolicyGradient, PolicyGradientConfig
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
