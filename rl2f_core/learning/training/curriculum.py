"""Progress of a stage through its curriculum: the level of its tasks, and the advance to the next level.

The state is plain data in each commit. The choice of earlier levels follows from (run seed, stage, step, index), so a
resumed run uses the same levels.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rl2f_core.config.curriculum import Curriculum, level_of, tag_level
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.metrics.dialogues import solved_within
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.environments.base import Environment
from rl2f_core.types import Group, JsonObject, Task

Counts = tuple[int, int]
"""Number of solved dialogues, and of all dialogues."""


def should_advance(curriculum: Curriculum, level: int, steps: int, window: Sequence[Counts]) -> bool:
    """Return whether the next level begins.

    Args:
        level: Current 0-based level.
        steps: Number of steps at this level.
        window: Counts of its last steps, oldest first.
    """
    if level + 1 == len(curriculum.levels):
        return False
    limit = curriculum.levels[level].steps
    if limit is not None and steps >= limit:
        return True
    rate = solve_rate(window)
    full = len(window) >= curriculum.window_steps
    return (
        curriculum.solve_rate_threshold is not None
        and full
        and rate is not None
        and rate >= curriculum.solve_rate_threshold
    )


def solve_rate(window: Sequence[Counts]) -> float | None:
    """Return the fraction of solved dialogues in the window; None without dialogues."""
    solved, played = sum(s for s, _ in window), sum(n for _, n in window)
    return solved / played if played else None


class CurriculumTracker:
    """Tracks the current level of one stage.

    Args:
        engines: One per level.
        state: State of a commit; None starts at the first level.
    """

    def __init__(
        self, stage: StageConfig, engines: Sequence[RolloutEngine], seed: int, state: JsonObject | None = None
    ) -> None:
        assert stage.curriculum is not None
        self.stage, self.curriculum, self.engines, self.seed = stage, stage.curriculum, list(engines), seed
        self.level = int(state["level"]) if state else 0
        self.steps = int(state["steps"]) if state else 0
        self.window: list[Counts] = [(s, n) for s, n in state["window"]] if state else []

    @property
    def state(self) -> JsonObject:
        """State for a resume: level, its number of steps, and counts of its last steps."""
        return {"level": self.level, "steps": self.steps, "window": [list(counts) for counts in self.window]}

    def task(self, step: int, resample_round: int, slot: int, index: int) -> tuple[RolloutEngine, Task]:
        """Return a task and the engine of its level, which may be an earlier one (`replay_fraction`).

        Args:
            step: 0-based step.
            resample_round: 0, or the number of the resampling round.
            slot: Index of the group in the step or round.
            index: Index of the task in the level's train split.
        """
        level = self.level
        rng = random.Random(f"{self.seed}/{self.stage.name}/curriculum/{step}/{resample_round}/{slot}")
        if level > 0 and rng.random() < self.curriculum.replay_fraction:
            level = rng.randrange(level)
        engine = self.engines[level]
        return engine, tag_level(engine.environment.task("train", index), level + 1)

    def environment_of(self, task: Task) -> Environment:
        """Return the environment of a task's level."""
        return self.engine_of(task).environment

    def engine_of(self, task: Task) -> RolloutEngine:
        """Return the engine of a task's level."""
        return self.engines[(level_of(task.id) or 1) - 1]

    def record_step(self, groups: Sequence[Group], *, on_policy: bool) -> tuple[dict[str, float], str]:
        """Count the dialogues of a step and advance to the next level if due.

        Returns:
            Metrics of the step (`curriculum/level`, 1-based, as rolled out; `curriculum/solve_rate` of the window;
            `curriculum/replay_solve_rate` of the step), and a message if the next level begins, else "".
        """
        by_level: dict[int, Counts] = {}
        for group in groups:
            level = (level_of(group.task.id) or 1) - 1
            solved, played = by_level.get(level, (0, 0))
            dialogues = [rollout.dialogue for rollout in group.trainable]
            turns = (
                1 if self.curriculum.solved_at == "first_turn" else max((len(d.turns) for d in dialogues), default=1)
            )
            solved += sum(bool(solved_within(d, turns)) for d in dialogues)
            by_level[level] = solved, played + len(dialogues)
        self.steps += 1
        self.window = [*self.window, by_level.pop(self.level, (0, 0))][-self.curriculum.window_steps :]
        metrics = {"curriculum/level": float(self.level + 1)}
        rates = {
            "curriculum/solve_rate": solve_rate(self.window),
            "curriculum/replay_solve_rate": solve_rate(list(by_level.values())),
        }
        if on_policy:
            metrics |= {name: rate for name, rate in rates.items() if rate is not None}
        if not should_advance(self.curriculum, self.level, self.steps, self.window):
            return metrics, ""
        rate = solve_rate(self.window) if on_policy else None
        reason = "" if rate is None else f"; {rate:.2f} of its last dialogues were solved"
        text = f"level {self.level + 1} lasted {self.steps} steps{reason}"
        self.level, self.steps, self.window = self.level + 1, 0, []
        settings = self.curriculum.levels[self.level].describe()
        return metrics, f"Level {self.level + 1} of {len(self.curriculum.levels)} begins ({settings}): {text}."


def tracker_for_stage(
    config: RunConfig, stage: StageConfig, engine: RolloutEngine, state: JsonObject | None = None
) -> CurriculumTracker | None:
    """Build the tracker of a stage, with one engine per level on the backend of `engine`; None without curriculum."""
    if stage.curriculum is None:
        return None
    engines = [
        build_engine(config.model_copy(update={"environment": level}), engine.backend, models=engine.teacher.models)
        for level in stage.curriculum.environments(config.environment)
    ]
    return CurriculumTracker(stage, engines, config.seed, state)
