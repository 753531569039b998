"""Imitation of right revisions: the plain alternative to RLTF-SD (arXiv 2602.02482).

Beside `rltf_grpo` cross-entropy on every right later attempt as an answer to the bare question, x_0 → y_k.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config import BASIC
from rl2f_core.methods.coefficient import Imitates, TermConfig
from rl2f_core.methods.rltf_grpo import RLTFGRPO, FreshGradientConfig
from rl2f_core.methods.rows import answer_row
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample


@register("method")
class SFTCorrect(Imitates, RLTFGRPO):
    """Reinforcement on both turns, and imitation of what came out right with feedback."""

    class Config(FreshGradientConfig, TermConfig):
        """Reinforcement on both turns, and imitation of right revisions."""

        type: Literal["sft_correct"] = "sft_correct"
        ce_coef: float = Field(0.1, ge=0, json_schema_extra=BASIC)
        """λ: weight of the cross-entropy on right revisions."""

    def further(self, group: Group) -> list[Sample]:
        if not self.ce_coef:
            return []
        return [
            answer_row(rollout, turn.index)
            for rollout in group.trainable
            for turn in rollout.dialogue.turns[1:]
            if turn.verdict.correct
        ]
