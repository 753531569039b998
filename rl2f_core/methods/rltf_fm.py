"""RLTF-FM, feedback modeling: the policy also learns to write the hints it received (arXiv 2602.02482).

`rltf_grpo` plus cross-entropy on every stored hint, under the prompt of self-critique at test time. The released code
cuts the critique out of decoded tokens and trains it under another prompt than at test time.
"""

from __future__ import annotations

from typing import Literal

from rl2f_core.methods.critique_imitation import CritiqueConfig, CritiqueImitation
from rl2f_core.methods.rltf_grpo import RepromptGradientConfig, RepromptPolicyGradient
from rl2f_core.registry import register


@register("method")
class RLTFFM(CritiqueImitation["RLTFFM.Config"], RepromptPolicyGradient["RLTFFM.Config"]):
    """Feedback modeling."""

    class Config(CritiqueConfig, RepromptGradientConfig):
        """Reinforcement on both turns, and imitation of the critiques."""

        type: Literal["rltf_fm"] = "rltf_fm"
