"""`taxi`: transitions of Gymnasium's Taxi-v4, random maps, the dangerous variant, goals, hints and the oracle."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from stateful_contract import check_episode, check_oracle, take

from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import new_task
from rl2f_core.environments.worlds.taxi.dynamics import (
    ACTIONS,
    GYMNASIUM_MAP,
    IN_TAXI,
    STOPS,
    TaxiMap,
    TaxiState,
    distances,
    random_map,
    transition,
)
from rl2f_core.environments.worlds.taxi.environment import Taxi, compass, map_of
from rl2f_core.leaks.mentions.training import scripted_queries
from rl2f_core.types import SPLITS, Split, Task

TABLE = Path(__file__).with_name("taxi_v4.json")
"""`env.P` of Gymnasium's Taxi-v4: one letter per state and action, whose meaning is (change of state, reward, end)."""
GYMNASIUM = TaxiMap(GYMNASIUM_MAP)


def decode(number: int) -> tuple[TaxiState, int]:
    """State and destination of Gymnasium's number of a state."""
    number, destination = divmod(number, len(STOPS))
    number, passenger = divmod(number, len(STOPS) + 1)
    return TaxiState(*divmod(number, 5), passenger), destination


def encode(state: TaxiState, destination: int) -> int:
    return ((state.row * 5 + state.column) * 5 + state.passenger) * 4 + destination


def environment(**config: Any) -> Taxi:
    return Taxi(Taxi.Config(**config))


def made(environment: Taxi, state: TaxiState, destination: str) -> Task:
    """A task on Gymnasium's map."""
    public = {"map": list(GYMNASIUM_MAP), "state": list(state), "destination": STOPS.index(destination)}
    return new_task(environment, "made", public, {})


def test_every_transition_equals_that_of_gymnasium() -> None:
    table = json.loads(TABLE.read_text())
    letters = "".join(table["transitions"])
    assert len(letters) == 500 * 6 and len(set(letters)) == 18
    for position, letter in enumerate(letters):
        number, action = divmod(position, 6)
        change, reward, ended = table["legend"][letter]
        state, destination = decode(number)
        after, got, delivered = transition(GYMNASIUM, state, destination, ACTIONS[action])
        assert (encode(after, destination), got, delivered) == (number + change, reward, ended), (number, action)


def test_an_episode_on_the_map_of_gymnasium_has_its_rewards() -> None:
    """From row 3, column 1 with the passenger at Y and the destination R; computed by hand."""
    held = environment(map="gymnasium")
    task = made(held, TaxiState(2, 0, STOPS.index("Y")), "R")
    verdicts = take(held, task, ["west", "dropoff", "south", "south", "pickup", "pickup", *["north"] * 4, "dropoff"])
    assert [v.reward for v in verdicts] == [-1, -10, -1, -1, -1, -10, -1, -1, -1, -1, 20]
    assert [v.correct for v in verdicts] == [False] * 10 + [True]
    assert held.plan(task) == ["south", "south", "pickup", "north", "north", "north", "north", "dropoff"]


def test_walls_block_moves_to_the_east_and_west_alone() -> None:
    assert GYMNASIUM.move((0, 1), "east") == (0, 1) and GYMNASIUM.move((0, 2), "west") == (0, 2)
    assert GYMNASIUM.move((0, 0), "east") == (0, 1) and GYMNASIUM.move((0, 1), "south") == (1, 1)
    edges = {"north": (0, 3), "south": (4, 3), "west": (2, 0), "east": (2, 4)}
    assert all(GYMNASIUM.move(cell, action) == cell for action, cell in edges.items())


def test_random_maps_are_connected_and_differ() -> None:
    rng = random.Random(0)
    maps = [random_map(rng, size, 0.5) for size in (3, 5, 9) for _ in range(20)]
    assert all(len(distances(each, (0, 0))) == each.width * each.height for each in maps)
    assert all(len(set(each.stops)) == len(STOPS) for each in maps)
    assert len({each.rows for each in maps}) == len(maps) and {each.width for each in maps} == {3, 5, 9}


def test_the_oracle_takes_as_few_actions_as_breadth_first_search_needs() -> None:
    """The search walks all states, so it would find a shorter way through drops at other stops."""
    held = environment()
    for index in range(6):
        task = held.task("test", index)
        start, taxi_map, destination = held.initial(task), map_of(task), task.public["destination"]
        frontier, seen, depth, solved = {start}, {start}, 0, False
        while not solved:
            depth += 1
            steps = [transition(taxi_map, state, destination, action) for state in frontier for action in ACTIONS]
            solved = any(delivered for _, _, delivered in steps)
            frontier = {state for state, _, _ in steps} - seen
            seen |= frontier
        assert len(held.plan(task)) == depth


@pytest.mark.parametrize("goal", ["pickup", "dropoff", "full"])
@pytest.mark.parametrize("more", [{}, {"dangerous": True}, {"map": "gymnasium"}, {"show_map": False, "size": 3}])
def test_every_goal_and_variant_keeps_the_contract(goal: str, more: dict[str, Any]) -> None:
    held = environment(goal=goal, **more)
    keys = {}
    for split in SPLITS:
        tasks = [held.task(split, index) for index in range(12)]
        keys[split] = {held.canonical(task) for task in tasks}
        for task in tasks[:3]:
            check_episode(held, task, random.Random(task.id))
            check_oracle(held, task)
            assert len(set(held.plan(task))) > 1  # the constant baseline is 0
    assert keys["train"].isdisjoint(keys["test"]) and keys["validation"].isdisjoint(keys["test"])


def test_the_goals_start_and_end_where_they_say() -> None:
    assert environment(goal="dropoff").task("train", 0).public["state"][2] == IN_TAXI
    for goal, last in (("pickup", "pickup"), ("dropoff", "dropoff"), ("full", "dropoff")):
        held = environment(goal=goal)
        plan = held.plan(held.task("train", 1))
        assert plan[-1] == last and plan.count("pickup") == (goal != "dropoff")
    held = environment(goal="pickup")
    verdict = take(held, held.task("train", 1), held.plan(held.task("train", 1)))[-1]
    assert (verdict.reward, verdict.correct, verdict.done) == (20, True, True)


def test_an_action_without_effect_ends_a_dangerous_episode() -> None:
    for dangerous, ends, reward in ((True, True, -10), (False, False, -1)):
        held = environment(dangerous=dangerous)
        (verdict,) = take(held, made(held, TaxiState(2, 0, 0), "B"), ["west"])
        assert (verdict.done, verdict.reward, verdict.correct) == (ends, reward, False)
    held = environment(dangerous=True)
    (verdict,) = take(held, made(held, TaxiState(2, 0, 0), "B"), ["pickup"])
    assert (verdict.done, verdict.reward) == (True, -10)
    (verdict,) = take(held, made(held, TaxiState(2, 0, 0), "B"), ["fly"])
    assert (verdict.done, verdict.reward) == (False, -1)  # no action of the taxi at all


def test_only_the_first_pickup_has_its_own_reward() -> None:
    held = environment(map="gymnasium", first_pickup_reward=20)
    task = made(held, TaxiState(1, 0, STOPS.index("R")), "Y")
    verdicts = take(held, task, ["north", "pickup", "south", "north", "dropoff", "pickup"])
    assert [v.reward for v in verdicts] == [-1, 20, -1, -1, -1, -1]


def test_hints_name_the_direction_of_the_next_stop() -> None:
    held = environment()
    task = made(held, TaxiState(2, 2, STOPS.index("R")), "B")
    rng = random.Random(0)
    moved = take(held, task, ["south"])
    assert held.hint(task, moved, rng) == "The passenger is to the north-west of the taxi."
    assert held.misleading_hint(task, moved, rng) == "The passenger is to the south-east of the taxi."
    there = take(held, task, ["west", "west", "north", "north"])
    assert held.hint(task, there, rng) == "The taxi is at the passenger."
    assert held.misleading_hint(task, there, rng).startswith("The passenger is to the ")
    inside = take(held, task, ["west", "west", "north", "north", "pickup"])
    assert held.hint(task, inside, rng) == "The destination is to the south-east of the taxi."
    assert [compass((0, 0), end) for end in ((0, 0), (1, 0), (0, 1), (1, 1))] == ["", "south", "east", "south-east"]


def test_mirror_images_are_the_same_problem() -> None:
    held = environment()
    task = next(t for t in (held.task("train", k) for k in range(9)) if t.public["state"][1] != 2)
    taxi_map, (row, column, *more) = map_of(task), task.public["state"]
    mirrored = [row_text[::-1] for row_text in taxi_map.rows]
    state = [row, taxi_map.width - 1 - column, *more]
    image = task.model_copy(update={"public": {**task.public, "map": mirrored, "state": state}})
    assert held.canonical(image) == held.canonical(task)
    other = task.model_copy(update={"public": {**task.public, "map": mirrored}})
    assert held.canonical(other) != held.canonical(task)


def test_the_curriculum_goes_from_pickup_to_dropoff_to_full() -> None:
    levels = [{"settings": {"goal": goal}, **({"steps": 2} if goal != "full" else {})}
              for goal in ("pickup", "dropoff", "full")]  # fmt: skip
    stage = {"name": "rl", "method": "rl2f", "steps": 6, "curriculum": {"levels": levels}}
    config: Any = parse_config({"environment": "taxi", "stages": [stage], "reward": {"preset": "environment"}})
    goals = [each.goal for each in config.stages[0].curriculum.environments(config.environment)]
    assert goals == ["pickup", "dropoff", "full"]


def test_taxi_equals_gymnasium_step_for_step_where_it_is_installed() -> None:
    world: Any = pytest.importorskip("gymnasium").make("Taxi-v4").unwrapped
    for number in range(500):
        state, destination = decode(number)
        for k, action in enumerate(ACTIONS):
            after, reward, ended = transition(GYMNASIUM, state, destination, action)
            assert world.P[number][k] == [(1.0, encode(after, destination), reward, ended)]


def test_scripted_hints_for_leak_detection_follow_episodes() -> None:
    queries = list(scripted_queries(environment(), 6, random.Random(0)))
    assert len(queries) == 6 and any(len(query.attempts) > 1 for query in queries)


@pytest.mark.parametrize("goal", ["pickup", "dropoff", "full"])
def test_no_problem_of_the_fixed_map_is_in_two_splits(goal: str) -> None:
    """The destination is a part of the problem unless the goal is to pick the passenger up."""
    environment = Taxi(Taxi.Config(map="gymnasium", goal=goal))  # type: ignore[arg-type]

    def prompts(split: Split) -> set[str]:
        return {environment.prompt(environment.task(split, index).public) for index in range(60)}

    assert not prompts("test") & (prompts("train") | prompts("validation"))
