"""`household`: actions, treatments, goals, hints, and the oracle compared with a search of all states."""

from __future__ import annotations

import random
from typing import Any

import pytest
from stateful_contract import check_episode, check_oracle, take

from rl2f_core.environments.base import new_task
from rl2f_core.environments.worlds.household.environment import Household
from rl2f_core.environments.worlds.household.world import (
    GOALS,
    MAX_PLAN_ACTIONS,
    ROOMS,
    HouseState,
    World,
    actions,
    is_solved,
    kind_of,
    random_world,
    shortest_plan,
)
from rl2f_core.types import SPLITS, Task

KITCHEN = ("countertop 1", "fridge 1", "microwave 1", "sinkbasin 1")


def environment(**config: Any) -> Household:
    return Household(Household.Config(**config))


def made(goal: str, kind: str, target: str, places: dict[str, str], receptacles: tuple[str, ...] = KITCHEN) -> Task:
    public = {"room": "kitchen", "goal": goal, "kind": kind, "target": target, "receptacles": list(receptacles)}
    return new_task(environment(), goal, public, {"places": places})


HEAT = made("heat", "egg", "countertop", {"egg 1": "fridge 1", "mug 1": "sinkbasin 1"})


def test_an_egg_is_heated_and_put_on_the_countertop() -> None:
    plan = ["go to fridge 1", "open fridge 1", "take egg 1 from fridge 1", "go to microwave 1"]
    plan += ["heat egg 1 with microwave 1", "go to countertop 1", "put egg 1 in/on countertop 1"]
    verdicts = take(environment(), HEAT, plan)
    assert [verdicts[k].observation for k in (0, 1, 4)] == [
        "You chose: go to fridge 1.\nYou are at fridge 1. It is closed.\nYou hold nothing.",
        "You chose: open fridge 1.\nYou are at fridge 1. You see: egg 1.\nYou hold nothing.",
        "You chose: heat egg 1 with microwave 1.\nYou are at microwave 1. It is closed.\nYou hold: egg 1 (hot).",
    ]
    assert [v.reward for v in verdicts] == [0] * 6 + [1]
    assert verdicts[-1].correct and verdicts[-1].done
    assert environment().plan(HEAT) == plan


def test_an_egg_that_was_cooled_after_it_was_heated_is_not_hot() -> None:
    held = environment()
    before = ["go to fridge 1", "open fridge 1", "take egg 1 from fridge 1", "go to microwave 1"]
    before += ["heat egg 1 with microwave 1", "go to fridge 1", "cool egg 1 with fridge 1"]
    verdicts = take(held, HEAT, [*before, "go to countertop 1", "put egg 1 in/on countertop 1"])
    assert "egg 1 (cold)" in str(verdicts[6].observation) and not verdicts[-1].correct
    washed = take(held, HEAT, [*before[:5], "go to sinkbasin 1", "clean egg 1 with sinkbasin 1"])
    assert "egg 1 (clean, hot)" in str(washed[-1].observation)


@pytest.mark.parametrize(
    ("before", "action"),
    [
        ([], "take egg 1 from fridge 1"),
        (["go to fridge 1"], "take egg 1 from fridge 1"),
        (["go to sinkbasin 1"], "open sinkbasin 1"),
        (["go to sinkbasin 1", "take mug 1 from sinkbasin 1"], "heat mug 1 with microwave 1"),
        (["go to sinkbasin 1", "take mug 1 from sinkbasin 1", "go to fridge 1"], "put mug 1 in/on fridge 1"),
        (["go to sinkbasin 1"], "put mug 1 in/on sinkbasin 1"),
        (["go to sinkbasin 1"], "go to sinkbasin 1"),
        (["go to sinkbasin 1", "take mug 1 from sinkbasin 1", "go to fridge 1", "open fridge 1"],
         "take egg 1 from fridge 1"),
    ],
    ids=["not there", "closed", "not openable", "no appliance", "put in closed", "empty hand", "already there",
         "full hand"],
)  # fmt: skip
def test_an_impossible_action_is_a_message_and_a_used_turn(before: list[str], action: str) -> None:
    verdict = take(environment(), HEAT, [*before, action])[-1]
    assert str(verdict.observation).startswith("This is not a valid action. Valid actions: go to")
    assert (verdict.well_formed, verdict.reward, verdict.done) == (False, 0, False)


def test_a_lamp_shows_an_object_only_while_it_is_held_and_the_lamp_is_on() -> None:
    places = {"book 1": "bed 1", "desklamp 1": "desk 1"}
    task = made("light", "book", "desklamp", places, ("bed 1", "desk 1", "drawer 1", "shelf 1"))
    held = environment()
    assert held.plan(task) == ["go to bed 1", "take book 1 from bed 1", "go to desk 1", "use desklamp 1"]
    first = take(held, task, ["go to desk 1", "use desklamp 1", "go to bed 1", "take book 1 from bed 1"])
    assert "desklamp 1 (on)" in str(first[1].observation) and not first[-1].correct
    assert take(held, task, [*(v.parsed or "" for v in first), "go to desk 1"])[-1].correct
    assert not take(held, task, ["go to desk 1", "take desklamp 1 from desk 1"])[-1].well_formed


@pytest.mark.parametrize(("goal", "target"), [("place", "countertop"), ("two", "countertop"), ("light", "desklamp")])
def test_a_task_without_a_solution_has_no_plan_and_no_distance(goal: str, target: str) -> None:
    task = made(goal, "book", target, {"book 1": "nowhere", "book 2": "shelf 1", "desklamp 1": "nowhere"})
    held = environment()
    assert held.plan(task) == [] and held.gold_answer(task) == "" and held.distance(task, held.initial(task)) is None


def test_two_objects_must_be_in_the_target() -> None:
    task = made("two", "mug", "countertop", {"mug 1": "sinkbasin 1", "mug 2": "sinkbasin 1"})
    plan = environment().plan(task)
    assert plan[:4] == ["go to sinkbasin 1", "take mug 1 from sinkbasin 1", "go to countertop 1",
                        "put mug 1 in/on countertop 1"]  # fmt: skip
    verdicts = take(environment(), task, plan)
    assert [v.correct for v in verdicts] == [False] * 7 + [True]


def shortest(world: World, state: HouseState) -> int:
    """The length of the shortest solution, found by breadth-first search."""
    frontier, seen, depth = {state}, {state}, 0
    while not any(is_solved(world, each) for each in frontier):
        depth += 1
        frontier = {after for each in frontier for after in actions.__wrapped__(world, each).values()} - seen
        seen |= frontier
    return depth


@pytest.mark.parametrize("goal", GOALS)
def test_the_oracle_takes_as_few_actions_as_a_search_needs(goal: Any) -> None:
    rng = random.Random(goal)
    checked = 0
    while checked < 6:
        _, world, state = random_world(rng, (goal,), 4, 3)
        if sum(kind_of(name) in ("cabinet", "drawer", "safe", "laundryhamper") for name in world.receptacles) > 1:
            continue  # too many states to search
        checked += 1
        assert len(shortest_plan(world, state)) == shortest(world, state)


def test_the_oracle_solves_every_task_from_every_state_that_random_actions_reach() -> None:
    rng = random.Random(1)
    for _ in range(25):
        _, world, state = random_world(rng, GOALS, 8, 8)
        for _ in range(12):
            if is_solved(world, state):
                break
            plan = shortest_plan(world, state)
            assert len(plan) <= MAX_PLAN_ACTIONS
            end = state
            for action in plan:
                assert not is_solved(world, end)
                end = actions(world, end)[action]
            assert is_solved(world, end)
            state = rng.choice(list(actions(world, state).values()))


@pytest.mark.parametrize("goal", GOALS)
def test_every_goal_keeps_the_contract_at_every_size(goal: Any) -> None:
    for size in Household.level_values:
        held = environment(goals=(goal,), receptacles=size)
        keys = {split: {held.canonical(held.task(split, index)) for index in range(8)} for split in SPLITS}
        assert keys["train"].isdisjoint(keys["test"]) and keys["validation"].isdisjoint(keys["test"])
        task = held.task("train", size)
        assert task.level == goal and len(task.public["receptacles"]) == size
        check_episode(held, task, random.Random(size), length=2)
        check_oracle(held, task)
        assert len(set(held.plan(task))) > 1  # the constant baseline is 0


def test_every_room_and_every_goal_is_drawn() -> None:
    held = environment()
    tasks = [held.task("train", index) for index in range(60)]
    assert {task.public["room"] for task in tasks} == set(ROOMS) and {task.level for task in tasks} == set(GOALS)


def test_renumbered_receptacles_and_objects_are_the_same_problem() -> None:
    held, rooms = environment(), ("drawer 1", "drawer 2", "shelf 1", "bed 1")
    one = made("place", "pen", "bed", {"cd 1": "drawer 1", "pen 1": "drawer 2", "pen 2": "shelf 1"}, rooms)
    same = made("place", "pen", "bed", {"cd 1": "drawer 2", "pen 1": "shelf 1", "pen 2": "drawer 1"}, rooms)
    other = made("place", "pen", "bed", {"cd 1": "drawer 1", "pen 1": "drawer 1", "pen 2": "shelf 1"}, rooms)
    assert held.canonical(one) == held.canonical(same) != held.canonical(other)


def test_hints_name_the_next_sub_goal_and_misleading_ones_another() -> None:
    held, rng = environment(), random.Random(0)
    plan = held.plan(HEAT)
    hints = [held.hint(HEAT, take(held, HEAT, plan[:k]), rng) for k in (1, 3, 5)]
    assert hints == [
        "Next, find and take the egg.",
        "Next, heat the egg.",
        "Next, put the egg in or on a countertop.",
    ]
    wrong = take(held, HEAT, ["go to sinkbasin 1", "take mug 1 from sinkbasin 1"])
    assert held.hint(HEAT, wrong, rng) == "First put the mug down."
    assert {held.misleading_hint(HEAT, take(held, HEAT, plan[:1]), random.Random(k)) for k in range(9)} == set(
        hints[1:]
    )
