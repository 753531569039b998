"""Generated functions: families, levels, behavior on fixed probe inputs.

Two functions of the same parameter type with the same outputs on the probes are the same problem.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple

from rl2f_core.environments.code.steps import (
    Step,
    chain,
    list_step,
    list_total,
    number_condition,
    number_step,
    text_count,
    text_step,
)

Family = Literal["numbers", "conditions", "lists", "totals", "strings", "counts"]
NAME = "solve"
_WORDS = "tree stone a river banana xylophone aeiou Oxford to be or not zebra noon rust".split(" ")


class Generated(NamedTuple):
    """A generated function."""

    parameter: str
    """Parameter with its type, e.g. `n: int`."""
    returns: str
    words: str
    """Description of what it returns."""
    code: str
    run: Callable[[Any], Any]
    near: Callable[[], Iterator[Callable[[Any], Any]]]
    """Returns functions that differ from `run` in one step."""

    @property
    def kind(self) -> str:
        """Type of the parameter."""
        return self.parameter.split(": ")[1]


def make(family: Family, level: int, rng: random.Random) -> Generated:
    """Draw a function with `level` steps."""
    if family == "conditions":
        return _make_condition(level, rng)
    name, kind, step, last, returns = {
        "numbers": ("n", "int", number_step, number_step, "int"),
        "lists": ("xs", "list[int]", list_step, list_step, "list[int]"),
        "totals": ("xs", "list[int]", list_step, list_total, "int"),
        "strings": ("text", "str", text_step, text_step, "str"),
        "counts": ("text", "str", text_step, text_count, "int"),
    }[family]
    steps = [*(step(rng) for _ in range(level - 1)), last(rng)]
    body = [*(f"{name} = {one.code}" for one in steps[:-1]), f"return {steps[-1].code}"]
    near = functools.partial(_near_chains, steps)
    return Generated(f"{name}: {kind}", returns, f"{_sentence(steps)}.", _function(name, body), chain(steps), near)


def _make_condition(level: int, rng: random.Random) -> Generated:
    condition = number_condition(rng)
    branches = [[number_step(rng) for _ in range(level)] for _ in range(2)]
    body = [f"if {condition.code}:"]
    for i, steps in enumerate(branches):
        indent = "" if i else "    "
        body += [f"{indent}n = {step.code}" for step in steps[:-1]] + [f"{indent}return {steps[-1].code}"]
    first, second = branches

    def near() -> Iterator[Callable[[Any], Any]]:
        yield from (_branch(run, chain(first), chain(second)) for run in condition.near())
        yield from (_branch(condition.run, run, chain(second)) for run in _near_chains(first))
        yield from (_branch(condition.run, chain(first), run) for run in _near_chains(second))

    run = _branch(condition.run, chain(first), chain(second))
    words = f"If {condition.words}, {_sentence(branches[0], False)}; otherwise {_sentence(branches[1], False)}."
    return Generated("n: int", "int", words, _function("n", body), run, near)


def _branch(*parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    condition, first, second = parts
    return lambda n: (first if condition(n) else second)(n)


def _near_chains(steps: Sequence[Step]) -> Iterator[Callable[[Any], Any]]:
    for i, step in enumerate(steps):
        yield from (chain([*steps[:i], step._replace(run=run), *steps[i + 1 :]]) for run in step.near())


def _sentence(steps: Sequence[Step], capital: bool = True) -> str:
    text = ", then ".join(step.words for step in steps)
    return text[0].upper() + text[1:] if capital else text


def _function(parameter: str, body: Sequence[str]) -> str:
    return "\n".join([f"def {NAME}({parameter}):", *(f"    {line}" for line in body)])


# -- inputs --------------------------------------------------------------------------------------------------------
def draw_input(kind: str, rng: random.Random) -> int | str | list[int]:
    """Draw a value of a parameter type: `int`, `list[int]` or `str`."""
    if kind == "int":
        return rng.choice([rng.randint(-9, 9), rng.randint(-30, 99), rng.randint(-30, 99), rng.randint(100, 2000)])
    if kind == "list[int]":
        return [rng.randint(-9, 12) for _ in range(rng.randint(0, 8))]
    if rng.random() < 0.5:
        return " ".join(rng.choices(_WORDS, k=rng.randint(1, 2)))
    return "".join(rng.choices("aeioursxtA ", k=rng.randint(0, 9)))


EDGES: dict[str, tuple[object, ...]] = {"int": (0, 1, -1, 10), "list[int]": ([], [0], [5, 5]), "str": ("", "a", "Aa")}
"""Inputs at the limits of a type, which are among the hidden tests."""


def _probes(kind: str) -> tuple[object, ...]:
    rng = random.Random(f"probes/{kind}")
    return (*EDGES[kind], *(draw_input(kind, rng) for _ in range(40)))


PROBES = {kind: _probes(kind) for kind in EDGES}
"""Inputs on which functions of a parameter type are compared."""


_LIMITS: dict[str, list[Any]] = {
    "int": [*range(-12, 22)],
    "list[int]": [[*range(-12, 22)], [*range(21, -13, -1)], [*range(9, 14)] * 2, [*range(-9, 0)] * 2],
    "str": [start + first + second for start in ("", "uvz") for first in "aeiorst" for second in "aeioux"],
}
"""Inputs around the constants of steps."""


def telling_inputs(made: Generated, inputs: Sequence[object]) -> list[object]:
    """Return few inputs that tell `made` apart from the functions near it that agree with it on `inputs`."""
    rng, outputs = random.Random(f"limits/{made.code}"), [made.run(value) for value in inputs]
    near = [run for run in made.near() if not any(map(_differs, repeat(run), inputs, outputs))]
    more = (*_LIMITS[made.kind], *PROBES[made.kind], *(draw_input(made.kind, rng) for _ in range(20)))
    told = [(value, {run for run in near if _differs(run, value, made.run(value))}) for value in more]
    chosen = []
    while best := max(told, key=lambda pair: len(pair[1]))[1]:
        chosen.append(next(value for value, runs in told if runs == best))
        told = [(value, runs - best) for value, runs in told]
    return chosen


def _differs(run: Callable[[Any], Any], value: object, output: object) -> bool:
    try:
        return bool(run(value) != output)
    except ZeroDivisionError:
        return True


def behavior_key(kind: str, outputs: Sequence[str]) -> str:
    """Return the key of a parameter type and the outputs, as literals, on `PROBES`."""
    return hashlib.sha256("\n".join([kind, *outputs]).encode()).hexdigest()[:16]


def is_trivial(kind: str, outputs: Sequence[object]) -> bool:
    """Return whether a function has under three outputs or returns its argument."""
    return len({repr(value) for value in outputs}) < 3 or list(outputs) == list(PROBES[kind])
