"""Leaks of a known kind for a task and the attempts on it, for the teacher `leaky`.

The phrasings are those of the dev split of the generated benchmark, so that a detector that is trained on planted leaks
has not seen the phrasings of the test split. Three more kinds refer to the last attempt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rl2f_core.environments.base import Environment
from rl2f_core.environments.puzzles.grids.path_environment import PathEnvironment
from rl2f_core.leaks.synthetic import letters, matrices, numbers, paths, roles
from rl2f_core.leaks.synthetic.draft import Draft, Leak
from rl2f_core.types import Task, Verdict

VERBATIM = "verbatim"
"""States the gold answer as it is; every environment has this kind."""
_VERBATIM: dict[str, Leak] = {VERBATIM: lambda d: d.state(d.answer)}
_MODULES = (letters, matrices, numbers, paths, roles)
KINDS = sorted({*_VERBATIM}.union(*(module.LEAKS for module in _MODULES)))
"""Names of all kinds. No environment has all of them."""


@dataclass(frozen=True, slots=True)
class PlantedLeak:
    """A hint that reveals the answer or a part of it."""

    text: str
    kind: str


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
    if not verdicts or verdicts[-1].parsed is None:
        attempts = []
    answer = environment.gold_answer(task)
    part = environment.sub_environments.get(environment.sub_environment_of(task), environment)
    leaks = kinds_of(task.environment, type(part))
    leaks = {**(leaks if _fits(leaks, answer) else {}), **_VERBATIM}
    known = [kind for kind in leaks if not kinds or kind in kinds]
    rng = random.Random(seed)
    for kind in rng.sample(known, len(known)):
        text = leaks[kind](Draft(part, task, answer, attempts, random.Random(f"{seed}/{kind}"), rng.randrange(100)))
        if text is not None:
            return PlantedLeak(text, kind)
    return None


def kinds_of(name: str, environment: type[Environment]) -> dict[str, Leak]:
    """Return the kinds of leaks of an environment besides `verbatim`, from its registered name and its class."""
    named = {"secret_code": letters.LEAKS, "knights_knaves": roles.LEAKS, "binary_matrix": matrices.LEAKS}
    return named.get(name, paths.LEAKS if issubclass(environment, PathEnvironment) else numbers.LEAKS)


def _fits(leaks: dict[str, Leak], answer: str) -> bool:
    """Return whether the answer has the form that the kinds need."""
    if leaks is roles.LEAKS:
        return roles.is_assignment(answer)
    return leaks is not numbers.LEAKS or numbers.is_number(answer)
