"""Hints on the tests that a function fails, and false ones in the same wording."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from rl2f_core.environments.code.judging import Output, passes, read_literal
from rl2f_core.environments.code.problems import Case, call_text
from rl2f_core.errors import shorten

MAX_VALUE_CHARS = 200
HIDDEN = "All examples are right, but your function {failure} on a hidden test."
WRONG_VALUE = "returns a wrong value"
KINDS = (WRONG_VALUE, "raises an exception", "does not finish in time")


def unreadable(function: str) -> str:
    """Return the hint on an attempt without the function."""
    return f"Your answer could not be read. Write the whole function {function}, from def on, and nothing else."


def true_hint(function: str, public: Sequence[Case], outputs: Sequence[Output], hidden: Sequence[Case]) -> str:
    """Describe the first failing public test, or the kind of a hidden failure."""
    for case, output in zip(public, outputs, strict=False):
        if not passes(case.output, output):
            return example_hint(function, case.input, case.output, output)
    for case, output in zip(hidden, outputs[len(public) :], strict=True):
        if not passes(case.output, output):
            return HIDDEN.format(failure=output.failure or WRONG_VALUE)
    return "All tests pass."


def example_hint(function: str, arguments: str, expected: str, output: Output) -> str:
    """State the input, the expected and the actual output of a public test."""
    did = output.failure if output.value is None else f"returns {shorten(output.value, MAX_VALUE_CHARS)}"
    call = shorten(call_text(function, arguments), MAX_VALUE_CHARS)
    return f"{call} should return {shorten(expected, MAX_VALUE_CHARS)}, but your function {did}."


def false_hint(function: str, public: Sequence[Case], outputs: Sequence[Output], true: str, rng: random.Random) -> str:
    """State a false expected output of a public test, or a false kind of failure."""
    for case, output in zip(public, outputs, strict=False):
        if not passes(case.output, output):
            return example_hint(function, case.input, false_value(case.output, output, rng), output)
    false = [text for text in (HIDDEN.format(failure=kind) for kind in KINDS) if text != true]
    return rng.choice(false)


def false_value(expected: str, output: Output, rng: random.Random) -> str:
    """Return a literal of the expected type that is neither expected nor returned."""
    for _ in range(20):
        value = repr(_changed(read_literal(expected), rng))
        if value != expected and value != output.value:
            return value
    return "None" if expected != "None" else "0"


def _changed(value: object, rng: random.Random) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice((-3, -2, -1, 1, 2, 3))
        case float() if not math.isfinite(value):
            return float(rng.randint(0, 9))
        case float():
            return round(value + rng.choice((-2.0, -1.0, 1.0, 2.0)), 6)
        case str():
            return rng.choice((value + rng.choice("aeiou"), value[1:], value[::-1]))
        case list() | tuple():
            changed = [*value, rng.randint(0, 9)] if not value or rng.random() < 0.5 else list(value[:-1])
            return type(value)(changed)
    return rng.randint(0, 9)
