"""`maze`: a way from S to G through a maze, in one piece or step by step.

The corridors of a maze form a tree (a spanning tree of its rooms), so without `loops` there is one way that does not
turn back. The task kind is that of RL²F's maze navigation; generator, texts and verifier are our own.
"""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import sample_task, wrap_answer
from rl2f_core.environments.grids.grid import (
    GOAL,
    OPEN,
    START,
    WALL,
    Cell,
    Fault,
    Grid,
    PathError,
    first_path_error,
    length_of,
    to_goal,
    walked,
)
from rl2f_core.environments.grids.path_environment import PathEnvironment
from rl2f_core.registry import register
from rl2f_core.types import Split, Task, TaskData


@register("environment")
class Maze(PathEnvironment):
    """Any walk through open cells that ends on G is right, the shortest or not.

    A maze of r×r rooms is drawn on (2r−1)×(2r−1) cells: rooms lie two apart, and what is between two of them is open
    or a wall. Of 2×2 rooms there are 48 mazes, so the splits have few; of 3×3 without loops 13,824 (192 trees, 72
    places of S and G). Splits share no maze.
    """

    infeasible = False
    faults: ClassVar[dict[Fault, str]] = {
        "wall": "Step {k} hits a wall.",
        "edge": "Step {k} leaves the grid.",
        "wasted": "Step {k} turns away from G.",
        "short": "After step {k} you are not at G yet.",
    }

    class Config(ComponentConfig):
        """Level, form of play and seed."""

        type: Literal["maze"] = "maze"
        """Name of the environment."""
        rooms: int = Field(3, ge=2, le=6, json_schema_extra=BASIC_FIELD)
        """Rooms in a row and in a column, r."""
        loops: float = Field(0.0, ge=0, le=1)
        """How often a wall between two rooms is opened that the tree would leave closed."""
        play: Literal["path", "steps"] = Field("path", json_schema_extra=BASIC_FIELD)
        """`path`: the teacher says which step goes wrong. `steps`: an attempt may stop anywhere, and the teacher says
        also in which row and column the walk came to stand; the next attempt repeats the walk so far and goes on, so
        each turn explores further."""
        seed: int = 0
        """Fixes the stream of tasks."""

    config: Config

    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        rooms, side = self.config.rooms, 2 * self.config.rooms - 1
        cells = [[WALL] * side for _ in range(side)]
        seen, stack = {(0, 0)}, [(rng.randrange(rooms), rng.randrange(rooms))]
        seen = set(stack)
        while stack:
            room = stack[-1]
            cells[2 * room[0]][2 * room[1]] = OPEN
            near = [n for n in _around(room, rooms) if n not in seen]
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

    def _slip(self, grid: Grid, letters: str) -> PathError | None:
        """The first step into a wall or away from G; None for any walk that ends on G."""
        cells = walked(grid, letters)
        if len(cells) == len(letters) + 1 and cells[-1] == grid.find(GOAL):
            return None
        return first_path_error(grid, letters)

    def _score(self, grid: Grid, letters: str, slip: PathError) -> float:
        """The share of the way from S that the walk has come nearer to G where it ends or enters a wall; having left
        G again is one step away."""
        whole = length_of(grid) or 1
        return max(0.0, (whole - max(1, to_goal(grid)[walked(grid, letters)[-1]])) / whole)

    def _seen(self, grid: Grid, letters: str, slip: PathError) -> str:
        if self.config.play == "path":
            return ""
        row, column = walked(grid, letters)[-1]
        return f" You stand in row {row + 1}, column {column + 1}."


def _around(room: Cell, rooms: int) -> list[Cell]:
    near = [(room[0] - 1, room[1]), (room[0] + 1, room[1]), (room[0], room[1] - 1), (room[0], room[1] + 1)]
    return [(r, c) for r, c in near if 0 <= r < rooms and 0 <= c < rooms]
