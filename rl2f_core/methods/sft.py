"""SFT on demonstrations: cross-entropy on the student's turns of well-formed dialogues of an imperfect student.

The environment writes the student's part: wrong tries by an error model, hints by the run's teacher, and (for a share
of the dialogues) a right last turn.  `follow` says how many revisions respect the hint, so the warm-up can be made to
know the form without knowing yet what hints are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.rows import imitation_rows
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample

if TYPE_CHECKING:
    from rl2f_core.training.collect import Collector


@register("method")
class SFT(Method):
    """Cross-entropy on demonstrations."""

    on_policy = False

    class Config(BaseConfig):
        """Supervised warm-up on the environment's imperfect student."""

        type: Literal["sft"] = "sft"
        follow: float = Field(0.5, ge=0, le=1, json_schema_extra=BASIC)
        """Share of revisions that respect the last hint; the others ignore it."""
        right_last: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC)
        """Share of dialogues whose last turn is made right."""
        right_first: float = Field(0.0, ge=0, le=1)
        """Share of dialogues that are right at once."""
        max_turns: int | None = Field(None, ge=1)
        """Turns of the longest demonstration; None is `rollout.max_turns`."""
        train_on: Literal["all", "last"] = "all"
        """Imitate all turns of the student, or the last one only."""

    def collect(self, collector: Collector, step: int) -> list[Group]:
        return collector.demonstrations(step, self.config)

    def samples(self, group: Group) -> list[Sample]:
        rows: list[Sample] = []
        for rollout in group.trainable:
            last = len(rollout.dialogue.turns) - 1
            rows += imitation_rows(rollout, range(last + 1) if self.config.train_on == "all" else [last])
        return rows
