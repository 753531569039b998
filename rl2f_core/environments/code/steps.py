"""Steps of generated functions: words, Python source and native evaluation.

The native evaluation makes the tests, so that no generated text is executed for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One operation on a value."""

    words: str
    """Description in the imperative, e.g. `add 3`."""
    code: str
    """Expression of the parameter's name, e.g. `n + 3`."""
    run: Callable[[Any], Any]
    """The operation itself."""
    near: Callable[[], list[Callable[[Any], Any]]] = list
    """Returns operations that differ from it in one place, which tests should tell apart from it."""


def draw(rng: random.Random, steps: Callable[..., list[Step]], *constants: Any) -> Step:
    """Draw a step of `steps(*constants)`. Near are the others and those with one changed constant."""

    def near() -> list[Callable[[Any], Any]]:
        numbers = [constant for constant in constants if isinstance(constant, int)]
        changed = [constants, *((n,) * len(numbers) for n in numbers if len(numbers) == len(constants))]
        for i, constant in enumerate(constants):
            others = (constant - 1, constant + 1) if isinstance(constant, int) else (constant + c for c in "aeioux")
            changed += [(*constants[:i], other, *constants[i + 1 :]) for other in others]
        return list({other.code: other.run for program in changed for other in steps(*program)}.values())

    return rng.choice(steps(*constants))._replace(near=near)


def number_step(rng: random.Random) -> Step:
    """Draw a step from an integer `n` to an integer."""
    return draw(rng, _number_steps, rng.randint(2, 9), rng.randint(1, 20))


def _number_steps(k: int, m: int) -> list[Step]:
    return [
        Step(f"add {m}", f"n + {m}", lambda n: n + m),
        Step(f"subtract {m}", f"n - {m}", lambda n: n - m),
        Step(f"multiply by {k}", f"n * {k}", lambda n: n * k),
        Step(f"divide by {k} and round down", f"n // {k}", lambda n: n // k),
        Step(f"take the remainder of the division by {k}", f"n % {k}", lambda n: n % k),
        Step(f"take the larger one of it and {m}", f"max(n, {m})", lambda n: max(n, m)),
        Step(f"take the smaller one of it and {m}", f"min(n, {m})", lambda n: min(n, m)),
        Step("change the sign", "-n", lambda n: -n),
        Step("take the absolute value", "abs(n)", abs),
        Step("square it", "n * n", lambda n: n * n),
        Step("add up its digits", "sum((int(d) for d in str(abs(n))))", lambda n: sum(map(int, str(abs(n))))),
    ]


def number_condition(rng: random.Random) -> Step:
    """Draw a condition on an integer `n`."""
    return draw(rng, _number_conditions, rng.randint(2, 5), rng.randint(-5, 10))


def _number_conditions(k: int, m: int) -> list[Step]:
    return [
        Step(f"it is divisible by {k}", f"n % {k} == 0", lambda n: n % k == 0),
        Step(f"it is greater than {m}", f"n > {m}", lambda n: n > m),
        Step(f"it is less than {m}", f"n < {m}", lambda n: n < m),
    ]


def list_step(rng: random.Random) -> Step:
    """Draw a step from a list of integers `xs` to a list of integers."""
    return draw(rng, _list_steps, rng.randint(2, 5), rng.randint(1, 9), rng.randint(1, 3))


def _list_steps(k: int, m: int, c: int) -> list[Step]:
    return [
        Step(f"add {m} to each number", f"[x + {m} for x in xs]", lambda xs: [x + m for x in xs]),
        Step(f"multiply each number by {k}", f"[x * {k} for x in xs]", lambda xs: [x * k for x in xs]),
        Step("square each number", "[x * x for x in xs]", lambda xs: [x * x for x in xs]),
        Step("keep the even numbers", "[x for x in xs if x % 2 == 0]", lambda xs: [x for x in xs if x % 2 == 0]),
        Step("keep the odd numbers", "[x for x in xs if x % 2 == 1]", lambda xs: [x for x in xs if x % 2 == 1]),
        Step(f"keep the numbers above {m}", f"[x for x in xs if x > {m}]", lambda xs: [x for x in xs if x > m]),
        Step(f"keep the numbers below {m}", f"[x for x in xs if x < {m}]", lambda xs: [x for x in xs if x < m]),
        Step("sort", "sorted(xs)", sorted),
        Step("reverse the order", "xs[::-1]", lambda xs: xs[::-1]),
        Step("remove repeated numbers", "list(dict.fromkeys(xs))", lambda xs: list(dict.fromkeys(xs))),
        Step(f"keep the first {k} numbers", f"xs[:{k}]", lambda xs: xs[:k]),
        Step(f"leave out the first {c} numbers", f"xs[{c}:]", lambda xs: xs[c:]),
    ]


def list_total(rng: random.Random) -> Step:
    """Draw a step from a list of integers `xs` to an integer."""
    return draw(rng, _list_totals, rng.randint(1, 9))


def _list_totals(m: int) -> list[Step]:
    return [
        Step("add all numbers", "sum(xs)", sum),
        Step("count the numbers", "len(xs)", len),
        Step("take the largest number (0 if there is none)", "max(xs, default=0)", lambda xs: max(xs, default=0)),
        Step("take the smallest number (0 if there is none)", "min(xs, default=0)", lambda xs: min(xs, default=0)),
        Step("count the different numbers", "len(set(xs))", lambda xs: len(set(xs))),
        Step(f"count how often {m} occurs", f"xs.count({m})", lambda xs: xs.count(m)),
        Step("add the squares", "sum((x * x for x in xs))", lambda xs: sum(x * x for x in xs)),
    ]


def text_step(rng: random.Random) -> Step:
    """Draw a step from a string `text` to a string."""
    return draw(rng, _text_steps, rng.choice("aeio"), rng.choice("uvxz"), rng.randint(2, 6), rng.randint(1, 3))


def _text_steps(a: str, b: str, k: int, c: int) -> list[Step]:
    return [
        Step("write it in capitals", "text.upper()", str.upper),
        Step("reverse it", "text[::-1]", lambda text: text[::-1]),
        Step("repeat it twice", "text * 2", lambda text: text * 2),
        Step(f"replace each {a!r} by {b!r}", f"text.replace({a!r}, {b!r})", lambda text: text.replace(a, b)),
        Step(f"remove each {a!r}", f"text.replace({a!r}, '')", lambda text: text.replace(a, "")),
        Step(f"keep the first {k} characters", f"text[:{k}]", lambda text: text[:k]),
        Step(f"leave out the first {c} characters", f"text[{c}:]", lambda text: text[c:]),
        Step("sort its characters", "''.join(sorted(text))", lambda text: "".join(sorted(text))),
        Step(f"put {b!r} at the end", f"text + {b!r}", lambda text: text + b),
        Step(f"put {b!r} at the start", f"{b!r} + text", lambda text: b + text),
    ]


def text_count(rng: random.Random) -> Step:
    """Draw a step from a string `text` to an integer."""
    return draw(rng, _text_counts, rng.choice("aeiorst"))


def _text_counts(a: str) -> list[Step]:
    return [
        Step("count the characters", "len(text)", len),
        Step("count the different characters", "len(set(text))", lambda text: len(set(text))),
        Step(f"count how often {a!r} occurs", f"text.count({a!r})", lambda text: text.count(a)),
        Step(f"find the place of the first {a!r} from 0 (-1 without)", f"text.find({a!r})", lambda t: t.find(a)),
        Step("count the vowels (a, e, i, o, u)", "sum((c in 'aeiou' for c in text))", _count_vowels),
    ]


def _count_vowels(text: str) -> int:
    return sum(c in "aeiou" for c in text)


def chain(steps: Sequence[Step]) -> Callable[[Any], Any]:
    """Return the composition of steps."""

    def run(value: Any) -> Any:
        for step in steps:
            value = step.run(value)
        return value

    return run
