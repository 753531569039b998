"""Solve rates of policies without a model: closed forms, and random actions in a stateful environment."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rl2f_core.common.stats.intervals import Interval, wilson_clustered
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Baselines
from rl2f_core.environments.stateful import StatefulEnvironment, StateT
from rl2f_core.types import FrozenModel, Task

EPISODES = 10
"""Episodes per task."""


class Reference(FrozenModel):
    """Closed-form solve probabilities within `turn` turns; see `environments.capabilities.SolveBounds`."""

    turn: int
    with_hints: float
    """Optimal policy with hints."""
    without_hints: float
    """Optimal policy that only learns whether an attempt is correct."""
    copying: float | None = None
    """Policy that keeps the confirmed answer parts and guesses the others."""


def references(environment: Environment, turns: int) -> tuple[Reference, ...]:
    """Return the environment's reference policies for t = 1 … `turns`; empty if it has none."""
    if not isinstance(environment, Baselines):
        return ()
    bounds = {t: environment.bounds(t) for t in range(1, turns + 1)}
    return tuple(Reference(turn=t, **bound._asdict()) for t, bound in bounds.items() if bound is not None)


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
