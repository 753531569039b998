"""Environments, detectors and reports for the tests of leaks."""

from __future__ import annotations

from collections.abc import Callable

from rl2f_core.environments.arithmetic import Arithmetic
from rl2f_core.environments.base import Environment
from rl2f_core.environments.secret_code import SecretCode
from rl2f_core.leaks._assertion import assertion
from rl2f_core.leaks._text import find, normalise
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.leaks.equivalent import EquivalentLeak
from rl2f_core.leaks.exact import ExactLeak
from rl2f_core.types import LeakReport, Task


def arithmetic(problem: str = "What is 512 + 512?", answer: str = "1024") -> tuple[Environment, Task]:
    env = Arithmetic(Arithmetic.Config())
    return env, env.task_from_gold(problem, answer)


def code(answer: str, letters: str) -> tuple[Environment, Task]:
    env = SecretCode(SecretCode.Config(length=len(answer.split())))
    return env, env.task_from_gold(f"each {letters}", answer)


def exact(env: Environment) -> LeakDetector:
    return ExactLeak(ExactLeak.Config(), env)


def equivalent(env: Environment) -> LeakDetector:
    return EquivalentLeak(EquivalentLeak.Config(), env)


def check(
    make: Callable[[Environment], LeakDetector], world: tuple[Environment, Task], hint: str, *attempts: str, **more
):
    env, task = world
    return make(env).check(LeakQuery(task, hint, attempts, **more))


def words(report: LeakReport, hint: str) -> str:
    assert report.leaked and report.span is not None
    return hint[slice(*report.span)]


def assertions(sentence: str, value: str = "85") -> list[str | None]:
    text = normalise(sentence)
    spans = find(normalise(value).text, text)
    assert spans, f"{value} does not stand in {sentence!r}"
    return [assertion(text.text, *span) for span in spans]
