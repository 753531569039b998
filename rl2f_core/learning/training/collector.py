"""Collection of a step's dialogues: rollouts of the policy, or demonstrations of the environment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from rl2f_core.config.stage import ResolvedStage, StageConfig
from rl2f_core.dialogue.rollout.build import with_teacher
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest, derive_seed
from rl2f_core.dialogue.rollout.request import turn_seed
from rl2f_core.dialogue.rollout.trees import run_trees
from rl2f_core.dialogue.teachers.shuffled import RecordedHints, ShuffledTeacher
from rl2f_core.learning.methods.advantages import returns_to_go
from rl2f_core.learning.methods.base import DemonstrationSettings, Method
from rl2f_core.learning.training.curriculum import CurriculumTracker
from rl2f_core.learning.training.demonstrations import demonstrate
from rl2f_core.models.process_group import current_group
from rl2f_core.run.directory import RunDir
from rl2f_core.types import Dialogue, Group, RewardTerm, Rollout, Task


@dataclass
class Collector:
    """Collects the groups of one stage; all randomness follows from (run seed, stage, step, task, sample).

    Group size and temperature are those of the step. The first task of step s is at position `first_task` +
    s·`tasks_per_step`; those of resampled groups follow those of all steps. A curriculum draws them at its current
    level.
    """

    engine: RolloutEngine
    stage: StageConfig
    seed: int
    adapter: str | None = None
    policy: str = "base"
    on_progress: Callable[[int, int], None] | None = None
    first_task: int = 0
    """Position of the stage's first task in the train split (`RunConfig.first_task`)."""
    run_dir: RunDir | None = None
    """Directory of the run with its datasets, if any."""
    discarded_groups: list[Group] = field(default_factory=list)
    """Groups of the last step without learning signal that were resampled; they are not trained on."""
    curriculum: CurriculumTracker | None = None
    """Source of the tasks if the stage has a curriculum."""

    @property
    def level(self) -> int | None:
        """Current 1-based level of the curriculum; None without one."""
        return None if self.curriculum is None else self.curriculum.level + 1

    def resolve(self, step: int) -> ResolvedStage:
        """Return the settings of the stage at a 0-based step."""
        return self.stage.resolve(step, self.engine.config.temperature)

    def rollouts(self, now: ResolvedStage, method: Method) -> list[Group]:
        """Roll out the step's tasks; resample groups without learning signal up to `max_group_resamples`."""

        def roll_out(engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> list[Rollout]:
            rollouts = run_policy(engine, requests, method, recorded, adapter=self.adapter, policy=self.policy,
                                  temperature=now.temperature, on_progress=self.on_progress)  # fmt: skip
            return exchange_rewards(rollouts, method.turn_discount) if now.rewards == "random" else rollouts

        recorded: list[tuple[Task, Dialogue]] = []
        groups = self._collect(now, 0, now.step * now.tasks_per_step, now.tasks_per_step, roll_out)
        self.discarded_groups = []
        budget = now.max_group_resamples
        while budget > 0:
            flat = [i for i, group in enumerate(groups) if not method.has_learning_signal(group)][:budget]
            if not flat:
                break
            discarded = len(self.discarded_groups)
            stage = self.stage
            start = stage.steps * stage.tasks_per_step + now.step * stage.max_group_resamples + discarded
            fresh = self._collect(now, 1 + discarded, start, len(flat), roll_out)
            for i, group in zip(flat, fresh, strict=True):
                self.discarded_groups.append(groups[i])
                groups[i] = group
            budget -= len(flat)
        return groups

    def demonstrations(self, now: ResolvedStage, settings: DemonstrationSettings) -> list[Group]:
        """Generate the environment's demonstrations on the step's tasks."""
        turns = settings.max_turns or self.engine.config.max_turns

        def write(engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> list[Rollout]:
            return current_group().map_sharded(requests, lambda shard: demonstrate(engine, shard, settings, turns))

        return self._collect(now, 0, now.step * now.tasks_per_step, now.tasks_per_step, write)

    def _collect(
        self,
        now: ResolvedStage,
        resample_round: int,
        start: int,
        count: int,
        generate: Callable[[RolloutEngine, Sequence[RolloutRequest]], list[Rollout]],
    ) -> list[Group]:
        """Collect one group for each of the stage's tasks from position `start`, in order.

        All tasks of one engine are collected together.
        """
        step, size, name = now.step, now.group_size, now.name
        prefix = f"{name}/{step + 1}/{f'{resample_round}.' if resample_round else ''}"
        slots = [self._task(step, resample_round, i, self.first_task + start + i) for i in range(count)]
        groups: dict[int, Group] = {}
        for engine in {id(engine): engine for engine, _ in slots}.values():
            tasks = {i: task for i, (other, task) in enumerate(slots) if other is engine}
            requests = [
                request
                for i, task in tasks.items()
                for request in group_requests(task, f"{prefix}{i}", size, self.seed, name, step, resample_round, i)
            ]
            rollouts = generate(engine, requests)
            for k, (i, task) in enumerate(tasks.items()):
                groups[i] = Group(task, tuple(rollouts[k * size : (k + 1) * size]))
        return [groups[i] for i in range(count)]

    def _task(self, step: int, resample_round: int, slot: int, index: int) -> tuple[RolloutEngine, Task]:
        """Return a task and the engine that rolls it out."""
        if self.curriculum is not None:
            return self.curriculum.task(step, resample_round, slot, index)
        return self.engine, self.engine.environment.task("train", index)


def run_policy(
    engine: RolloutEngine,
    requests: Sequence[RolloutRequest],
    method: Method,
    recorded: list[tuple[Task, Dialogue]],
    **options: Any,
) -> list[Rollout]:
    """Roll out the requests of whole groups with the turns, trees and second teacher of a method.

    Args:
        engine: The engine.
        requests: The requests; each group has a multiple of `method.branches`.
        method: The method.
        recorded: Dialogues whose hints a `shuffled` teacher takes; those of this call are added.
        options: Further arguments of `RolloutEngine.run`.
    """
    options["max_turns"] = method.max_turns(engine.config.max_turns)
    other = None if method.second_teacher is None else with_teacher(engine, method.second_teacher)
    run_other = None if other is None else functools.partial(other.run, **options)
    if isinstance(engine.teacher, ShuffledTeacher):
        requests = with_recorded_hints(engine, engine.teacher, requests, recorded, options)
    return run_trees(functools.partial(engine.run, **options), requests, method.branches, run_other)


def with_recorded_hints(
    engine: RolloutEngine,
    teacher: ShuffledTeacher,
    requests: Sequence[RolloutRequest],
    recorded: list[tuple[Task, Dialogue]],
    options: dict[str, Any],
) -> list[RolloutRequest]:
    """Return requests with hints from dialogues of the same policy under the teacher's base on the step's other tasks.

    The first request of each group is run under the base, and its dialogue is added to `recorded`.
    """
    firsts = [request for request in requests if request.index == 0]
    sources = with_teacher(engine, teacher.config.base).run(firsts, **options)
    recorded += [(request.task, source.dialogue) for request, source in zip(firsts, sources, strict=True)]
    hints = RecordedHints(engine.environment, recorded, teacher.config.base.type)
    return [replace(request, recorded_hints=hints.match(request.task, request.seed)) for request in requests]


def exchange_rewards(rollouts: Sequence[Rollout], gamma: float) -> list[Rollout]:
    """Return rollouts whose returns were exchanged at random between the dialogues, at each turn separately.

    The return of a turn is Σ_j γ^j r_j over its reward and the later ones. Exchanged rewards would say something about
    the attempts: a wrong one is followed by more turns, so by more rewards. The permutation follows from the seeds of
    the dialogues. The mean return of each turn stays the same. Dialogues that are not trained on keep their rewards.
    """
    seeds = {i: rollout.dialogue.seed for i, rollout in enumerate(rollouts) if rollout.dialogue.trainable}
    earned = {i: returns_to_go([turn.reward for turn in rollouts[i].dialogue.turns], gamma) for i in seeds}
    exchanged = {i: [*returns, 0.0] for i, returns in earned.items()}
    for k in range(max(map(len, earned.values()), default=0)):
        members = [i for i, returns in earned.items() if len(returns) > k]
        for i, source in zip(members, sorted(members, key=lambda i: turn_seed(seeds[i], f"{k}/reward")), strict=True):
            exchanged[i][k] = earned[source][k]
    result = list(rollouts)
    for i, returns in exchanged.items():
        dialogue = rollouts[i].dialogue
        turns = tuple(
            turn.model_copy(update={"rewards": (RewardTerm(name="random", score=now - gamma * following),)})
            for turn, (now, following) in zip(dialogue.turns, pairwise(returns), strict=True)
        )
        result[i] = replace(rollouts[i], dialogue=dialogue.model_copy(update={"turns": turns}))
    return result


def group_requests(task: Task, group: str, size: int, seed: int, *keys: object) -> list[RolloutRequest]:
    """Return the requests of a group; the seed of sample j follows from (`seed`, `keys`, j)."""
    return [RolloutRequest(task, f"{group}/{j}", group, j, derive_seed(seed, *keys, j)) for j in range(size)]
