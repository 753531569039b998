"""`maze`: a path from S to G through a maze, as a whole or extended in each turn.

The corridors of a maze form a spanning tree of its rooms, so without `loops` exactly one path does not turn back.
The task is that of RL²F's maze navigation; generator, texts and verifier are our own.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import sample_task, wrap_answer
from rl2f_core.environments.puzzles.grids.grid import (
    GOAL,
    OPEN,
    START,
    STEPS,
    WALL,
    Grid,
    PathError,
    first_path_error,
    length_of,
    moved,
    to_goal,
    walked,
)
from rl2f_core.environments.puzzles.grids.path_environment import PathEnvironment
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, TaskData


@register("environment")
class Maze(PathEnvironment):
    """Any walk through open cells that ends on G is correct, even if it is not the shortest.

    A maze of r×r rooms has (2r−1)×(2r−1) cells: rooms are two cells apart, and the cell between two rooms is open or a
    wall. Without loops there are 48 mazes of 2×2 rooms and 13,824 of 3×3 (192 trees, 72 positions of S and G). Splits
    share no maze, also up to rotation and reflection.
    """

    infeasible = False
    wasted_hint = "Step {k} turns away from G."

    class Config(ComponentConfig):
        """Level, form of answers and seed."""

        type: Literal["maze"] = "maze"
        """Name of the environment."""
        rooms: int = Field(3, ge=2, le=6, json_schema_extra=BASIC_FIELD)
        """Rooms per row and per column, r."""
        loops: float = Field(0.0, ge=0, le=1)
        """Probability that a closed wall between two rooms is opened."""
        play: Literal["path", "steps"] = Field("path", json_schema_extra=BASIC_FIELD)
        """`path`: hints name the first wrong step. `steps`: an attempt may stop anywhere, and hints also name the row
        and column where the walk ended; the next attempt repeats the walk and extends it, so each turn explores
        further."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        rooms, side = self.config.rooms, 2 * self.config.rooms - 1
        cells = [[WALL] * side for _ in range(side)]
        stack = [(rng.randrange(rooms), rng.randrange(rooms))]
        seen = set(stack)
        while stack:
            room = stack[-1]
            cells[2 * room[0]][2 * room[1]] = OPEN
            near = [n for n in (moved(room, letter) for letter in STEPS) if n not in seen]
            near = [n for n in near if 0 <= min(n) and max(n) < rooms]
            if not near:
                stack.pop()
                continue
            new = rng.choice(near)
            cells[room[0] + new[0]][room[1] + new[1]] = OPEN
            seen.add(new)
            stack.append(new)
        for r in range(side):
            for c in range(side):
                if (r + c) % 2 and cells[r][c] == WALL and rng.random() < self.config.loops:
                    cells[r][c] = OPEN
        for mark, position in zip((START, GOAL), rng.sample(range(rooms**2), 2), strict=True):
            cells[2 * (position // rooms)][2 * (position % rooms)] = mark
        return self._build(Grid(tuple("".join(row) for row in cells)))

    def system_prompt(self) -> str:
        more = " You may stop anywhere and go on next time." if self.config.play == "steps" else ""
        return f"Reply with the steps from S on, as {wrap_answer('R D')}.{more}"

    def prompt(self, public: TaskData) -> str:
        return f"{Grid(tuple(public['grid'])).text}\nWay from S to G with U, D, L, R, not through #?"

    def find_error(self, grid: Grid, letters: str) -> PathError | None:
        """The first step into a wall or away from G; None for any walk that ends on G."""
        cells = walked(grid, letters)
        if len(cells) == len(letters) + 1 and cells[-1] == grid.find(GOAL):
            return None
        return first_path_error(grid, letters)

    def partial_score(self, grid: Grid, letters: str, error: PathError) -> float:
        """Fraction of the distance from S to G that the walk covers, up to a wall; all but one step after leaving G."""
        whole = length_of(grid) or 1
        return max(0.0, (whole - max(1, to_goal(grid)[walked(grid, letters)[-1]])) / whole)

    def describe_position(self, grid: Grid, letters: str) -> str:
        if self.config.play == "path":
            return ""
        row, column = walked(grid, letters)[-1]
        return f" You stand in row {row + 1}, column {column + 1}."
