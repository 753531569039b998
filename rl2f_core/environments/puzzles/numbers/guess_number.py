"""`guess_number`: find a hidden number in a range of N; the hint states whether the last guess is too low or too high.

A minimal test of hint use by comparing numbers: binary search is optimal, and without hints only elimination remains.
Baseline and bounds are exact.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from pydantic import Field

from rl2f_core.common.text.integers import parse_integer
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.candidates import Region, one_of
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    Levels,
    MisleadingHints,
    SolveBounds,
)
from rl2f_core.environments.false_claims import side_agreement
from rl2f_core.environments.puzzles.numbers.integer_answers import (
    NO_NUMBER,
    NUMBER,
    IntegerAnswers,
    last_number,
    number_space,
)
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

LOW, HIGH = "Too low.", "Too high."
_RANGE = re.compile(r"(?<![0-9])([+-]?[0-9]{1,40}) ?(?:to|and|-|–|\.\.|…) ?([+-]?[0-9]{1,40})(?![0-9])")


@register("environment")
class GuessNumber(IntegerAnswers, MisleadingHints, Demonstrator, Baselines, Levels):
    """The number is drawn uniformly from the range `low` … `low + size − 1`."""

    level_field = "size"
    level_values = (4, 8, 16, 32, 64)

    class Config(ComponentConfig):
        """Level and seed."""

        type: Literal["guess_number"] = "guess_number"
        """Name of the environment."""
        size: int = Field(16, ge=2, le=10_000, json_schema_extra=BASIC_FIELD)
        """Size of the range, N."""
        low: int | None = Field(None, ge=-(10**9), le=10**9)
        """Lower end of the range; None draws one for each task. A fixed one has only N tasks for all splits, so a
        student can memorize which numbers of a small range occur."""
        max_low: int = Field(900, ge=0, le=10**9)
        """Lower ends are drawn from 0 … max_low if `low` is None."""
        seed: int = 0
        """Seed of the task order."""

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if a fixed range has too few numbers to fill the split."""
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        low = self.config.low if self.config.low is not None else rng.randint(0, self.config.max_low)
        high = low + self.config.size - 1
        return self._build(low, high, rng.randint(low, high))

    def _build(self, low: int, high: int, number: int) -> Task:
        return new_task(self, f"1 of {high - low + 1}", {"low": low, "high": high}, {"number": str(number)})

    def canonical(self, task: Task) -> str:
        """The range and the number."""
        return f"{task.public['low']}..{task.public['high']}:{task.privileged['number']}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse the range `from 38 to 53`, `38-53` or `38..53`; the default is a configured fixed one.

        Raises `DataError` if there is no range, or if the answer is not a whole number in it.
        """
        number = parse_integer(answer)
        if number is None:
            raise DataError("The gold answer is not a whole number.", value=answer, fix="Write it like 45.")
        match = _RANGE.search(" ".join(problem.split()))
        if match:
            low, high = int(match[1]), int(match[2])
        elif self.config.low is not None:
            low, high = self.config.low, self.config.low + self.config.size - 1
        else:
            raise DataError("The problem names no range.", value=problem, fix="Write it like `from 38 to 53`.")
        if not low <= number <= high:
            raise DataError(f"The gold answer is not in the range from {low} to {high}.", value=answer)
        return self._build(low, high, number)

    # -- student -----------------------------------------------------------------------------------------------
    def prompt(self, public: TaskData) -> str:
        return f"I think of a whole number from {public['low']} to {public['high']}. Guess it."

    # -- verifier ----------------------------------------------------------------------------------------------
    def gold_answer(self, task: Task) -> str:
        return task.privileged["number"]

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score 1 or 0, with the distance |guess − number| / (N − 1), at most 1."""
        return self.score_distance(task, parsed, max(1, task.public["high"] - task.public["low"]), "number")

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """`Too low.` or `Too high.`"""
        value = last_number(attempts)
        return NO_NUMBER if value is None else LOW if value < _number(task) else HIGH

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """The opposite; one of the two at random after an attempt that could not be parsed."""
        value = last_number(attempts)
        return rng.choice((LOW, HIGH)) if value is None else HIGH if value < _number(task) else LOW

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claim: the side of the last attempt on which the answer is."""
        return side_agreement(hint, last_number([before]), last_number([attempt]), _number(task))

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Draw uniformly from the numbers that all hints leave open, with `follow_hint`, or from those not yet guessed.

        Either may be correct by chance.
        """
        if correct:
            return wrap_answer(self.gold_answer(task))
        low, high, number = task.public["low"], task.public["high"], _number(task)
        guesses = {int(verdict.parsed) for verdict in attempts if verdict.parsed is not None}
        if follow_hint:
            low = max([low, *(guess + 1 for guess in guesses if guess < number)])
            high = min([high, *(guess - 1 for guess in guesses if guess > number)])
            return wrap_answer(str(rng.randint(low, high)))
        fresh = [value for value in range(low, high + 1) if value not in guesses]
        return wrap_answer(str(rng.choice(fresh) if fresh else rng.randint(low, high)))

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region | None:
        """All numbers of the range."""
        return number_space(task.public["low"], task.public["high"])

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """The numbers above or below the last guess."""
        value, low, high = last_number(attempts), task.public["low"], task.public["high"]
        if hint == NO_NUMBER or (value is None and hint in (LOW, HIGH)):
            return ()
        if value is None or hint not in (LOW, HIGH):
            return None
        return (
            one_of(NUMBER, range(max(low, value + 1), high + 1) if hint == LOW else range(low, min(high + 1, value))),
        )

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """A number in the range is correct with probability 1/N.

        With drawn ranges, a constant c is in the range for the lower ends c − N + 1 … c, at most min(N, max_low + 1)
        of max_low + 1. Over all numbers; a split of a small fixed range has fewer.
        """
        size, low, lows = self.config.size, self.config.low, self.config.max_low + 1
        if low is not None:
            return ConstantBaseline(str(low), 1 / size)
        return ConstantBaseline(str(min(size, lows) - 1), min(size, lows) / lows / size)

    def bounds(self, turns: int) -> SolveBounds:
        """Solve probabilities within T turns, over numbers drawn uniformly from N.

        with_hints: a player's T guesses form a binary tree of depth T with at most 2^T − 1 numbers, which binary search
        fills: min(1, (2^T − 1) / N). without_hints: min(1, T / N). copying: see `open_interval_player`.
        """
        size = self.config.size
        return SolveBounds(
            with_hints=min(2**turns - 1, size) / size,
            without_hints=min(turns, size) / size,
            copying=open_interval_player(size, turns),
        )


@lru_cache
def open_interval_player(size: int, turns: int) -> float:
    """Return P(solved within `turns`) of a player who guesses uniformly among the `size` numbers that are open.

    The guess g is correct with probability 1/n; otherwise the number is in the open interval below it (g − 1 numbers)
    or above (n − g), each with probability its size over n. So p(n, t) = 1/n + 2/n² · Σ_{m<n} m · p(m, t − 1) and
    p(n, 0) = 0.
    """
    chance = [0.0] * (size + 1)
    for _ in range(turns):
        weighted, now = 0.0, [0.0]
        for n in range(1, size + 1):
            weighted += (n - 1) * chance[n - 1]
            now.append(1 / n + 2 * weighted / n**2)
        chance = now
    return chance[size]


def _number(task: Task) -> int:
    return int(task.privileged["number"])
