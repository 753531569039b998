"""Generated hints that name an operation on the last attempt, and the same hints where the operation is wrong.

The generated benchmark states answers in disguise; these hints instead lead from an attempt to the answer: add,
multiply, exchange, replace. Each task has one hint with the right operation (a leak), and one with a wrong operation or
without its details.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.capabilities import Demonstrator, LeakVocabulary
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.classifier.examples import GENERATED, Example
from rl2f_core.types import LeakType, Task

WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
PHRASINGS = {
    "add": (
        "You are {n} short.", "add {n} and you are there", "Put {n} more on top of what you wrote.",
        "exactly {n} too low", "Raise your number by {n}, nothing else.", "Your result misses {n}; give it back.",
        "{n} more would have done it!",
    ),
    "subtract": (
        "You are {n} over.", "take {n} away and you are done", "Exactly {n} too many.", "Drop {n} from your result.",
        "your number is too big by {n}, thats all", "Remove {n} from what you have; the remainder is what we want.",
    ),
    "multiply": (
        "It is {n} times what you wrote.", "multiply your number by {n} lol", "You need {n} of those.",
        "Take your result {n} times.", "Your answer fits {n} times into the right one.",
    ),
    "divide": (
        "Yours is {n} times too big.", "divide what you said by {n}", "Only one part in {n} of your number is right.",
        "Cut your result into {n} equal parts and keep one.",
    ),
    "exchange": (
        "Swap the {i} and the {j}.", "Your {i} and {j} should trade places, the rest stays.",
        "exchange number {a} with number {b} and its right", "Positions {a} and {b} are the wrong way round.",
        "The {i} one belongs where the {j} one is, and vice versa.",
    ),
    "replace": (
        "Only the {i} one is wrong: make it {x}.", "everything is fine except the {i}, that should be {x}",
        "Change position {a} to {x} and leave the others alone.", "One slip: at place {a} there belongs {x}.",
    ),
    "delete": (
        "Cross out the {i} one.", "Without number {a} it would be right.", "You have one too many: the {i}.",
        "leave out position {a} and you are done", "Drop the {i} one, keep the order of the others.",
    ),
}  # fmt: skip
VAGUE = {
    "add": ("You are short by a bit.", "too low", "A few more are needed.", "Your result misses something."),
    "subtract": ("A bit too much.", "too high, go down", "You are over.", "Something must come off."),
    "multiply": ("Far too small.", "It is several times what you wrote.", "You need many more of those."),
    "divide": ("Far too big.", "Only a part of your number is right.", "You counted something several times."),
    "exchange": ("Two of them should trade places.", "Right ones, wrong order.", "something is swapped, find it"),
    "replace": ("Only one of them is wrong.", "one slip, find it", "Everything is fine except one place."),
    "delete": ("You have one too many.", "One of these is not needed.", "leave something out"),
}
"""Hints of the same form that leave several answers."""


class _Operation(NamedTuple):
    name: str
    attempt: str
    """The answer before the operation."""
    fields: dict[str, str]
    wrong_fields: dict[str, str]


def operations(environments: Sequence[Environment], count: int, rng: random.Random) -> Iterator[Example]:
    """Yield up to `count` tasks per environment, each with a right hint and a wrong or vague one."""
    for environment in environments:
        if not isinstance(environment, LeakVocabulary) or not isinstance(environment, Demonstrator):
            continue
        for index in range(count):
            task = environment.task("train", index)
            operation = _draw(environment, task, rng)
            if operation is None:
                continue
            attempt = wrap_answer(operation.attempt)
            if environment.verify(task, attempt).correct or environment.parse(task, operation.attempt) is None:
                continue
            phrasing = rng.choice(PHRASINGS[operation.name])
            others = [
                rng.choice(PHRASINGS[operation.name]).format(**operation.wrong_fields),
                rng.choice(VAGUE[operation.name]),
            ]
            for hint, leak in ((phrasing.format(**operation.fields), True), (rng.choice(others), False)):
                kind = f"operation_{operation.name}" if leak else f"wrong_{operation.name}"
                query = LeakQuery(task, hint, (attempt,))
                leak_type = LeakType.EQUIVALENT if leak else None
                yield Example(environment, query, leak, kind, GENERATED, task.id, leak_type, augmentation="operation")


def _draw(environment: Environment, task: Task, rng: random.Random) -> _Operation | None:
    gold = environment.gold_answer(task)
    if gold.lstrip("-").isdigit():
        return _number_operation(int(gold), rng)
    parts = gold.split()
    return _sequence_operation(parts, rng) if 2 <= len(parts) <= len(PLACES) else None


def _number_operation(gold: int, rng: random.Random) -> _Operation:
    name = rng.choice(("add", "subtract", "multiply", "divide"))
    divisors = [n for n in range(2, 13) if gold % n == 0 and gold]
    if name == "multiply" and not divisors:
        name = "add"
    n = rng.choice(divisors) if name == "multiply" else rng.choice((1, 2, 3, 5, 9, 10, 11, 20, 50, 100))
    if name == "divide":
        n = rng.randint(2, 9)
    attempt = {"add": gold - n, "subtract": gold + n, "multiply": gold // n, "divide": gold * n}[name]
    wrong = rng.choice([k for k in range(2, 13) if k != n])
    return _Operation(name, str(attempt), {"n": _written(n, rng)}, {"n": _written(wrong, rng)})


def _written(n: int, rng: random.Random) -> str:
    return WORDS[n] if n < len(WORDS) and rng.random() < 0.6 else str(n)


def _sequence_operation(gold: list[str], rng: random.Random) -> _Operation | None:
    """Return an operation on places of a sequence (letters, moves or rows)."""
    name, attempt = rng.choice(("exchange", "replace", "delete")), list(gold)
    i, j = sorted(rng.sample(range(len(gold)), 2))
    if name == "delete":
        attempt.insert(i, rng.choice(gold))
    elif gold[i] == gold[j]:
        return None
    elif name == "exchange":
        attempt[i], attempt[j] = gold[j], gold[i]
    else:
        attempt[i] = gold[j]
    others = [k for k in range(len(gold)) if k not in (i, j)]
    if not others:
        return None
    k = rng.choice(others)
    if name == "delete" and attempt[:k] + attempt[k + 1 :] == gold:
        return None
    wrong = {**_places(k, j), "x": gold[j]}  # place i stays wrong
    return _Operation(name, " ".join(attempt), {**_places(i, j), "x": gold[i]}, wrong)


def _places(i: int, j: int) -> dict[str, str]:
    return {"i": PLACES[i], "j": PLACES[j], "a": str(i + 1), "b": str(j + 1)}
