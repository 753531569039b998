"""`taxi`: drive to a passenger and to the destination, one action per attempt.

Rewards and transitions are those of Gymnasium's Taxi-v4. The *dangerous* variant and the goals pickup, dropoff and full
are those of Reflect-RL (arXiv 2402.12621); texts, random maps and hints are our own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.capabilities import Baselines, MisleadingHints
from rl2f_core.environments.stateful import OracleEnvironment, Step, actions_so_far
from rl2f_core.environments.worlds.taxi.dynamics import (
    ACTIONS,
    GOAL_REWARD,
    GYMNASIUM_MAP,
    ILLEGAL_REWARD,
    IN_TAXI,
    MOVES,
    STEP_REWARD,
    STOPS,
    Cell,
    TaxiMap,
    TaxiState,
    distances,
    next_stop,
    random_map,
    transition,
)
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

GOALS = {
    "pickup": "Pick up the passenger.",
    "dropoff": "The passenger is in the taxi. Drop the passenger off at the destination.",
    "full": "Pick up the passenger, and drop the passenger off at the destination.",
}


@register("environment")
class Taxi(OracleEnvironment[TaxiState], MisleadingHints, Baselines):
    """Six actions are valid in every state; a move into a wall changes nothing.

    Every task needs at least two different actions, so no constant action solves one.
    """

    invalid_reward = STEP_REWARD

    class Config(ComponentConfig):
        """Map, goal and variant."""

        type: Literal["taxi"] = "taxi"
        """Name of the environment."""
        goal: Literal["pickup", "dropoff", "full"] = Field("full", json_schema_extra=BASIC_FIELD)
        """pickup: reach the passenger. dropoff: the passenger is in the taxi at first. full: both."""
        dangerous: bool = Field(False, json_schema_extra=BASIC_FIELD)
        """An action that changes nothing has reward −10 and ends the episode."""
        first_pickup_reward: float = STEP_REWARD
        """Reward of the first pickup under goal full: −1 in Gymnasium, 20 in Reflect-RL."""
        map: Literal["random", "gymnasium"] = "random"
        """random: a new map for each task. gymnasium: the map of Taxi-v4."""
        size: int = Field(5, ge=3, le=9, json_schema_extra=BASIC_FIELD)
        """Rows and columns of random maps."""
        wall_rate: float = Field(0.2, ge=0, le=0.5)
        """Probability of a wall between two neighbors in a row of a random map."""
        show_map: bool = True
        """Each observation contains the map; otherwise only the problem does."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        config = self.config
        fixed = config.map == "gymnasium"
        taxi_map = TaxiMap(GYMNASIUM_MAP) if fixed else random_map(rng, config.size, config.wall_rate)
        while True:
            cell = rng.randrange(taxi_map.height), rng.randrange(taxi_map.width)
            passenger, destination = rng.sample(range(len(STOPS)), 2)
            inside = config.goal == "dropoff"
            state = TaxiState(*cell, IN_TAXI if inside else passenger, picked_up=inside)
            if cell != next_stop(taxi_map, state, destination):
                break
        public = {"map": list(taxi_map.rows), "state": list(state), "destination": destination}
        level = f"{config.goal}, dangerous" if config.dangerous else config.goal
        return new_task(self, level, public, {})

    def canonical(self, task: Task) -> str:
        """The smallest of the map and its three mirror images, with passenger, destination and taxi but no letters.

        The goal `pickup` has no destination.
        """
        taxi_map, (row, column, passenger, *_) = map_of(task), self.initial(task)
        marks = {} if self.config.goal == "pickup" else {STOPS[task.public["destination"]]: "D"}
        marks |= {STOPS[passenger]: "P"} if passenger != IN_TAXI else {}
        names = str.maketrans({letter: marks.get(letter, "o") for letter in STOPS})
        rows = [text.translate(names) for text in taxi_map.rows]
        images = []
        for lines, r in ((rows, row), (rows[::-1], taxi_map.height - 1 - row)):
            images.append(f"{'/'.join(lines)} {r} {column}")
            images.append(f"{'/'.join(line[::-1] for line in lines)} {r} {taxi_map.width - 1 - column}")
        return min(images)

    def system_prompt(self) -> str:
        return f"{self.rules()} Reply with one action of {', '.join(ACTIONS)}, as {wrap_answer('south')}."

    def rules(self) -> str:
        danger = " An action that changes nothing ends the episode." if self.config.dangerous else ""
        return (
            f"You drive the taxi T. Cells of a row are separated by : or by a wall |. R, G, Y and B are stops.{danger}"
        )

    def describe_state(self, task: Task, earlier: Sequence[Verdict]) -> str:
        """Return the problem with the current map, and the actions so far."""
        current = {**task.public, "state": list(self.restore(task, earlier))}
        return "\n".join((self.prompt(current), *actions_so_far(earlier)))

    def prompt(self, public: TaskData) -> str:
        taxi_map, state = TaxiMap(tuple(public["map"])), TaxiState(*public["state"])
        status = self._status(taxi_map, state, public["destination"])
        return f"{GOALS[self.config.goal]}\n{taxi_map.draw(state.cell)}\n{status}"

    def _status(self, taxi_map: TaxiMap, state: TaxiState, destination: int) -> str:
        """Return the positions in words: a small model does not find them on the map."""
        stop = f", at {STOPS[taxi_map.stops.index(state.cell)]}" if state.cell in taxi_map.stops else ""
        inside = state.passenger == IN_TAXI
        passenger = "in the taxi" if inside else f"at {self._stop(taxi_map, state.passenger)}"
        target = "" if self.config.goal == "pickup" else f" The destination is {self._stop(taxi_map, destination)}."
        return f"The taxi is in {place(state.cell)}{stop}. The passenger is {passenger}.{target}"

    @staticmethod
    def _stop(taxi_map: TaxiMap, stop: int) -> str:
        return f"{STOPS[stop]}, in {place(taxi_map.stops[stop])}"

    # -- episode -----------------------------------------------------------------------------------------------
    def initial(self, task: Task) -> TaxiState:
        return TaxiState(*task.public["state"])

    def parse(self, task: Task, text: str) -> str | None:
        """Return the action in lower case."""
        action = super().parse(task, text)
        return None if action is None else action.lower()

    def valid_actions(self, task: Task, state: TaxiState) -> Sequence[str]:
        return ACTIONS

    def step(self, task: Task, state: TaxiState, action: str) -> Step[TaxiState]:
        config, taxi_map, destination = self.config, map_of(task), task.public["destination"]
        after, reward, solved = transition(taxi_map, state, destination, action)
        if after.picked_up and not state.picked_up:
            solved = config.goal == "pickup"
            reward = GOAL_REWARD if solved else config.first_pickup_reward
        crashed = config.dangerous and after == state
        lines = [_describe(action, state, after), self._status(taxi_map, after, destination)]
        if config.show_map:
            lines.insert(1, taxi_map.draw(after.cell))
        return Step(after, "\n".join(lines), ILLEGAL_REWARD if crashed else reward, solved or crashed, solved)

    def oracle_action(self, task: Task, state: TaxiState) -> str:
        taxi_map, target = map_of(task), next_stop(map_of(task), state, task.public["destination"])
        left = distances(taxi_map, target)
        if not left[state.cell]:
            return "dropoff" if state.passenger == IN_TAXI else "pickup"
        return next(action for action in MOVES if left[taxi_map.move(state.cell, action)] < left[state.cell])

    def reflection(self, task: Task, state: TaxiState, action: str) -> str:
        """Return in which direction the next stop lies; for another action than the oracle's, in that of the action."""
        where = compass(state.cell, next_stop(map_of(task), state, task.public["destination"]))
        if action != self.oracle_action(task, state):
            where = action if action in MOVES else ""
        name = "destination" if state.passenger == IN_TAXI else "passenger"
        return f"The {name} is {f'to the {where}' if where else 'here'}. The next action is {action}."

    def distance(self, task: Task, state: TaxiState) -> float:
        """Return the actions that the oracle needs, divided by four times the side of the map; at most 1."""
        taxi_map, stops = map_of(task), map_of(task).stops
        destination = stops[task.public["destination"]]
        needed = distances(taxi_map, next_stop(taxi_map, state, task.public["destination"]))[state.cell] + 1
        if state.passenger != IN_TAXI and self.config.goal != "pickup":
            needed += distances(taxi_map, destination)[stops[state.passenger]] + 1
        return min(1.0, needed / (2 * (taxi_map.height + taxi_map.width)))

    # -- optional parts ----------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return in which direction the next stop lies, as the crow flies."""
        return self._direction_hint(task, attempts, rng, true=True)

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return the opposite direction, or any if the taxi is at the stop."""
        return self._direction_hint(task, attempts, rng, true=False)

    def _direction_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, true: bool) -> str:
        state = self.restore(task, attempts)
        target = next_stop(map_of(task), state, task.public["destination"])
        name = "destination" if state.passenger == IN_TAXI else "passenger"
        here = compass(state.cell, target)
        where = here if true else compass(target, state.cell) or rng.choice(list(MOVES))
        return f"The {name} is to the {where} of the taxi." if where else f"The taxi is at the {name}."

    def constant_baseline(self) -> ConstantBaseline:
        return ConstantBaseline("pickup", 0.0)


def map_of(task: Task) -> TaxiMap:
    """Return the map of a task."""
    return TaxiMap(tuple(task.public["map"]))


def place(cell: Cell) -> str:
    """Return row and column, counted from 1."""
    return f"row {cell[0] + 1}, column {cell[1] + 1}"


def compass(start: Cell, end: Cell) -> str:
    """Return the direction from one cell to another, e.g. `north-east`; empty if they are the same."""
    vertical = "south" if end[0] > start[0] else "north" if end[0] < start[0] else ""
    horizontal = "east" if end[1] > start[1] else "west" if end[1] < start[1] else ""
    return "-".join(filter(None, (vertical, horizontal)))


def _describe(action: str, before: TaxiState, after: TaxiState) -> str:
    """Return what an action did."""
    if before == after:
        return "A wall is in the way." if action in MOVES else f"{action.capitalize()} is not possible here."
    if action in MOVES:
        return f"The taxi moved {action}."
    return "The passenger got in." if action == "pickup" else "The passenger got out."
