"""`shortest_path`: a shortest path from S to G around the walls of a grid, or "infeasible".

The task family is that of RLTF (arXiv 2602.02482): 5 to 6 rows and columns, each cell blocked with probability 0.4.
In RLTF, the constant answer "infeasible" earns .385, because unparsable answers count as it. Here it earns the
configured fraction of infeasible tasks, only the word itself counts, and start and goal always differ.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import sample_task, wrap_answer
from rl2f_core.environments.puzzles.grids.grid import (
    GOAL,
    MAX_SIDE,
    OPEN,
    START,
    WALL,
    Grid,
    PathError,
    first_path_error,
    length_of,
)
from rl2f_core.environments.puzzles.grids.path_environment import PathEnvironment
from rl2f_core.errors import DataError, FieldValueError
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, TaskData

_MAX_DRAWS = 100_000


@register("environment")
class ShortestPath(PathEnvironment):
    """Any walk of the shortest length through open cells is correct.

    There are 9,216 grids of 3×3 (72 positions of S and G, 2⁷ of the walls) and about 3.9 million of 4×4; `min_steps`
    excludes easy ones. Splits share no grid.
    """

    infeasible = True
    wasted_hint = "Step {k} is wasted."

    class Config(ComponentConfig):
        """Level and seed."""

        type: Literal["shortest_path"] = "shortest_path"
        """Name of the environment."""
        smallest: int = Field(5, ge=2, le=MAX_SIDE, json_schema_extra=BASIC_FIELD)
        """Minimum number of rows and of columns, which are drawn independently."""
        largest: int = Field(6, ge=2, le=MAX_SIDE, json_schema_extra=BASIC_FIELD)
        """Maximum number of rows and of columns."""
        p_blocked: float = Field(0.4, ge=0, le=0.9)
        """Probability that a cell other than S and G is a wall."""
        infeasible: float | None = Field(0.2, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Fraction of tasks without a path to G, which is the score of the constant answer `infeasible`. None leaves it
        to chance, about a third at the default level."""
        min_steps: int = Field(2, ge=1, le=20)
        """Minimum length of the shortest path, in tasks that have one."""
        seed: int = 0
        """Seed of the task order."""

        @model_validator(mode="after")
        def _check_level(self) -> ShortestPath.Config:
            if self.smallest > self.largest:
                raise FieldValueError(f"smallest is {self.smallest} but largest only {self.largest}", "smallest")
            if self.min_steps > 2 * (self.largest - 1):
                raise FieldValueError(
                    f"min_steps is {self.min_steps}, more than {self.largest} rows and columns often have", "min_steps"
                )
            if self.infeasible and self.p_blocked == 0:
                raise FieldValueError(
                    "without walls every task has a way: set infeasible to 0 or p_blocked above 0", "infeasible"
                )
            return self

    config: Config

    def task(self, split: Split, index: int) -> Task:
        """Draw feasibility before the grid, so that the fraction is the same in every split."""
        fraction, seed = self.config.infeasible, self.config.seed
        point = random.Random(f"{self.name}/{seed}/{split}/{index}/feasible").random()
        blocked = None if fraction is None else point < fraction
        return sample_task(self, split, index, seed, partial(self._make, blocked=blocked))

    def _make(self, rng: random.Random, blocked: bool | None) -> Task:
        for _ in range(_MAX_DRAWS):
            rows, columns = (rng.randint(self.config.smallest, self.config.largest) for _ in range(2))
            cells = [WALL if rng.random() < self.config.p_blocked else OPEN for _ in range(rows * columns)]
            start, goal = rng.sample(range(rows * columns), 2)
            cells[start], cells[goal] = START, GOAL
            grid = Grid(tuple("".join(cells[r * columns : (r + 1) * columns]) for r in range(rows)))
            steps = length_of(grid)
            if (steps is None or steps >= self.config.min_steps) and blocked in (None, steps is None):
                return self._build(grid)
        raise DataError(
            "No grid of this level was found.",
            value=self.config.model_dump(),
            fix="Choose a larger grid, other walls, or fewer min_steps.",
        )

    def system_prompt(self) -> str:
        return f"Reply as {wrap_answer('R D')} or {wrap_answer('infeasible')}."

    def prompt(self, public: TaskData) -> str:
        grid = Grid(tuple(public["grid"]))
        return f"{grid.text}\nShortest way from S to G with U, D, L, R, not through #, or infeasible?"

    def find_error(self, grid: Grid, letters: str) -> PathError | None:
        return first_path_error(grid, letters)

    def partial_score(self, grid: Grid, letters: str, error: PathError) -> float:
        """Steps before the error, divided by the length of a shortest path or of the walk, whichever is greater."""
        return error.correct_steps / max(length_of(grid) or 1, len(letters))
