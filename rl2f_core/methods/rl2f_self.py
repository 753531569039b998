"""RL²F with a model that learns to be its own teacher (arXiv 2602.16066 §4).

`rl2f` plus λ·CE on each hint h_k under a prompt without the teacher's privileged data; the paper does not print λ. At
test time the teacher `self_critique` uses the same prompt.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.methods.critique_imitation import CritiqueConfig, CritiqueImitation
from rl2f_core.methods.rl2f import RL2F
from rl2f_core.registry import register


@register("method")
class RL2FSelf(CritiqueImitation["RL2FSelf.Config"]):
    """RL²F, and imitation of the teacher."""

    class Config(CritiqueConfig, RL2F.Config):
        """Reinforcement on every student turn, and imitation of the hints."""

        type: Literal["rl2f_self"] = "rl2f_self"  # type: ignore[assignment]
