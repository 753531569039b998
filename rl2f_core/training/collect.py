"""Where a step's dialogues come from: played by the current policy, or demonstrated by the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rl2f_core.config import StageConfig
from rl2f_core.methods.base import Method
from rl2f_core.rollout.engine import Request, RolloutEngine, derive_seed
from rl2f_core.training.demonstrations import demonstrate
from rl2f_core.types import Group, Rollout, Task

SEED_STRIDE = 1_000_003
"""Tasks between the training streams of two run seeds."""
RESAMPLE_START = 500_000
"""Where in a run's stream the tasks of re-drawn groups begin."""


@dataclass
class Collector:
    """Collects groups for one stage; everything random follows from (run seed, stage, step, task, sample)."""

    engine: RolloutEngine
    stage: StageConfig
    seed: int
    adapter: str | None = None
    policy: str = "base"
    advanced: Callable[[int, int], None] | None = None
    replaced: list[Group] = field(default_factory=list)
    """Groups of equal returns that were re-drawn in the last step: played and paid for, but not trained on."""

    def rollouts(self, step: int, method: Method) -> list[Group]:
        """The policy's dialogues on the step's tasks, groups of equal returns re-drawn up to the stage's budget."""
        first = step * self.stage.tasks_per_step
        groups = self._play(step, [self._task(first + i) for i in range(self.stage.tasks_per_step)], 0, method)
        self.replaced = []
        budget = self.stage.max_resamples
        while budget > 0:
            flat = [i for i, group in enumerate(groups) if not method.teaches(group)][:budget]
            if not flat:
                break
            redrawn = len(self.replaced)
            start = RESAMPLE_START + step * self.stage.max_resamples + redrawn
            fresh = self._play(step, [self._task(start + j) for j in range(len(flat))], 1 + redrawn, method)
            for i, group in zip(flat, fresh, strict=True):
                self.replaced.append(groups[i])
                groups[i] = group
            budget -= len(flat)
        return groups

    def demonstrations(self, step: int, config: Any) -> list[Group]:
        """The environment's dialogues on the step's tasks."""
        first = step * self.stage.tasks_per_step
        tasks = [self._task(first + i) for i in range(self.stage.tasks_per_step)]
        turns = config.max_turns or self.engine.config.max_turns
        return self._groups(tasks, demonstrate(self.engine, self._requests(step, tasks, 0), config, turns))

    def _play(self, step: int, tasks: list[Task], round_: int, method: Method) -> list[Group]:
        rollouts = self.engine.play(
            self._requests(step, tasks, round_),
            adapter=self.adapter,
            policy=self.policy,
            max_turns=method.max_turns(self.engine.config.max_turns),
            temperature=self.stage.temperature,
            advanced=self.advanced,
        )
        return self._groups(tasks, rollouts)

    def _task(self, index: int) -> Task:
        return self.engine.environment.task("train", self.seed * SEED_STRIDE + index)

    def _requests(self, step: int, tasks: list[Task], round_: int) -> list[Request]:
        requests = []
        for i, task in enumerate(tasks):
            group = f"{self.stage.name}/{step + 1}/{f'{round_}.' if round_ else ''}{i}"
            for j in range(self.stage.group_size):
                seed = derive_seed(self.seed, self.stage.name, step, round_, i, j)
                requests.append(Request(task, f"{group}/{j}", group, j, seed))
        return requests

    def _groups(self, tasks: list[Task], rollouts: list[Rollout]) -> list[Group]:
        size = self.stage.group_size
        return [Group(task, tuple(rollouts[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]
