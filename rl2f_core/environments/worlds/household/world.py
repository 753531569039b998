"""Rooms, states, actions and plans of the household world.

The verbs and the six kinds of tasks are those of ALFWorld (arXiv 2010.03768); rooms and texts are our own.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import permutations
from typing import Literal, NamedTuple, get_args

Goal = Literal["place", "two", "clean", "heat", "cool", "light"]
"""ALFWorld's pick_and_place_simple, pick_two_obj_and_place, pick_{clean,heat,cool}_then_place, look_at_obj_in_light."""
GOALS: tuple[Goal, ...] = get_args(Goal)
OPENABLE = ("cabinet", "drawer", "fridge", "laundryhamper", "microwave", "safe")
"""Receptacles that are closed at first."""
APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Verb of a treatment → the receptacle that it needs."""
LAMPS = ("desklamp", "floorlamp")
"""Objects that can be used but not taken."""
MAX_PLAN_ACTIONS = 16
"""Upper bound of a plan: twice drop, go, open, take, go, open and put, or the same with a treatment once."""


class Room(NamedTuple):
    """What a room may contain."""

    receptacles: dict[str, int]
    """Kind of receptacle → largest number."""
    objects: tuple[str, ...]
    """Kinds of objects."""
    goals: dict[Goal, tuple[str, ...]]
    """Kind of task beside place and two → the objects that it fits."""


FOOD = ("apple", "bread", "egg", "potato", "tomato")
DISHES = ("bowl", "cup", "mug", "plate")
ROOMS = {
    "kitchen": Room(
        {"cabinet": 4, "countertop": 2, "diningtable": 1, "drawer": 3, "fridge": 1, "garbagecan": 1, "microwave": 1,
         "shelf": 2, "sinkbasin": 1, "stoveburner": 2},
        (*FOOD, *DISHES, "fork", "knife", "lettuce", "pan", "peppershaker", "pot", "saltshaker", "spatula", "spoon"),
        {"clean": (*FOOD, *DISHES, "fork", "knife", "lettuce", "pan", "pot", "spatula", "spoon"),
         "heat": (*FOOD, "cup", "mug", "plate"), "cool": (*FOOD, *DISHES, "lettuce", "pan", "pot")},
    ),
    "bathroom": Room(
        {"bathtub": 1, "cabinet": 4, "countertop": 2, "drawer": 2, "garbagecan": 1, "shelf": 2, "sinkbasin": 2,
         "toilet": 1},
        ("candle", "cloth", "handtowel", "soapbar", "soapbottle", "spraybottle", "tissuebox", "toiletpaper"),
        {"clean": ("cloth", "soapbar")},
    ),
    "bedroom": Room(
        {"armchair": 1, "bed": 1, "desk": 2, "drawer": 4, "dresser": 1, "garbagecan": 1, "laundryhamper": 1, "safe": 1,
         "shelf": 3, "sidetable": 2},
        ("alarmclock", "book", "cd", "cellphone", "creditcard", "keychain", "laptop", "mug", "pen", "pencil", "pillow"),
        {"light": ("alarmclock", "book", "cd", "cellphone", "creditcard", "keychain", "laptop", "pen", "pencil")},
    ),
    "livingroom": Room(
        {"armchair": 2, "cabinet": 2, "coffeetable": 1, "diningtable": 1, "drawer": 3, "dresser": 1, "garbagecan": 1,
         "shelf": 2, "sidetable": 2, "sofa": 1, "tvstand": 1},
        ("book", "box", "creditcard", "keychain", "laptop", "newspaper", "remotecontrol", "statue", "vase", "watch"),
        {"light": ("book", "creditcard", "keychain", "newspaper", "remotecontrol", "statue", "vase", "watch")},
    ),
}  # fmt: skip


class World(NamedTuple):
    """What does not change during an episode."""

    goal: Goal
    kind: str
    """Kind of the object to move or look at."""
    target: str
    """Kind of receptacle that it must be put in or on, or the lamp of goal light."""
    receptacles: tuple[str, ...]


class HouseState(NamedTuple):
    """What actions change."""

    places: tuple[tuple[str, str], ...]
    """Object → its receptacle; empty if it is held."""
    at: str = ""
    """Receptacle in front of the player; empty in the middle of the room."""
    opened: frozenset[str] = frozenset()
    treated: frozenset[tuple[str, str]] = frozenset()
    """Object and verb of its treatment; heat and cool exclude each other."""
    lit: bool = False
    """The lamp is on."""

    @property
    def held(self) -> str:
        """The object in the player's hand; empty if there is none."""
        return next((name for name, place in self.places if not place), "")

    def contents(self, receptacle: str) -> list[str]:
        """Return the objects in or on a receptacle."""
        return [name for name, place in self.places if place == receptacle]

    def place(self, name: str) -> str:
        """Return the receptacle of an object."""
        return dict(self.places)[name]

    def move(self, name: str, place: str) -> HouseState:
        """Return the state with an object at another place."""
        return self._replace(places=tuple((other, place if other == name else old) for other, old in self.places))

    def is_open(self, receptacle: str) -> bool:
        """Return whether objects can be put in or on a receptacle and taken from it."""
        return kind_of(receptacle) not in OPENABLE or receptacle in self.opened


def kind_of(name: str) -> str:
    """Return the kind of an object or receptacle, e.g. `cabinet` of `cabinet 2`."""
    return name.partition(" ")[0]


@lru_cache(4096)
def actions(world: World, state: HouseState) -> dict[str, HouseState]:
    """Return the valid actions of a state, each with the state after it; do not modify."""
    at, held = state.at, state.held
    after = {f"go to {name}": state._replace(at=name) for name in world.receptacles if name != at}
    if not at:
        return after
    if kind_of(at) in OPENABLE:
        after[f"{'close' if at in state.opened else 'open'} {at}"] = state._replace(opened=state.opened ^ {at})
    if state.is_open(at):
        for name in state.contents(at):
            if kind_of(name) in LAMPS:
                after[f"use {name}"] = state._replace(lit=not state.lit)
            elif not held:
                after[f"take {name} from {at}"] = state.move(name, "")
        if held:
            after[f"put {held} in/on {at}"] = state.move(held, at)
    after[f"examine {at}"] = state
    if held:
        for verb, appliance in APPLIANCES.items():
            if kind_of(at) == appliance:
                kept = {(name, old) for name, old in state.treated if name != held or {old, verb} != {"heat", "cool"}}
                after[f"{verb} {held} with {at}"] = state._replace(treated=frozenset(kept | {(held, verb)}))
        after[f"examine {held}"] = state
    return after


# -- goals -----------------------------------------------------------------------------------------------------------
def is_solved(world: World, state: HouseState) -> bool:
    """Return whether the goal is reached."""
    if world.goal == "light":
        near = any(kind_of(name) == world.target for name in state.contents(state.at)) if state.at else False
        return state.lit and near and kind_of(state.held) == world.kind
    return len(_delivered(world, state)) >= (2 if world.goal == "two" else 1)


def _delivered(world: World, state: HouseState) -> list[str]:
    """Return the objects of the goal's kind that are treated and in or on the target."""
    return [
        name
        for name, place in state.places
        if kind_of(name) == world.kind and kind_of(place) == world.target and is_treated(world, state, name)
    ]


def is_treated(world: World, state: HouseState, name: str) -> bool:
    """Return whether an object needs no further treatment for the goal."""
    return world.goal not in APPLIANCES or (name, world.goal) in state.treated


# -- plans -----------------------------------------------------------------------------------------------------------
@lru_cache(4096)
def shortest_plan(world: World, state: HouseState) -> tuple[str, ...]:
    """Return the shortest of the plans that move the goal's objects one after the other; empty if there is none."""
    done = _delivered(world, state)
    reached = {name for name, place in state.places if place in (*world.receptacles, "")}
    candidates = [name for name in sorted(reached - {*done}) if kind_of(name) == world.kind]
    if world.goal == "light" and not any(kind_of(name) == world.target for name in reached):
        return ()
    missing = 2 - len(done) if world.goal == "two" else 1
    return min((_plan(world, state, order) for order in permutations(candidates, missing)), key=len, default=())


def _plan(world: World, state: HouseState, order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the actions that move objects in an order until the goal is reached."""
    plan: list[str] = []
    while not is_solved(world, state):
        done = _delivered(world, state)
        plan.append(_next_action(world, state, next(name for name in order if name not in done)))
        state = actions(world, state)[plan[-1]]
    return tuple(plan)


def _next_action(world: World, state: HouseState, name: str) -> str:
    """Return the next action that moves one object toward the goal."""
    held = state.held
    if held == name and not is_treated(world, state, name):
        appliance = _nearest(world, state, APPLIANCES[world.goal])
        return f"{world.goal} {name} with {appliance}" if state.at == appliance else f"go to {appliance}"
    if held == name and world.goal == "light":
        lamp, place = next(pair for pair in state.places if kind_of(pair[0]) == world.target)
        return f"use {lamp}" if state.at == place else f"go to {place}"
    if held == name:
        target = _nearest(world, state, world.target)
        return _reach(state, target) or f"put {name} in/on {target}"
    if held and state.at and state.is_open(state.at):
        return f"put {held} in/on {state.at}"
    return _reach(state, state.place(name)) or f"take {name} from {state.place(name)}"


def _reach(state: HouseState, receptacle: str) -> str:
    """Return the next action before the receptacle can be used; empty if it can be."""
    if state.at != receptacle:
        return f"go to {receptacle}"
    return "" if state.is_open(receptacle) else f"open {receptacle}"


def _nearest(world: World, state: HouseState, kind: str) -> str:
    """Return the receptacle of a kind that takes the fewest actions to reach."""
    names = [name for name in world.receptacles if kind_of(name) == kind]
    return min(names, key=lambda name: (name != state.at) + (not state.is_open(name)))


# -- random worlds -----------------------------------------------------------------------------------------------------
def random_world(
    rng: random.Random, goals: tuple[Goal, ...], receptacles: int, objects: int
) -> tuple[str, World, HouseState]:
    """Return the name of a room, a world and its first state, in which the goal is not reached.

    Args:
        rng: The only source of randomness.
        goals: Kinds of tasks, of which one is drawn.
        receptacles: Number of receptacles, at least 4.
        objects: Number of objects without the lamp, at least 3.
    """
    goal = rng.choice(goals)
    room_name = rng.choice([name for name, room in ROOMS.items() if goal in ("place", "two", *room.goals)])
    room = ROOMS[room_name]
    kind = rng.choice(room.goals.get(goal, room.objects))
    appliance = APPLIANCES.get(goal)
    target = rng.choice(
        LAMPS if goal == "light" else [receptacle for receptacle in room.receptacles if receptacle != appliance]
    )
    needed = [name for name in (appliance, target if goal != "light" else "shelf") if name]
    needed.append(rng.choice([receptacle for receptacle in room.receptacles if receptacle not in needed]))
    others = [name for name, most in room.receptacles.items() for _ in range(most - (name in needed))]
    names = _number([*needed, *rng.sample(others, receptacles - len(needed))])
    kinds = [kind] * (rng.choice((2, 3)) if goal == "two" else rng.choice((1, 1, 2)))
    kinds += rng.choices([other for other in room.objects if other != kind], k=objects - len(kinds))
    away = [name for name in names if kind_of(name) != target]
    places = [(name, rng.choice(away if kind_of(name) == kind else names)) for name in _number(kinds)]
    if goal == "light":
        places.append((f"{target} 1", rng.choice([name for name in names if kind_of(name) not in OPENABLE])))
    return room_name, World(goal, kind, target, tuple(names)), HouseState(tuple(places))


def _number(kinds: list[str]) -> list[str]:
    """Return kinds in alphabetical order, those of the same kind numbered from 1."""
    kinds = sorted(kinds)
    return [f"{kind} {kinds[:position].count(kind) + 1}" for position, kind in enumerate(kinds)]
