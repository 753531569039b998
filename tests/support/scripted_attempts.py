"""Attempts of a student on a task, and the hints of the scripted teacher after them."""

from __future__ import annotations

import random

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.types import Task, Verdict


def say(environment: Environment, task: Task, *attempts: str) -> list[Verdict]:
    """Return the verdicts on answers."""
    return [environment.verify(task, wrap_answer(attempt)) for attempt in attempts]


def hint(environment: Environment, task: Task, *attempts: str) -> str:
    """Return the hint after answers."""
    return environment.hint(task, say(environment, task, *attempts), random.Random(0))


def mislead(environment: Environment, task: Task, *attempts: str, seed: int = 0) -> str:
    """Return the misleading hint after answers."""
    return environment.misleading_hint(task, say(environment, task, *attempts), random.Random(seed))


def wrong_dialogue(environment: Environment, task: Task, rng: random.Random, length: int) -> list[Verdict]:
    """Return up to `length` wrong attempts of a student who ignores the hints."""
    verdicts: list[Verdict] = []
    for _ in range(length):
        attempt = environment.simulate_attempt(task, verdicts, rng, follow_hint=False, correct=False)
        if not (verdict := environment.verify(task, attempt)).correct:
            verdicts.append(verdict)
    return verdicts
