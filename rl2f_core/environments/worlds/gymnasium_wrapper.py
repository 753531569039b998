"""`gymnasium:<id>`: an environment of the package gymnasium with discrete actions, as text.

A task is the seed of `reset`. The wrapped environment must follow from this seed and the actions, because each turn
takes the recorded actions again. Its text is the rendering `ansi`, if it has one, and the observation.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.stateful import StatefulEnvironment, Step
from rl2f_core.errors import ConfigError, shorten
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, TaskData

MAX_TEXT = 4_000
"""Longer observations are cut."""
SEEDS = 2**31
_HIGHLIGHTED = re.compile(r"(?:\x1b\[(?!0m)[\d;]*m)+([^\x1b]*)(?:\x1b\[0m)+")
_worlds = threading.local()


@register("environment")
class Gymnasium(StatefulEnvironment[Any]):
    """The state is the wrapped environment, of which each thread has one; `initial` resets it."""

    member_field: ClassVar[str] = "id"

    class Config(ComponentConfig):
        """Environment, settings and texts."""

        type: Literal["gymnasium"] = "gymnasium"
        """Name of the environment; `gymnasium:Taxi-v4` is short for this type and the id Taxi-v4."""
        id: str = Field("FrozenLake-v1", min_length=1, json_schema_extra=BASIC_FIELD)
        """Registered id of the environment in gymnasium."""
        settings: dict[str, JsonValue] = Field(default_factory=dict)
        """Arguments of `gymnasium.make`, e.g. is_slippery of FrozenLake-v1."""
        instructions: str = Field("", json_schema_extra=BASIC_FIELD)
        """What the student reads before the first observation."""
        action_names: tuple[str, ...] = Field((), json_schema_extra=BASIC_FIELD)
        """Names of the actions in order; by default their numbers."""
        solved_above: float = 0.0
        """An episode is solved if it terminates with a last reward above this."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._key = json.dumps([config.id, config.settings], sort_keys=True)
        space = self._world().action_space
        if not hasattr(space, "n"):
            raise ConfigError("The environment has no discrete actions.", value=f"{config.id}: {space}")
        self._first = int(getattr(space, "start", 0))
        self.actions = config.action_names or tuple(str(self._first + k) for k in range(int(space.n)))
        if len(self.actions) != space.n or len(set(self.actions)) != len(self.actions):
            raise ConfigError(
                "action_names needs one unique name for each action.", value=list(self.actions),
                fix=f"Name the {space.n} actions of {config.id}.",
            )  # fmt: skip

    def _world(self) -> Any:
        """Return this thread's copy of the wrapped environment."""
        worlds: dict[str, Any] = _worlds.__dict__
        if self._key not in worlds:
            worlds[self._key] = _make(self.config.id, self.config.settings)
        return worlds[self._key]

    def task(self, split: Split, index: int) -> Task:
        """Two seeds count as two problems, also if they start in the same state."""
        task = sample_task(self, split, index, self.config.seed, self._draw)
        public = {**task.public, "observation": self._reset(task.public["seed"])[1]}
        return task.model_copy(update={"public": public})

    def _draw(self, rng: random.Random) -> Task:
        return new_task(self, self.config.id, {"seed": rng.randrange(SEEDS)}, {})

    def canonical(self, task: Task) -> str:
        """The wrapped environment and the seed."""
        return f"{self._key} {task.public['seed']}"

    def system_prompt(self) -> str:
        return f"Reply with one action of {', '.join(self.actions)}, as {wrap_answer(self.actions[0])}."

    def prompt(self, public: TaskData) -> str:
        return "\n".join(filter(None, (self.config.instructions, public["observation"])))

    def _reset(self, seed: int) -> tuple[Any, str]:
        world = self._world()
        observation, _ = world.reset(seed=seed)
        return world, _text(world, observation)

    def initial(self, task: Task) -> Any:
        """Reset this thread's copy, which ends the use of earlier states."""
        return self._reset(task.public["seed"])[0]

    def valid_actions(self, task: Task, state: Any) -> Sequence[str]:
        return self.actions

    def step(self, task: Task, state: Any, action: str) -> Step[Any]:
        observation, reward, terminated, truncated, _ = state.step(self._first + self.actions.index(action))
        solved = bool(terminated) and float(reward) > self.config.solved_above
        return Step(state, _text(state, observation), float(reward), bool(terminated or truncated), solved)


def _make(name: str, settings: dict[str, JsonValue]) -> Any:
    """Make an environment that renders text if it can. Raises `ConfigError` without the package or the environment."""
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ImportError as error:
        raise ConfigError(
            "Environment gymnasium needs the package gymnasium.", value=name, fix="Run: pip install gymnasium"
        ) from error
    try:
        world = gymnasium.make(name, **settings)
        if "ansi" not in world.metadata.get("render_modes", ()):
            return world
        world.close()
        return gymnasium.make(name, render_mode="ansi", **settings)
    except Exception as error:  # an environment may raise anything
        raise ConfigError(f"gymnasium cannot make this environment: {shorten(str(error), 300)}", value=name) from error


def _text(world: Any, observation: Any) -> str:
    """Return rendering and observation. Highlighted text is put in brackets, because a prompt has no colors."""
    rendering = world.render() if world.render_mode == "ansi" else ""
    drawn = _HIGHLIGHTED.sub(r"[\1]", rendering).strip("\n")
    return shorten("\n".join(filter(None, (drawn, f"Observation: {observation}"))), MAX_TEXT)
