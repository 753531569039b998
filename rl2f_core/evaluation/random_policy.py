"""Solve rate of the random policy in a stateful environment: each action is drawn uniformly from the valid ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rl2f_core.common.stats.intervals import Interval, wilson_clustered
from rl2f_core.environments.stateful import StatefulEnvironment, StateT
from rl2f_core.types import Task

EPISODES = 10
"""Episodes per task."""


def random_policy(environment: StatefulEnvironment[StateT], tasks: Sequence[Task], turns: int) -> tuple[Interval, ...]:
    """Return the fraction of tasks that random valid actions solve within t turns, for t = 1 … `turns`."""
    solved_at = [[_solved_at(environment, task, turns, i) for i in range(EPISODES)] for task in tasks]
    counts = [float(EPISODES)] * len(tasks)
    return tuple(
        wilson_clustered([float(sum(0 < at <= t for at in episodes)) for episodes in solved_at], counts)
        for t in range(1, turns + 1)
    )


def _solved_at(environment: StatefulEnvironment[StateT], task: Task, turns: int, episode: int) -> int:
    """Return the 1-based turn at which one episode is solved; 0 if it is not."""
    rng, state = random.Random(f"random policy/{task.id}/{episode}"), environment.initial(task)
    for turn in range(1, turns + 1):
        step = environment.step(task, state, rng.choice(environment.valid_actions(task, state)))
        if step.solved or step.done:
            return turn if step.solved else 0
        state = step.state
    return 0
