"""Grids of open cells and walls with a start and a goal: parsing, walks, distances, and the first error of a walk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from rl2f_core.environments.base import find_rows

Cell = tuple[int, int]
"""Row and column, from 0."""
OPEN, WALL, START, GOAL = ".", "#", "S", "G"
STEPS: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Change of row and column by direction."""
MAX_SIDE = 12
"""Rows or columns of the largest grid."""
MAX_WAYS = 2_000
"""Ways through a grid that `ways_of` lists."""
Fault = Literal["wall", "edge", "wasted", "short"]
"""Why a walk is not a shortest path: it enters a wall, leaves the grid, comes no nearer, or ends too early."""


class PathError(NamedTuple):
    """The first error of a walk."""

    step: int
    """Number of the step, from 1; of a walk that is only too short, the number of its steps."""
    fault: Fault

    @property
    def correct_steps(self) -> int:
        """Number of steps before the error."""
        return self.step - (self.fault != "short")


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells in rows; exactly one is the start and exactly one other the goal."""

    rows: tuple[str, ...]

    @property
    def text(self) -> str:
        """The grid in a prompt: one line per row, a space between cells."""
        return "\n".join(" ".join(row) for row in self.rows)

    @property
    def key(self) -> str:
        """The grid on one line."""
        return "/".join(self.rows)

    def find(self, mark: str) -> Cell:
        """Return the only cell with this mark."""
        return next((r, row.index(mark)) for r, row in enumerate(self.rows) if mark in row)

    def inside(self, cell: Cell) -> bool:
        """Return whether the cell is inside the grid."""
        return 0 <= cell[0] < len(self.rows) and 0 <= cell[1] < len(self.rows[0])

    def is_open(self, cell: Cell) -> bool:
        """Return whether the cell is inside the grid and not a wall."""
        return self.inside(cell) and self.rows[cell[0]][cell[1]] != WALL


def moved(cell: Cell, letter: str) -> Cell:
    """Return the neighbor in a direction, inside the grid or not."""
    down, right = STEPS[letter]
    return cell[0] + down, cell[1] + right


def read_grid(text: str) -> Grid | None:
    """Return the first grid in a text, with spaces between cells or not.

    None if there is none, its rows differ in length, it exceeds `MAX_SIDE`, or start or goal are not unique.
    """
    rows = find_rows(text, OPEN + WALL + START + GOAL)
    joined = "".join(rows)
    if not rows or len({len(row) for row in rows}) > 1 or max(len(rows), len(rows[0])) > MAX_SIDE:
        return None
    return Grid(tuple(rows)) if joined.count(START) == joined.count(GOAL) == 1 else None


@lru_cache(4096)
def to_goal(grid: Grid) -> dict[Cell, int]:
    """Return the number of steps to the goal from each cell that can reach it; do not modify."""
    return distances_to(grid, grid.find(GOAL))


def distances_to(grid: Grid, target: Cell) -> dict[Cell, int]:
    """Return the number of steps between `target` and each cell connected to it, by breadth-first search."""
    steps, queue = {target: 0}, deque([target])
    while queue:
        cell = queue.popleft()
        for letter in STEPS:
            near = moved(cell, letter)
            if grid.is_open(near) and near not in steps:
                steps[near] = steps[cell] + 1
                queue.append(near)
    return steps


def length_of(grid: Grid) -> int | None:
    """Return the length of a shortest path, or None if there is none."""
    return to_goal(grid).get(grid.find(START))


def find_path(grid: Grid, pick: Sequence[int] = ()) -> str | None:
    """Return a shortest path as letters, or None if there is none.

    Args:
        grid: The grid.
        pick: For each step, the index (modulo their number) of the direction among equally short ones; by default
            the first in the order of `STEPS`.
    """
    left, cell = to_goal(grid), grid.find(START)
    if cell not in left:
        return None
    path = ""
    while left[cell]:
        good = [x for x in STEPS if left.get(moved(cell, x), -1) == left[cell] - 1]
        path += good[pick[len(path)] % len(good) if len(path) < len(pick) else 0]
        cell = moved(cell, path[-1])
    return path


@lru_cache(256)
def ways_of(grid: Grid) -> tuple[str, ...] | None:
    """Return all walks from start to goal that visit no cell twice, as letters.

    None if there are more than `MAX_WAYS`, or if the search would take more than ten times as many steps.
    """
    left, start, goal = to_goal(grid), grid.find(START), grid.find(GOAL)
    ways: list[str] = []
    stack = [("", start, frozenset([start]))] if start in left else []
    for _ in range(10 * MAX_WAYS):
        if not stack or len(ways) > MAX_WAYS:
            break
        walk, cell, seen = stack.pop()
        if cell == goal:
            ways.append(walk)
            continue
        near = ((letter, moved(cell, letter)) for letter in STEPS)
        stack += [(walk + x, next_, seen | {next_}) for x, next_ in near if next_ in left and next_ not in seen]
    return None if stack or len(ways) > MAX_WAYS else tuple(ways)


def walked(grid: Grid, letters: str) -> list[Cell]:
    """Return the cells of a walk from the start, up to the last before it would enter a wall or leave the grid."""
    cells = [grid.find(START)]
    for letter in letters:
        near = moved(cells[-1], letter)
        if not grid.is_open(near):
            break
        cells.append(near)
    return cells


def first_path_error(grid: Grid, letters: str) -> PathError | None:
    """Return the first error of a walk compared with a shortest path; None if it is one.

    On an infeasible grid, no step counts as wasted: only walls, edges and the end are errors.
    """
    left, cell = to_goal(grid), grid.find(START)
    for k, letter in enumerate(letters, 1):
        near = moved(cell, letter)
        if not grid.is_open(near):
            return PathError(k, "wall" if grid.inside(near) else "edge")
        if cell in left and left[near] >= left[cell]:
            return PathError(k, "wasted")
        cell = near
    return None if left.get(cell) == 0 else PathError(len(letters), "short")
