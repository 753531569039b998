"""Equivalence of two mathematical answers: by form if that decides, otherwise by math-verify in a worker.

The form check refuses answers that a comparison of values would accept or hang on: a restated sum, an equation, several
answers at once, an expression copied from the problem, a huge power.
"""

from __future__ import annotations

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

MORE_WORDS = 2
"""Plain words that an answer may have in addition to those of the gold answer, e.g. a unit."""
_replies: dict[tuple[str, str], pool.Reply] = {}
"""Replies of workers, for every environment of this process."""


class Equivalence(NamedTuple):
    """Whether an answer is correct, and the reason if it is not."""

    correct: bool
    reason: str = ""


class Pair(NamedTuple):
    """A gold answer and an answer in normal form, and the problem."""

    gold: str
    answer: str
    problem: str


def compare_normalized(pair: Pair) -> Equivalence | None:
    """Compare by form; return None if the values must be compared."""
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
    """Return whether an answer is prose, judged by the gold answer."""
    return len(plain_words(answer)) > len(plain_words(gold)) + MORE_WORDS


def _spelled(text: str) -> str:
    return " ".join(word.casefold() for word in plain_words(text)) or text


def _tight(text: str) -> str:
    return "".join(text.split())


def compare_answers(pairs: Sequence[Pair], time_limit: float) -> list[Equivalence]:
    """Compare all pairs; workers compare those undecided by form in one batch, `time_limit` seconds each."""
    by_form = [compare_normalized(pair) for pair in pairs]
    jobs = {
        (pair.gold, pair.answer): pool.Job("math", {"gold": pair.gold, "answer": pair.answer})
        for pair, result in zip(pairs, by_form, strict=True)
        if result is None
    }
    replies = pool.pool().run_cached(jobs, time_limit, _replies) if jobs else {}
    by_value = {key: _from_reply(reply) for key, reply in replies.items()}
    return [by_value[p.gold, p.answer] if result is None else result for p, result in zip(pairs, by_form, strict=True)]


def _from_reply(reply: pool.Reply) -> Equivalence:
    if reply.error:
        return Equivalence(False, f"no verdict: {reply.error}")
    return Equivalence(reply.value is True, "" if reply.value is True else "another value")
