"""The contract of a training method: from a group of dialogues to training rows.  The trainer knows no method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rl2f_core.config import BaseConfig, EvaluationConfig
from rl2f_core.errors import RunError
from rl2f_core.methods.credit import has_gradient
from rl2f_core.types import Group, Sample

if TYPE_CHECKING:
    from rl2f_core.environments.base import Environment
    from rl2f_core.rollout.engine import RolloutEngine
    from rl2f_core.rollout.render import Renderer
    from rl2f_core.training.collect import Collector


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a method stands: the step, for schedules, and what words become tokens with, for rows of its own making."""

    environment: Environment
    renderer: Renderer
    context: int
    """Tokens that the model can read at once."""
    step: int
    """0-based, of the stage."""
    steps: int
    """Of the whole stage."""

    @classmethod
    def of(cls, engine: RolloutEngine, step: int, steps: int) -> Scene:
        """The scene of a step whose dialogues an engine plays."""
        return cls(engine.environment, engine.renderer, engine.backend.context_limit, step, steps)


class Method(ABC):
    """Turns groups into samples."""

    Config: ClassVar[type[BaseConfig]]
    on_policy: ClassVar[bool] = True
    """Whether it trains on the student's own dialogues, so that a preflight can say if there is anything to learn."""
    trains: ClassVar[bool] = True
    """Whether its stages change weights; one that does not makes a data set and saves no checkpoint."""
    streams: ClassVar[tuple[Literal["rl", "ce", "kl"], ...]] = ("rl", "kl")
    """The streams that its rows may give weight to."""
    plain: ClassVar[bool] = True
    """Whether all its rows count alike: the weights are 0 or 1, `Sample.weighting` and `floor` are as they are unless
    set, and the reference reads what the policy reads."""
    histories: ClassVar[tuple[str, ...]] = ("dialogue", "fresh")
    """The `rollout.history` that its rows can be made from; a configuration with another is refused."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self._scene: Scene | None = None

    def begin(self, scene: Scene) -> None:
        """Told before a step's rows and options are asked for."""
        self._scene = scene

    @property
    def scene(self) -> Scene:
        """Where it stands; raises `RunError` before `begin`."""
        if self._scene is None:
            raise RunError("The method does not know its step yet.", value=self.name, fix="Call begin first.")
        return self._scene

    @property
    def name(self) -> str:
        """The registered name."""
        return self.config.type

    def max_turns(self, turns: int) -> int:
        """How many turns its dialogues have, where the configuration allows `turns`."""
        return turns

    def prepare(self, collector: Collector, evaluation: EvaluationConfig) -> list[str]:
        """Called before a stage's first step: raises where it cannot work; returns what the run's log should say."""
        return []

    def collect(self, collector: Collector, step: int) -> list[Group]:
        """The dialogues to train on at a step: by default the current policy's own."""
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
        """Fields of `training.losses.LossConfig` at this step: coefficients, and what else the rows need
        (`methods.objectives`)."""
        return {}
