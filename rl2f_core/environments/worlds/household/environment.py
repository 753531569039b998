"""`household`: find, treat and move objects in a room, one action per attempt."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Levels, MisleadingHints
from rl2f_core.environments.stateful import OracleEnvironment, Step
from rl2f_core.environments.worlds.household.world import (
    APPLIANCES,
    GOALS,
    MAX_PLAN_ACTIONS,
    Goal,
    HouseState,
    World,
    actions,
    is_solved,
    is_treated,
    kind_of,
    random_world,
    shortest_plan,
)
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

STATES = {"clean": "clean", "heat": "hot", "cool": "cold"}
"""Verb of a treatment → adjective."""


@register("environment")
class Household(OracleEnvironment[HouseState], MisleadingHints, Baselines, Levels):
    """The goal's object and receptacle may be any of their kind. Closed receptacles hide their contents."""

    level_field = "receptacles"
    level_values = (4, 6, 8, 12)

    class Config(ComponentConfig):
        """Size of the room and kinds of tasks."""

        type: Literal["household"] = "household"
        """Name of the environment."""
        goals: tuple[Goal, ...] = Field(GOALS, min_length=1, json_schema_extra=BASIC_FIELD)
        """place: move an object. two: move two. clean, heat, cool: treat an object, then move it. light: use a lamp."""
        receptacles: int = Field(6, ge=4, le=12, json_schema_extra=BASIC_FIELD)
        """Receptacles of the room."""
        objects: int = Field(6, ge=3, le=20)
        """Objects that can be taken."""
        step_reward: float = 0.0
        """Reward of an action that does not solve the task. The solving action has reward 1, as in ALFWorld."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        config = self.config
        room, world, state = random_world(rng, config.goals, config.receptacles, config.objects)
        public = {"room": room, **world._asdict(), "receptacles": list(world.receptacles)}
        return new_task(self, world.goal, public, {"places": dict(state.places)})

    def canonical(self, task: Task) -> str:
        """The goal and the kinds of objects in each receptacle, without numbers."""
        world, state = world_of(task.public), self.initial(task)
        contents = sorted(
            [kind_of(name), *sorted(map(kind_of, state.contents(name)))] for name in world.receptacles
        )  # fmt: skip
        return json.dumps([world[:3], contents])

    def system_prompt(self) -> str:
        return (
            "You act in a room, one action per reply: go to, open, close, examine, take … from …, put … in/on …, "
            "clean … with a sinkbasin, heat … with a microwave, cool … with a fridge, or use a lamp. "
            f"You can hold one object. Example: {wrap_answer('take mug 1 from shelf 2')}."
        )

    def prompt(self, public: TaskData) -> str:
        world = world_of(public)
        names = ", ".join(world.receptacles)
        return f"{_describe_goal(world)}\nYou are in the middle of a {public['room']}. You see: {names}."

    # -- episode -----------------------------------------------------------------------------------------------
    def initial(self, task: Task) -> HouseState:
        return HouseState(tuple(sorted(task.privileged["places"].items())))

    def parse(self, task: Task, text: str) -> str | None:
        """Return the action in lower case."""
        action = super().parse(task, text)
        return None if action is None else action.lower()

    def valid_actions(self, task: Task, state: HouseState) -> Sequence[str]:
        return list(actions(world_of(task.public), state))

    def step(self, task: Task, state: HouseState, action: str) -> Step[HouseState]:
        world = world_of(task.public)
        after = actions(world, state)[action]
        solved = is_solved(world, after)
        reward = 1.0 if solved else self.config.step_reward
        return Step(after, _observe(after, action), reward, solved=solved)

    @property
    def invalid_reward(self) -> float:
        return self.config.step_reward

    def oracle_action(self, task: Task, state: HouseState) -> str:
        return shortest_plan(world_of(task.public), state)[0]

    def plan(self, task: Task) -> list[str]:
        """Return the oracle's actions from the initial state to the end; none if the task has no solution."""
        return list(shortest_plan(world_of(task.public), self.initial(task)))

    def distance(self, task: Task, state: HouseState) -> float | None:
        """Return the actions that the oracle needs, divided by `MAX_PLAN_ACTIONS`; None without a solution."""
        return len(shortest_plan(world_of(task.public), state)) / MAX_PLAN_ACTIONS or None

    # -- optional parts ----------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return the next sub-goal: find, treat, move or look, without a place."""
        world, state = world_of(task.public), self.restore(task, attempts)
        held = state.held
        if held and kind_of(held) != world.kind:
            return f"First put the {kind_of(held)} down."
        find, *later = _sub_goals(world)
        return find if not held else later[-1] if is_treated(world, state, held) else later[0]

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """Return another sub-goal of the task."""
        true = self.hint(task, attempts, rng)
        return rng.choice([goal for goal in _sub_goals(world_of(task.public)) if goal != true])

    def constant_baseline(self) -> ConstantBaseline:
        """Every task needs at least two different actions."""
        return ConstantBaseline("go to shelf 1", 0.0)


def world_of(public: TaskData) -> World:
    """Return the world of a task's public data."""
    return World(public["goal"], public["kind"], public["target"], tuple(public["receptacles"]))


def _sub_goals(world: World) -> list[str]:
    """Return the sub-goals of a task in order."""
    last = f"use the {world.target}" if world.goal == "light" else f"put the {world.kind} in or on a {world.target}"
    treat = [f"Next, {world.goal} the {world.kind}."] if world.goal in APPLIANCES else []
    return [f"Next, find and take the {world.kind}.", *treat, f"Next, {last}."]


def _describe_goal(world: World) -> str:
    """Return the goal as a sentence."""
    article = "an" if world.kind[0] in "aeiou" else "a"
    match world.goal:
        case "light":
            return f"Look at {article} {world.kind} under the {world.target}: hold it where the lamp is on."
        case "two":
            return f"Put two objects of the kind {world.kind} in/on a {world.target}."
        case "place":
            return f"Put {article} {world.kind} in/on a {world.target}."
        case verb:
            return f"{verb.capitalize()} {article} {world.kind} and put it in/on a {world.target}."


def _observe(state: HouseState, action: str) -> str:
    """Return what the player sees after an action: the place, its contents and the held object."""
    at, held = state.at, state.held
    contents = ", ".join(_describe(state, name) for name in state.contents(at)) or "nothing"
    view = f"You see: {contents}." if state.is_open(at) else "It is closed."
    hand = f"You hold: {_describe(state, held)}." if held else "You hold nothing."
    return f"You chose: {action}.\nYou are at {at}. {view}\n{hand}"


def _describe(state: HouseState, name: str) -> str:
    """Return an object with its condition, e.g. `mug 1 (clean, hot)`."""
    conditions = [word for verb, word in STATES.items() if (name, verb) in state.treated]
    conditions += ["on" if state.lit else "off"] if kind_of(name).endswith("lamp") else []
    return f"{name} ({', '.join(conditions)})" if conditions else name
