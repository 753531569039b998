"""RLTF-FM, feedback modelling: the policy also learns to write the critique that it was given (arXiv 2602.02482).

Beside `rltf_grpo` cross-entropy on every stored critique, under the very prompt of self-critique at test time.  The
released code cuts the critique out of decoded tokens and trains it under other words than it asks with later.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.methods.critique import CritiqueConfig, LearnsCritiques
from rl2f_core.methods.rltf_grpo import RLTFGRPO, FreshGradientConfig
from rl2f_core.registry import register


@register("method")
class RLTFFM(LearnsCritiques, RLTFGRPO):
    """Feedback modelling."""

    class Config(CritiqueConfig, FreshGradientConfig):
        """Reinforcement on both turns, and imitation of the critiques."""

        type: Literal["rltf_fm"] = "rltf_fm"
