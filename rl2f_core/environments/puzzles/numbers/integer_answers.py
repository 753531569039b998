"""Answers that are whole numbers: parsing, leak vocabulary and the last parsed attempt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rl2f_core.common.text.integers import find_integers, parse_integer
from rl2f_core.environments.candidates import MAX_LISTED, Candidate, Region, one_of
from rl2f_core.environments.capabilities import AnswerSpace, LeakVocabulary, last_parsed
from rl2f_core.environments.puzzles.numbers.stated_digits import digit_parts, stated_digits
from rl2f_core.types import Task, Verdict

NO_NUMBER = "No whole number was found."

NUMBER = "number"
"""The only part of an answer in `AnswerSpace`."""


class IntegerAnswers(LeakVocabulary, AnswerSpace):
    """An environment whose answers are whole numbers."""

    def system_prompt(self) -> str:
        return "Reply as <answer>number</answer>."

    def parse(self, task: Task, text: str) -> str | None:
        """A whole number in the strict form of `parse_integer`; `12.0` and `12 apples` are unparsable."""
        value = parse_integer(text)
        return None if value is None else str(value)

    def score_distance(self, task: Task, parsed: str, scale: int, gold_name: str) -> Verdict:
        """Score 1 or 0. The distance is min(1, |attempt − gold| / scale)."""
        gold = self.gold_answer(task)
        error = abs(int(parsed) - int(gold))
        return Verdict(
            correct=error == 0,
            score=float(error == 0),
            parsed=parsed,
            well_formed=True,
            distance=1.0 if error >= scale else error / scale,
            detail="right" if error == 0 else f"{parsed} is wrong: the {gold_name} is {gold}",
        )

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Numbers and small expressions, including those that repeat the problem, e.g. `47 + 85`."""
        return find_integers(text)

    def answer_parts(self, task: Task, parsed: str) -> dict[str, str]:
        """The digits by place, without the sign."""
        return digit_parts(parsed)

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        return stated_digits(text, self.gold_answer(task))

    def answer_values(self, task: Task, parsed: str) -> Candidate:
        return {NUMBER: int(parsed)}


@lru_cache(64)
def number_space(low: int, high: int) -> Region | None:
    """Return the numbers from `low` to `high` as candidates; None if there are more than `MAX_LISTED`."""
    return one_of(NUMBER, range(low, high + 1)) if high - low < MAX_LISTED else None


def last_number(attempts: Sequence[Verdict]) -> int | None:
    """Return the last attempt; None if it could not be parsed."""
    parsed = last_parsed(attempts)
    return None if parsed is None else int(parsed)
