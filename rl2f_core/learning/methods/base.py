"""Interface of a training method: from a group of dialogues to training samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.fields import BaseConfig, ComponentConfig
from rl2f_core.config.stage import ResolvedStage, StageConfig
from rl2f_core.errors import FieldValueError, RunError, refuse_ineffective
from rl2f_core.learning.methods.advantages import has_gradient, turn_advantages
from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.learning.methods.trl_compat import unsupported_options
from rl2f_core.types import Group, JsonObject, Task, TrainingSample

if TYPE_CHECKING:
    from rl2f_core.config.run import RunConfig
    from rl2f_core.dialogue.rollout.engine import RolloutEngine
    from rl2f_core.models.renderer import ChatRenderer
    from rl2f_core.run.directory import RunDir


ConfigT = TypeVar("ConfigT", bound=BaseConfig)
"""The `Config` of a method."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The current step, for ramps, and what a method needs to build its own samples from text."""

    renderer: ChatRenderer
    max_model_len: int
    """Longest token sequence of the model."""
    step: int
    """0-based step of the stage."""
    steps: int
    """Number of steps of the stage."""
    engine_of: Callable[[Task], RolloutEngine]
    """Engine of a task; a curriculum has one per level."""

    @classmethod
    def of(
        cls, engine: RolloutEngine, step: int, steps: int, engine_of: Callable[[Task], RolloutEngine] | None = None
    ) -> StepContext:
        """Build the context of a step of an engine."""
        engine_of = engine_of or (lambda task: engine)
        return cls(engine.renderer, engine.backend.max_model_len, step, steps, engine_of)


def refuse_random_rewards(stage: ResolvedStage, run: RunConfig, reason: str, fix: str) -> None:
    """Raise `FieldValueError` for a stage with `rewards: random`, whose method does not support it."""
    if stage.rewards == "random":
        raise FieldValueError(
            f"stage {stage.name!r}: rewards: random with {stage.method.type}: {reason}; {fix}",
            *run.loc_of(stage, "rewards"),
        )


def refuse_unused(stage: ResolvedStage, run: RunConfig, reason: str, *names: str) -> None:
    """Raise `FieldValueError` for a field of the stage's method that has a value although nothing reads it."""
    fields = type(stage.method).model_fields
    for name in names:
        if getattr(stage.method, name) != fields[name].default:
            refuse_ineffective(
                f"stage {stage.name!r}: {name} has no effect {reason}; leave it out",
                *run.loc_of(stage, "method", name),
            )


@dataclass(frozen=True, slots=True)
class DemonstrationSettings:
    """How the environment's simulated student acts; see `SFT.Config`."""

    hint_follow_rate: float
    final_correct_rate: float = 1.0
    first_correct_rate: float = 0.0
    max_turns: int | None = None


class Collector(Protocol):
    """Collects the dialogues of a stage step by step."""

    engine: RolloutEngine
    stage: StageConfig
    seed: int
    run_dir: RunDir | None

    @property
    def level(self) -> int | None:
        """Current 1-based level of the curriculum; None without one."""

    def rollouts(self, now: ResolvedStage, method: Method) -> list[Group]:
        """Roll out the policy on a step's tasks."""

    def demonstrations(self, now: ResolvedStage, settings: DemonstrationSettings) -> list[Group]:
        """Generate demonstrations on a step's tasks."""


class Method(ABC, Generic[ConfigT]):
    """Converts groups of dialogues into training samples."""

    Config: ClassVar[type[BaseConfig]]
    on_policy: ClassVar[bool] = True
    """Whether it trains on the policy's own dialogues; only then a preflight runs."""
    updates_weights: ClassVar[bool] = True
    """Whether its stages update weights; otherwise they make a dataset and save no checkpoint."""
    loss_terms: ClassVar[tuple[Literal["rl", "ce", "kl"], ...]] = ("rl", "kl")
    """Loss terms to which its samples may give weight."""
    uniform_weights: ClassVar[bool] = True
    """Whether all its samples have weights 0 or 1, default `policy_loss` and `min_logprob`, and no reference prompt."""
    prompt_modes: ClassVar[tuple[str, ...]] = ("append", "reprompt")
    """Supported values of `rollout.prompting`."""

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self._context: StepContext | None = None

    @classmethod
    def check_trainer(cls, stage: StageConfig) -> None:
        """Refuse a stage whose trainer does not support the method's samples; raises `FieldValueError`."""
        reason = cls(cast(ConfigT, stage.method)).unsupported_by_trl() if stage.trainer == "trl" else ""
        if reason:
            raise FieldValueError(
                f"stage {stage.name!r}: TRL's GRPO loss does not support {reason}; set trainer: native", "trainer"
            )

    def unsupported_by_trl(self) -> str:
        """Return what TRL's loss does not support of the method, as far as known before sampling; otherwise empty."""
        if not self.updates_weights:
            return "a stage that updates no weights"
        if "ce" in self.loss_terms:
            return f"the cross-entropy term of {self.name}"
        if not self.uniform_weights:
            return f"the samples of {self.name}, which have individual weights or another reference prompt"
        return unsupported_options(self.loss_options())

    def begin_step(self, context: StepContext) -> None:
        """Set the context of a step, before its samples and loss options are computed."""
        self._context = context

    @property
    def context(self) -> StepContext:
        """Context of the current step; raises `RunError` before `begin_step`."""
        if self._context is None:
            raise RunError("The method has no step context yet.", value=self.name, fix="Call begin_step first.")
        return self._context

    @property
    def name(self) -> str:
        """Registered name."""
        return str(self.Config.model_fields["type"].default)

    @property
    def turn_discount(self) -> float:
        """Discount per turn of the returns that compare the dialogues; `rewards: random` exchanges these returns."""
        return 1.0

    @property
    def compares_groups(self) -> bool:
        """Whether advantages compare the dialogues of a whole step instead of those of a group."""
        return False

    @property
    def branches(self) -> int:
        """Dialogues of a group that share a first attempt and its hint, see `rollout.trees`."""
        return 1

    @property
    def second_teacher(self) -> ComponentConfig | None:
        """Teacher of the later dialogues of a tree; None if they read the hint of the first one."""
        return None

    def max_turns(self, turns: int) -> int:
        """Return the maximum number of turns of its dialogues, at most `turns`."""
        return turns

    def trained_turns(self, turns: int) -> int:
        """Return how many of a dialogue's first `turns` turns it trains on."""
        return turns

    def state(self) -> JsonObject:
        """Return what a resumed run needs beside the weights, for a commit; by default nothing."""
        return {}

    def load_state(self, state: JsonObject) -> None:
        """Restore the result of `state`."""

    def prepare(self, collector: Collector, evaluation: EvaluationConfig) -> list[str]:
        """Check inputs before a stage's first step; return messages for the run's log."""
        return []

    def collect(self, collector: Collector, now: ResolvedStage) -> list[Group]:
        """Return the dialogues of a step; by default rollouts of the current policy."""
        return collector.rollouts(now, self)

    def advantages(self, group: Group) -> list[list[float]]:
        """Return the advantage of each turn of each trainable rollout, in order."""
        return [[0.0] * len(r.dialogue.turns) for r in group.trainable]

    def has_different_returns(self, group: Group) -> bool:
        """Return whether dialogues of the group that reached the same trained turn have different returns there."""
        dialogues = [r.dialogue for r in group.trainable]
        rewards = [[turn.reward for turn in d.turns[: self.trained_turns(len(d.turns))]] for d in dialogues]
        return has_gradient(turn_advantages(rewards, self.turn_discount))

    def has_learning_signal(self, group: Group) -> bool:
        """Return whether the group has a learning signal; otherwise it may be resampled."""
        return self.has_different_returns(group)

    @abstractmethod
    def samples(self, group: Group) -> list[TrainingSample]:
        """Return the training samples of one group.

        Samples without gradient stay in the means of the loss; they cost no forward pass.
        """

    def loss_options(self) -> LossConfig:
        """Return the loss configuration of this step."""
        return LossConfig()
