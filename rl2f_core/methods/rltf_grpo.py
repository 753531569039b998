"""RLTF's multi-turn GRPO: reinforcement on y_0 under x_0 and on y_1 under the fresh prompt x_1 (arXiv 2602.02482).

The base of the RLTF family: the others add rows to these (`further`).  Settings are the paper's: γ 0.1, return-to-go
against the members that reached the turn, no division by the standard deviation.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config import BASIC
from rl2f_core.methods.rl2f import RL2F, RevisionGradientConfig
from rl2f_core.registry import register


class FreshGradientConfig(RevisionGradientConfig):
    """What every method of the RLTF family shares."""

    credit: Literal["turn"] = "turn"
    """Return-to-go against the members that reached the turn."""
    gamma: float = Field(0.1, ge=0, le=1, json_schema_extra=BASIC)
    """Discount a turn."""


@register("method")
class RLTFGRPO(RL2F):
    """Multi-turn GRPO over fresh prompts, one row a turn."""

    histories = ("fresh",)

    class Config(FreshGradientConfig):
        """Reinforcement on first attempts and on revisions under a fresh prompt."""

        type: Literal["rltf_grpo"] = "rltf_grpo"
