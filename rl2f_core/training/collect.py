"""Where a step's dialogues come from: played by the current policy, or demonstrated by the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl2f_core.config import StageConfig
from rl2f_core.methods.base import Method
from rl2f_core.ranks import here
from rl2f_core.rollout.engine import Request, RolloutEngine, derive_seed
from rl2f_core.run import RunDir
from rl2f_core.training.curriculum import Course
from rl2f_core.training.demonstrations import demonstrate
from rl2f_core.types import Group, Rollout, Task

SEED_STRIDE = 1_000_003
"""Tasks between the training streams of two run seeds."""
RESAMPLE_START = 500_000
"""Where in a run's stream the tasks of re-drawn groups begin."""
Place = tuple[RolloutEngine, Task]
"""A task of a step, and the engine that plays it."""


@dataclass
class Collector:
    """Collects groups for one stage; everything random follows from (run seed, stage, step, task, sample).

    Group size and temperature are those of the step, the tasks those of the level that the curriculum has reached.
    """

    engine: RolloutEngine
    stage: StageConfig
    seed: int
    adapter: str | None = None
    policy: str = "base"
    advanced: Callable[[int, int], None] | None = None
    run_dir: RunDir | None = None
    """The run, where stored data sets lie; None where there is none."""
    replaced: list[Group] = field(default_factory=list)
    """Groups of equal returns that were re-drawn in the last step: played and paid for, but not trained on."""
    course: Course | None = None
    """Where the tasks come from, where the stage has a curriculum."""

    def rollouts(self, step: int, method: Method) -> list[Group]:
        """The policy's dialogues on the step's tasks, groups of equal returns re-drawn up to the stage's budget."""
        first = step * self.stage.tasks_per_step
        groups = self._play(step, self._places(step, 0, first, self.stage.tasks_per_step), 0, method)
        self.replaced = []
        budget = self.stage.max_resamples
        while budget > 0:
            flat = [i for i, group in enumerate(groups) if not method.teaches(group)][:budget]
            if not flat:
                break
            redrawn = len(self.replaced)
            start = RESAMPLE_START + step * self.stage.max_resamples + redrawn
            fresh = self._play(step, self._places(step, 1 + redrawn, start, len(flat)), 1 + redrawn, method)
            for i, group in zip(flat, fresh, strict=True):
                self.replaced.append(groups[i])
                groups[i] = group
            budget -= len(flat)
        return groups

    def demonstrations(self, step: int, config: Any) -> list[Group]:
        """The environment's dialogues on the step's tasks."""
        places = self._places(step, 0, step * self.stage.tasks_per_step, self.stage.tasks_per_step)
        turns = config.max_turns or self.engine.config.max_turns

        def write(engine: RolloutEngine, asked: Sequence[Request]) -> list[Rollout]:
            return here().spread(asked, lambda own: demonstrate(engine, own, config, turns))

        return self._groups(step, places, 0, write)

    def _play(self, step: int, places: Sequence[Place], draw: int, method: Method) -> list[Group]:
        def play(engine: RolloutEngine, asked: Sequence[Request]) -> list[Rollout]:
            return engine.play(
                asked,
                adapter=self.adapter,
                policy=self.policy,
                max_turns=method.max_turns(engine.config.max_turns),
                temperature=self.stage.at(step).temperature,
                advanced=self.advanced,
            )

        return self._groups(step, places, draw, play)

    def _places(self, step: int, draw: int, start: int, count: int) -> list[Place]:
        """Tasks `start` … of this run's own part of the training stream."""
        indices = range(self.seed * SEED_STRIDE + start, self.seed * SEED_STRIDE + start + count)
        if self.course is not None:
            return [self.course.task(step, draw, i, index) for i, index in enumerate(indices)]
        return [(self.engine, self.engine.environment.task("train", index)) for index in indices]

    def _groups(
        self,
        step: int,
        places: Sequence[Place],
        draw: int,
        made: Callable[[RolloutEngine, Sequence[Request]], list[Rollout]],
    ) -> list[Group]:
        """One group a task, in order; all tasks of one engine are played together."""
        size = self.stage.at(step).group_size
        groups: dict[int, Group] = {}
        for engine in {id(engine): engine for engine, _ in places}.values():
            own = [i for i, (other, _) in enumerate(places) if other is engine]
            asked = [request for i in own for request in self._requests(step, draw, i, places[i][1], size)]
            rollouts = made(engine, asked)
            for k, i in enumerate(own):
                groups[i] = Group(places[i][1], tuple(rollouts[k * size : (k + 1) * size]))
        return [groups[i] for i in range(len(places))]

    def _requests(self, step: int, draw: int, i: int, task: Task, size: int) -> list[Request]:
        group = f"{self.stage.name}/{step + 1}/{f'{draw}.' if draw else ''}{i}"
        return [
            Request(task, f"{group}/{j}", group, j, derive_seed(self.seed, self.stage.name, step, draw, i, j))
            for j in range(size)
        ]
