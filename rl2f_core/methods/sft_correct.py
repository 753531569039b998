"""Imitation of correct revisions, the supervised alternative to RLTF-SD (arXiv 2602.02482).

`rltf_grpo` plus cross-entropy on every correct later attempt as an answer to the bare problem, x_0 → y_k.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.methods.aux_loss import AuxCrossEntropy, AuxLossConfig
from rl2f_core.methods.rltf_grpo import RepromptGradientConfig, RepromptPolicyGradient
from rl2f_core.methods.samples import revision_sft_sample
from rl2f_core.registry import register
from rl2f_core.types import Group, TrainingSample


@register("method")
class SFTCorrect(AuxCrossEntropy["SFTCorrect.Config"], RepromptPolicyGradient["SFTCorrect.Config"]):
    """Reinforcement on both turns, and imitation of correct revisions."""

    class Config(RepromptGradientConfig, AuxLossConfig):
        """Reinforcement on both turns, and imitation of correct revisions."""

        type: Literal["sft_correct"] = "sft_correct"
        ce_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC_FIELD)
        """λ: weight of the cross-entropy on correct revisions."""

    def extra_samples(self, group: Group) -> list[TrainingSample]:
        if not self.ce_coef:
            return []
        return [
            revision_sft_sample(rollout, turn.index)
            for rollout in group.trainable
            for turn in rollout.dialogue.turns[1:]
            if turn.verdict.correct
        ]
