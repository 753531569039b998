"""RLVR: reinforcement on the first attempt alone, the single-turn control of RL²F."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.methods.rl2f import RL2F, PolicyGradientConfig
from rl2f_core.registry import register


@register("method")
class RLVR(RL2F):
    """One turn, no teacher; otherwise as `rl2f` (with one turn both credits are the same)."""

    class Config(PolicyGradientConfig):
        """Reinforcement on the first attempt alone."""

        type: Literal["rlvr"] = "rlvr"
        credit: Literal["dialogue"] = "dialogue"
        """With one turn there is one return."""
        gamma: float = Field(1.0, ge=1, le=1)
        """With one turn there is nothing to discount."""

    def max_turns(self, turns: int) -> int:
        return 1
