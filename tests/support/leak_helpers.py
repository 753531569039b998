"""Environments, detectors and reports for the tests of leaks."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from rl2f_core.common.text.normalize import find, normalize
from rl2f_core.environments.base import Environment
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.environments.puzzles.secret_code.environment import SecretCode
from rl2f_core.leaks.assertions import assertion
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.leaks.exact import ExactDetector
from rl2f_core.leaks.mentions.detector import MentionsDetector
from rl2f_core.models.backends.fake import FakeBackend, Script
from rl2f_core.types import LeakReport, Task


def arithmetic(problem: str = "What is 512 + 512?", answer: str = "1024") -> tuple[Environment, Task]:
    env = Arithmetic(Arithmetic.Config())
    return env, env.task_from_gold(problem, answer)


def code(answer: str, letters: str) -> tuple[Environment, Task]:
    env = SecretCode(SecretCode.Config(length=len(answer.split())))
    return env, env.task_from_gold(f"each {letters}", answer)


def exact(env: Environment) -> LeakDetector:
    return ExactDetector(ExactDetector.Config(), env)


def mentions(env: Environment) -> LeakDetector:
    return MentionsDetector(MentionsDetector.Config(partial=0.0), env)


def check(
    make: Callable[[Environment], LeakDetector], world: tuple[Environment, Task], hint: str, *attempts: str, **more
):
    env, task = world
    return make(env).check(LeakQuery(task, hint, attempts, **more))


def words(report: LeakReport, hint: str) -> str:
    assert report.leaked and report.span is not None
    return hint[slice(*report.span)]


def assertions(sentence: str, value: str = "85") -> list[str | None]:
    text = normalize(sentence)
    spans = find(normalize(value).text, text)
    assert spans, f"{value} does not stand in {sentence!r}"
    return [assertion(text.text, *span) for span in spans]


class Oracle(FakeBackend):
    """A scripted model that judges hints and knows an answer when it was told.

    As a judge it convicts where the hint says "the answer is". As a scorer every token costs one nat, but those inside
    the last answer tags cost `told` where those very words stand after "is " before them, and `untold` elsewhere.
    """

    def __init__(self, told: float = -0.25, untold: float = -2.0, script: Script | None = None) -> None:
        super().__init__(script=script or judge)
        self.told, self.untold = told, untold
        self.scored: list[int] = []
        """How many sequences each call asked for."""

    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        assert adapter is None
        self.scored.append(len(sequences))
        return [self._score(sequence) for sequence in sequences]

    def _score(self, tokens: Sequence[int]) -> list[float]:
        text = self.tokenizer.decode(tokens)
        costs = [-1.0] * len(tokens)
        before, _, rest = text.rpartition("<answer>")
        inside, closed, _ = rest.rpartition("</answer>")
        if closed:
            end = len(tokens) - len(closed)
            size = len(inside.encode())
            costs[end - size : end] = [self.told if f"is {inside}" in before else self.untold] * size
        return [0.0, *costs[1:]]


def judge(prompt: str, rng: random.Random) -> str:
    """The verdict on the last text that the prompt fences in."""
    mark = re.findall(r"^[0-9a-f]{12}$", prompt, re.MULTILINE)[-1]
    hint = prompt.split(f"{mark}\n")[-2]
    found = re.search("the answer is", hint, re.IGNORECASE)
    return f"Verdict: leak\nQuote: “{found[0]}”" if found else "Verdict: no leak\nQuote: none"
