"""Equivalence of two mathematical answers: by form if that decides, otherwise by math-verify in a worker.

What form refuses is what a checker of values would fall for: a sum that is only restated, an equation whose right side
happens to fit, several answers at once, an expression copied out of the problem, a power that nobody can work out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from rl2f_core.environments.math.answer_text import (
    is_words,
    plain_words,
    read_number,
    relation,
    unsafe_power,
    worked_out,
)
from rl2f_core.environments.sandbox import pool

_KEPT = 20_000
MORE_WORDS = 2
"""Plain words that an answer may have beyond those of the gold answer: a unit, not a sentence."""


class Equivalence(NamedTuple):
    """Whether an answer is right, and why in words."""

    right: bool
    why: str = ""


class Pair(NamedTuple):
    """A gold answer and an answer in normal form, and the problem."""

    gold: str
    answer: str
    problem: str


def compare_normalized(pair: Pair) -> Equivalence | None:
    """Compare by form; None if the values must be compared."""
    gold, answer = pair.gold, pair.answer
    if answer == gold:
        return Equivalence(True)
    if is_words(gold) or is_words(answer):
        same = _spelled(gold) == _spelled(answer)
        return Equivalence(same, "" if same else "other words")
    number = read_number(gold) is not None
    if number and read_number(answer) is not None:
        return Equivalence(False, "another number")
    if relation(answer) and not relation(gold):
        return Equivalence(False, "an equation or inequality, where the answer is none")
    if answer.count(",") + answer.count(";") > gold.count(",") + gold.count(";"):
        return Equivalence(False, "more values than the answer has")
    if number and not worked_out(answer):
        return Equivalence(False, "not worked out")
    if len(answer) > 2 and _tight(answer) in _tight(pair.problem):
        return Equivalence(False, "copied out of the problem")
    if unsafe_power(answer) or unsafe_power(gold):
        return Equivalence(False, "no verdict: a power or factorial too large to work out")
    return None


def too_wordy(gold: str, answer: str) -> bool:
    """Whether an answer is prose, measured by the gold answer."""
    return len(plain_words(answer)) > len(plain_words(gold)) + MORE_WORDS


def _spelled(text: str) -> str:
    return " ".join(word.casefold() for word in plain_words(text)) or text


def _tight(text: str) -> str:
    return "".join(text.split())


_known: OrderedDict[tuple[str, str], Equivalence] = OrderedDict()
"""What workers found, for every environment of this process."""


class Judge:
    """Compares by value in worker processes, and remembers what it found.

    Args:
        limit: Seconds for one comparison.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def find(self, pairs: Sequence[Pair]) -> list[Equivalence]:
        """The findings on all pairs, in order; what workers must compare is sent to them in one batch."""
        results = [compare_normalized(pair) for pair in pairs]
        unknown = {(p.gold, p.answer): None for p, f in zip(pairs, results, strict=True) if f is None}
        new = [key for key in unknown if key not in _known]
        if new:
            jobs = [pool.Job("math", {"gold": gold, "answer": answer}) for gold, answer in new]
            for key, reply in zip(new, pool.pool().run(jobs, self.limit), strict=True):
                _known[key] = _finding(reply)
            while len(_known) > _KEPT + len(new):
                _known.popitem(last=False)
        return [f if f is not None else _known[p.gold, p.answer] for p, f in zip(pairs, results, strict=True)]


def _finding(reply: pool.Reply) -> Equivalence:
    if reply.error:
        return Equivalence(False, f"no verdict: {reply.error}")
    return Equivalence(reply.value is True, "" if reply.value is True else "another value")
