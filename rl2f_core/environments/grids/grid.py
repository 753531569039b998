"""Grids of open cells and walls with a start and a goal: reading, walking, distances, and how a walk goes wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

Cell = tuple[int, int]
"""Row and column, from 0."""
OPEN, WALL, START, GOAL = ".", "#", "S", "G"
STEPS: dict[str, Cell] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""What each direction adds to row and column."""
MAX_SIDE = 12
"""Rows or columns of the largest grid."""
Fault = Literal["wall", "edge", "wasted", "short"]
"""Why a walk is no shortest way: it enters a wall, leaves the grid, does not come nearer, or ends too early."""


class PathError(NamedTuple):
    """Where a walk first goes wrong."""

    step: int
    """The number of the step, from 1; of a walk that is only too short, the number of its steps."""
    fault: Fault


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells in rows; exactly one is the start and exactly one other the goal."""

    rows: tuple[str, ...]

    @property
    def text(self) -> str:
        """As the student sees it: a line for each row, a space between cells."""
        return "\n".join(" ".join(row) for row in self.rows)

    @property
    def key(self) -> str:
        """On one line."""
        return "/".join(self.rows)

    def find(self, mark: str) -> Cell:
        """The one cell with this mark."""
        return next((r, row.index(mark)) for r, row in enumerate(self.rows) if mark in row)

    def inside(self, cell: Cell) -> bool:
        """Whether the cell is inside the grid."""
        return 0 <= cell[0] < len(self.rows) and 0 <= cell[1] < len(self.rows[0])

    def is_open(self, cell: Cell) -> bool:
        """Whether the cell is inside the grid and no wall."""
        return self.inside(cell) and self.rows[cell[0]][cell[1]] != WALL


def moved(cell: Cell, letter: str) -> Cell:
    """The neighbor in a direction, inside the grid or not."""
    down, right = STEPS[letter]
    return cell[0] + down, cell[1] + right


def read_grid(text: str) -> Grid | None:
    """The grid in a text: the first lines in a row that hold only cells, with spaces between them or not.

    None if there is none, its rows differ in length, it exceeds `MAX_SIDE`, or start or goal are not unique.
    """
    rows: list[str] = []
    for line in text[:10_000].splitlines():
        cells = line.replace(" ", "")
        if cells and set(cells) <= {OPEN, WALL, START, GOAL}:
            rows.append(cells)
        elif rows:
            break
    joined = "".join(rows)
    if not rows or len({len(row) for row in rows}) > 1 or max(len(rows), len(rows[0])) > MAX_SIDE:
        return None
    return Grid(tuple(rows)) if joined.count(START) == joined.count(GOAL) == 1 else None


@lru_cache(4096)
def to_goal(grid: Grid) -> dict[Cell, int]:
    """The number of steps to the goal from each cell that can reach it; do not modify."""
    return distances_to(grid, grid.find(GOAL))


def distances_to(grid: Grid, target: Cell) -> dict[Cell, int]:
    """The number of steps between `target` and each cell connected to it, by breadth-first search."""
    free = {(r, c) for r, row in enumerate(grid.rows) for c, mark in enumerate(row) if mark != WALL}
    steps, queue = {target: 0}, deque([target])
    while queue:
        row, column = cell = queue.popleft()
        for down, right in STEPS.values():
            near = row + down, column + right
            if near in free and near not in steps:
                steps[near] = steps[cell] + 1
                queue.append(near)
    return steps


def length_of(grid: Grid) -> int | None:
    """Length of a shortest path, or None if there is none."""
    return to_goal(grid).get(grid.find(START))


def find_path(grid: Grid, pick: Sequence[int] = ()) -> str | None:
    """A shortest path as letters, or None if there is none.

    Args:
        grid: The grid.
        pick: Where several directions are as short, the one at this place of them (modulo their number), for each
            step; by default the first in the order of `STEPS`.
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


def walked(grid: Grid, letters: str) -> list[Cell]:
    """The cells of a walk from the start, up to the last before it would enter a wall or leave the grid."""
    cells = [grid.find(START)]
    for letter in letters:
        near = moved(cells[-1], letter)
        if not grid.is_open(near):
            break
        cells.append(near)
    return cells


def first_path_error(grid: Grid, letters: str) -> PathError | None:
    """The first error of a walk compared with a shortest path; None if it is one.

    Without any path, no step is wasted: only walls, edges and the end are errors.
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
