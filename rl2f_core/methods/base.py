"""The contract of a training method: from a group of dialogues to training rows.  The trainer knows no method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from rl2f_core.config import BaseConfig
from rl2f_core.methods.credit import has_gradient
from rl2f_core.types import Group, Sample

if TYPE_CHECKING:
    from rl2f_core.rollout.engine import RolloutEngine
    from rl2f_core.training.collect import Collector


class Method(ABC):
    """Turns groups into samples."""

    Config: ClassVar[type[BaseConfig]]
    on_policy: ClassVar[bool] = True
    """Whether it trains on the student's own dialogues, so that a preflight can say if there is anything to learn."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.engine: RolloutEngine | None = None

    @property
    def name(self) -> str:
        """The registered name."""
        return self.config.type

    def max_turns(self, turns: int) -> int:
        """How many turns its dialogues have, where the configuration allows `turns`."""
        return turns

    def bind(self, engine: RolloutEngine) -> None:
        """Know what plays the dialogues, before rows are made of them: some need the words of its prompts."""
        self.engine = engine

    def collect(self, collector: Collector, step: int) -> list[Group]:
        """The dialogues to train on at a step: by default the current policy's own."""
        self.bind(collector.engine)
        return collector.rollouts(step, self)

    def advantages(self, group: Group) -> list[list[float]]:
        """For each trainable rollout of the group, in order, the advantage of each turn (0 where none)."""
        return [[0.0] * len(r.dialogue.turns) for r in group.trainable]

    def teaches(self, group: Group) -> bool:
        """Whether the group by itself carries a gradient; a group that does not may be drawn again."""
        return has_gradient(self.advantages(group))

    @abstractmethod
    def samples(self, group: Group) -> list[Sample]:
        """Training rows from one group. A group without gradient gives none."""

    def loss_options(self) -> dict[str, Any]:
        """Fields of `training.losses.LossConfig`: coefficients, and what else the rows need (`methods.objectives`)."""
        return {}
