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

_VERBATIM: dict[str, Leak] = {"verbatim": lambda d: d.state(d.answer)}
"""States the gold answer as it is; every environment has this kind."""
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
    leaks = {**_leaks(part, task, answer), **_VERBATIM}
    known = [kind for kind in leaks if not kinds or kind in kinds]
    rng = random.Random(seed)
    for kind in rng.sample(known, len(known)):
        text = leaks[kind](Draft(part, task, answer, attempts, random.Random(f"{seed}/{kind}"), rng.randrange(100)))
        if text is not None:
            return PlantedLeak(text, kind)
    return None


def _leaks(environment: Environment, task: Task, answer: str) -> dict[str, Leak]:
    """Return the kinds of leaks by the form of the answer."""
    if task.environment == "secret_code":
        return letters.LEAKS
    if task.environment == "knights_knaves":
        return roles.LEAKS if roles.is_assignment(answer) else {}
    if task.environment == "binary_matrix":
        return matrices.LEAKS
    if isinstance(environment, PathEnvironment):
        return paths.LEAKS
    return numbers.LEAKS if numbers.is_number(answer) else {}
