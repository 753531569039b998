"""Where a stage is in its curriculum: which level its tasks come from, and when the next one begins.

The state is plain data that each commit holds, and the draw of old levels follows from (run seed, stage, step, place),
so that a resumed run plays the same levels.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rl2f_core.config import RunConfig, StageConfig
from rl2f_core.curricula import Curriculum, level_of, marked
from rl2f_core.environments.base import Environment
from rl2f_core.evaluation.metrics import right_within
from rl2f_core.rollout.build import build_engine
from rl2f_core.rollout.engine import RolloutEngine
from rl2f_core.types import Group, Task

Counts = tuple[int, int]
"""Dialogues solved, and dialogues in all."""


def moves_on(curriculum: Curriculum, level: int, steps: int, window: Sequence[Counts]) -> bool:
    """Whether the level after `level` (0-based) begins now.

    Args:
        curriculum: Its levels and threshold.
        level: The one in play.
        steps: How many steps it lasted.
        window: Of its last steps, oldest first.
    """
    if level + 1 == len(curriculum.levels):
        return False
    limit = curriculum.levels[level].steps
    if limit is not None and steps >= limit:
        return True
    share = solve_rate(window)
    full = len(window) >= curriculum.window
    return curriculum.solve_rate is not None and full and share is not None and share >= curriculum.solve_rate


def solve_rate(window: Sequence[Counts]) -> float | None:
    """The share solved of all dialogues in the window; None where it has none."""
    solved, played = sum(s for s, _ in window), sum(n for _, n in window)
    return solved / played if played else None


class Course:
    """One stage's way through its levels.

    Args:
        stage: With a curriculum.
        engines: One a level.
        seed: Of the run.
        state: As a commit held it; None begins at the first level.
    """

    def __init__(
        self, stage: StageConfig, engines: Sequence[RolloutEngine], seed: int, state: dict[str, Any] | None = None
    ) -> None:
        assert stage.curriculum is not None
        self.stage, self.curriculum, self.engines, self.seed = stage, stage.curriculum, list(engines), seed
        self.level = int(state["level"]) if state else 0
        self.steps = int(state["steps"]) if state else 0
        self.window: list[Counts] = [(s, n) for s, n in state["window"]] if state else []

    @property
    def state(self) -> dict[str, Any]:
        """What a resume needs: the level, the steps it lasted, and what its last steps solved."""
        return {"level": self.level, "steps": self.steps, "window": [list(counts) for counts in self.window]}

    def task(self, step: int, draw: int, place: int, index: int) -> tuple[RolloutEngine, Task]:
        """The task at a place of a step, and the engine that plays its level.

        Args:
            step: 0-based.
            draw: 0, or which round of re-drawn groups.
            place: Of the group in the step or round.
            index: Of the task in its level's train stream.
        """
        level = self.level
        rng = random.Random(f"{self.seed}/{self.stage.name}/curriculum/{step}/{draw}/{place}")
        if level > 0 and rng.random() < self.curriculum.old:
            level = rng.randrange(level)
        engine = self.engines[level]
        return engine, marked(engine.environment.task("train", index), level + 1)

    def environment_of(self, task: Task) -> Environment:
        """The environment of the level that a task is of."""
        return self.engines[(level_of(task.id) or 1) - 1].environment

    def after(self, groups: Sequence[Group], *, on_policy: bool) -> tuple[dict[str, float], str]:
        """Count what a step played and move on where it is time.

        Returns:
            Metrics of the step (`curriculum/level`, 1-based, as it was played; `curriculum/solve_rate` of the window;
            `curriculum/old_solve_rate` of the step), and what to tell people where the next level begins, else "".
        """
        by_level: dict[int, Counts] = {}
        for group in groups:
            level = (level_of(group.task.id) or 1) - 1
            solved, played = by_level.get(level, (0, 0))
            dialogues = [rollout.dialogue for rollout in group.trainable]
            turns = 1 if self.curriculum.solved == "first" else max((len(d.turns) for d in dialogues), default=1)
            solved += sum(right_within(d, turns) for d in dialogues)
            by_level[level] = solved, played + len(dialogues)
        self.steps += 1
        self.window = [*self.window, by_level.pop(self.level, (0, 0))][-self.curriculum.window :]
        metrics = {"curriculum/level": float(self.level + 1)}
        rates = {"curriculum/solve_rate": solve_rate(self.window),
                 "curriculum/old_solve_rate": solve_rate(list(by_level.values()))}  # fmt: skip
        if on_policy:
            metrics |= {name: rate for name, rate in rates.items() if rate is not None}
        if not moves_on(self.curriculum, self.level, self.steps, self.window):
            return metrics, ""
        rate = solve_rate(self.window) if on_policy else None
        why = "" if rate is None else f"; {rate:.2f} of its last dialogues were solved"
        text = f"level {self.level + 1} lasted {self.steps} steps{why}"
        self.level, self.steps, self.window = self.level + 1, 0, []
        words = self.curriculum.levels[self.level].in_words()
        return metrics, f"Level {self.level + 1} of {len(self.curriculum.levels)} begins ({words}): {text}."


def course_of(
    config: RunConfig, stage: StageConfig, engine: RolloutEngine, state: dict[str, Any] | None = None
) -> Course | None:
    """A stage's way through its curriculum, with an engine a level over the backend of `engine`; None without one."""
    if stage.curriculum is None:
        return None
    engines = [
        build_engine(config.model_copy(update={"environment": level}), engine.backend, models=engine.teacher.models)
        for level in stage.curriculum.environments(config.environment)
    ]
    return Course(stage, engines, config.seed, state)
