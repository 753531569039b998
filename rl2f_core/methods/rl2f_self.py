"""RL²F with a model that learns to be its own teacher (arXiv 2602.16066 §4).

Beside `rl2f` λ·CE on each hint h_k, in a context without the privileged half that the teacher had; the paper does not
print λ.  Asked at test time by the teacher `self_critique`, under the same prompt.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.methods.critique import CritiqueConfig, LearnsCritiques
from rl2f_core.methods.rl2f import RL2F
from rl2f_core.registry import register


@register("method")
class RL2FSelf(LearnsCritiques):
    """RL²F, and imitation of the teacher."""

    class Config(CritiqueConfig, RL2F.Config):
        """Reinforcement on every student turn, and imitation of the hints."""

        type: Literal["rl2f_self"] = "rl2f_self"  # type: ignore[assignment]
