"""Maps, states and transitions of the taxi problem, equal to Gymnasium's Taxi-v4 on its map.

Source: T. G. Dietterich, Hierarchical Reinforcement Learning with the MAXQ Value Function Decomposition (2000).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

Cell = tuple[int, int]
"""Row and column, from 0."""
MOVES: dict[str, Cell] = {"south": (1, 0), "north": (-1, 0), "east": (0, 1), "west": (0, -1)}
"""Change of row and column by action."""
ACTIONS = (*MOVES, "pickup", "dropoff")
"""Actions in the order of Gymnasium's numbers 0 … 5."""
STOPS = "RGYB"
"""Letters of the stops."""
IN_TAXI = len(STOPS)
"""`TaxiState.passenger` while the passenger is in the taxi."""
STEP_REWARD, ILLEGAL_REWARD, GOAL_REWARD = -1.0, -10.0, 20.0
GYMNASIUM_MAP = (
    "+---------+",
    "|R: | : :G|",
    "| : | : : |",
    "| : : : : |",
    "| | : | : |",
    "|Y| : |B: |",
    "+---------+",
)


class TaxiState(NamedTuple):
    """Positions of taxi and passenger."""

    row: int
    column: int
    passenger: int
    """Index of a stop, or `IN_TAXI`."""
    picked_up: bool = False
    """The passenger was in the taxi at some time."""

    @property
    def cell(self) -> Cell:
        """Cell of the taxi."""
        return self.row, self.column


@dataclass(frozen=True)
class TaxiMap:
    """A map as Gymnasium writes it: cell (r, c) is `rows[r + 1][2c + 1]`, and `|` beside it is a wall."""

    rows: tuple[str, ...]

    @property
    def height(self) -> int:
        """Number of rows of cells."""
        return len(self.rows) - 2

    @property
    def width(self) -> int:
        """Number of columns of cells."""
        return len(self.rows[0]) // 2

    @cached_property
    def stops(self) -> tuple[Cell, ...]:
        """Cells of the stops, in the order of `STOPS`."""
        found = {mark: (r - 1, c // 2) for r, row in enumerate(self.rows) for c, mark in enumerate(row)}
        return tuple(found[letter] for letter in STOPS)

    def move(self, cell: Cell, action: str) -> Cell:
        """Return the cell after a move: the same one at a wall or the edge."""
        down, right = MOVES[action]
        if right and self.rows[cell[0] + 1][2 * cell[1] + 1 + right] != ":":
            return cell
        return min(max(cell[0] + down, 0), self.height - 1), cell[1] + right

    def draw(self, taxi: Cell) -> str:
        """Return the map with T at the taxi's cell."""
        rows, (r, c) = list(self.rows), taxi
        rows[r + 1] = rows[r + 1][: 2 * c + 1] + "T" + rows[r + 1][2 * c + 2 :]
        return "\n".join(rows)


@lru_cache(1024)
def distances(taxi_map: TaxiMap, target: Cell) -> dict[Cell, int]:
    """Return the number of moves to `target` from each cell that can reach it; do not modify."""
    steps, queue = {target: 0}, deque([target])
    while queue:
        cell = queue.popleft()
        for action in MOVES:  # moves are symmetric
            near = taxi_map.move(cell, action)
            if near not in steps:
                steps[near] = steps[cell] + 1
                queue.append(near)
    return steps


def transition(taxi_map: TaxiMap, state: TaxiState, destination: int, action: str) -> tuple[TaxiState, float, bool]:
    """Return next state, reward and whether the passenger was delivered, as Gymnasium's Taxi-v4."""
    if action in MOVES:
        row, column = taxi_map.move(state.cell, action)
        return state._replace(row=row, column=column), STEP_REWARD, False
    here = taxi_map.stops.index(state.cell) if state.cell in taxi_map.stops else None
    if action == "pickup" and here is not None and state.passenger == here:
        return state._replace(passenger=IN_TAXI, picked_up=True), STEP_REWARD, False
    if action == "dropoff" and here is not None and state.passenger == IN_TAXI:
        delivered = here == destination
        return state._replace(passenger=here), GOAL_REWARD if delivered else STEP_REWARD, delivered
    return state, ILLEGAL_REWARD, False


def next_stop(taxi_map: TaxiMap, state: TaxiState, destination: int) -> Cell:
    """Return the cell that the taxi must reach next: the passenger's, then the destination."""
    return taxi_map.stops[destination if state.passenger == IN_TAXI else state.passenger]


def random_map(rng: random.Random, size: int, wall_rate: float) -> TaxiMap:
    """Return a connected map of size×size cells.

    A wall is between two cells of a row with probability `wall_rate`. Columns have no walls, as in Gymnasium's map.
    """
    edge = "+" + "-" * (2 * size - 1) + "+"
    while True:
        letters = dict(
            zip(rng.sample([(r, c) for r in range(size) for c in range(size)], len(STOPS)), STOPS, strict=True)
        )
        rows = []
        for r in range(size):
            cells = [letters.get((r, c), " ") for c in range(size)]
            walls = ["|" if rng.random() < wall_rate else ":" for _ in range(size - 1)]
            rows.append("|" + "".join(a + b for a, b in zip(cells, [*walls, "|"], strict=True)))
        taxi_map = TaxiMap((edge, *rows, edge))
        if len(distances(taxi_map, (0, 0))) == size**2:
            return taxi_map
