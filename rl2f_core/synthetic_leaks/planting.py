"""Leaks of a known kind for a task and the attempts on it, for the teacher `leaky`.

The kinds are those of the synthetic benchmark, in its dev phrasings, so that a detector that is trained on planted
leaks has not seen the phrasings of the test split. Three more kinds refer to the last attempt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from rl2f_core.environments.base import Environment
from rl2f_core.environments.grids.path_environment import PathEnvironment
from rl2f_core.synthetic_leaks import letters, matrices, numbers, paths, roles
from rl2f_core.synthetic_leaks.items import ORDINALS, PHRASINGS, Draft, Kind, Puzzle, Sampler, Unsuitable
from rl2f_core.types import Task, Verdict

P = TypeVar("P", bound=Puzzle)
VERBATIM = "verbatim"
"""Kind of a sentence that states the gold answer as it is; every environment has it."""
_TEXTS = PHRASINGS.attempts


@dataclass(frozen=True, slots=True)
class PlantedLeak:
    """A hint that reveals the answer or a part of it."""

    text: str
    kind: str


def _given(s: Sampler, cls: type[P], *, attempted: bool = True) -> P:
    """Return the given puzzle; raises `Unsuitable` without a readable last attempt, if it needs to be `attempted`."""
    puzzle = s.given(cls)
    if puzzle is None or (attempted and not puzzle.attempts):
        raise Unsuitable
    return puzzle


def _difference(s: Sampler, _: int) -> Draft:
    """State the difference of the answer and the last attempt, with its sign."""
    puzzle = _given(s, numbers.Number)
    last = puzzle.attempts[-1]
    if not last.removeprefix("-").isdecimal() or int(last) == puzzle.number:
        raise Unsuitable
    difference = puzzle.number - int(last)
    up = difference > 0
    fields = {
        "d": abs(difference), "change": "add" if up else "subtract", "Change": "Add" if up else "Subtract",
        "side": "low" if up else "high", "relation": "more" if up else "less",
    }  # fmt: skip
    return Draft(puzzle, s.pick(_TEXTS[s.kind.name]).format(**fields), 1.0)


def _exchange(s: Sampler, _: int) -> Draft:
    """Name the two places of the last attempt whose exchange gives the code."""
    puzzle = _given(s, letters.Code)
    last, code = puzzle.last, list(puzzle.code)
    for i, j in combinations(range(len(last)), 2):
        swapped = [*last[:i], last[j], *last[i + 1 : j], last[i], *last[j + 1 :]]
        if swapped == code:
            fields = {"i": i + 1, "j": j + 1, "nth": ORDINALS[i], "mth": ORDINALS[j]}
            return Draft(puzzle, s.pick(_TEXTS[s.kind.name]).format(**fields), 1.0)
    raise Unsuitable


def _verdict(s: Sampler, _: int) -> Draft:
    """Name the only person that the last attempt has wrong."""
    puzzle = _given(s, roles.Roles)
    if len(puzzle.wrong) != 1:
        raise Unsuitable
    return Draft(puzzle, s.pick(_TEXTS[s.kind.name]).format(one=puzzle.wrong[0]), 1.0)


def _verbatim(s: Sampler, _: int) -> Draft:
    puzzle = _given(s, Puzzle, attempted=False)
    return Draft(puzzle, s.state(puzzle.answer), 1.0)


_VERBATIM = Kind(VERBATIM, 1, _verbatim)
_KINDS: dict[type[Puzzle], list[Kind]] = {
    numbers.Number: [*numbers.LEAKS, Kind("difference_from_attempt", 1, _difference), _VERBATIM],
    letters.Code: [*letters.LEAKS, Kind("exchange_of_places", 1, _exchange), _VERBATIM],
    roles.Roles: [*roles.LEAKS, Kind("verdict_on_parts", 1, _verdict), _VERBATIM],
    matrices.Matrix: [*matrices.LEAKS, _VERBATIM],
    paths.Path: [*paths.LEAKS, _VERBATIM],
    Puzzle: [_VERBATIM],
}
KINDS = sorted({kind.name for kinds in _KINDS.values() for kind in kinds})
"""Names of all kinds. No environment has all of them."""


def plant(
    environment: Environment, task: Task, verdicts: Sequence[Verdict], seed: str, kinds: Sequence[str] = ()
) -> PlantedLeak | None:
    """Write a leak of a random kind; None if no kind fits the task and the attempts.

    The kinds that fit are equally likely up to those that turn out not to fit, which the next one replaces.

    Args:
        environment: Environment of the task.
        task: The task.
        verdicts: Verdicts on the attempts, oldest first.
        seed: Seed of all choices.
        kinds: Names of the allowed kinds; empty for all.
    """
    attempts = [verdict.parsed for verdict in verdicts if verdict.parsed is not None]
    readable = bool(verdicts) and verdicts[-1].parsed is not None
    puzzle = _puzzle_of(environment, task, attempts if readable else [])
    known = [kind for kind in _KINDS[type(puzzle)] if not kinds or kind.name in kinds]
    rng = random.Random(seed)
    for kind in rng.sample(known, len(known)):
        sampler = Sampler(task.environment, kind, "dev", puzzle, f"{seed}/{kind.name}")
        try:
            return PlantedLeak(kind.draft(sampler, rng.randrange(100)).hint, kind.name)
        except Unsuitable:
            continue
    return None


def _puzzle_of(environment: Environment, task: Task, attempts: Sequence[str]) -> Puzzle:
    """Return the puzzle of a task by the form of its answer."""
    name, answer = task.environment, environment.gold_answer(task)
    part = environment.sub_environments.get(environment.sub_environment_of(task), environment)
    puzzle: Puzzle | None = None
    if name == "secret_code":
        puzzle = letters.puzzle_of(answer, attempts, task.public["letters"])
    elif name == "knights_knaves":
        puzzle = roles.puzzle_of(answer, attempts)
    elif name == "binary_matrix":
        puzzle = matrices.puzzle_of(answer, attempts, task.public["rows"])
    elif isinstance(part, PathEnvironment):
        puzzle = paths.puzzle_of(part, task, attempts)
    else:
        puzzle = numbers.puzzle_of(answer, attempts)
    return puzzle or Puzzle({}, "", answer, tuple(attempts))
