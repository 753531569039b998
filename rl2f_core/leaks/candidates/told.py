"""Numbers of a hint, and what a hint tells about a number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_NUMBER = re.compile(
    r"(?<![\w.])(?:(?:minus|negative) |-(?=\d))?\d{1,9}(?:,\d{3})*(?:\.\d+)?(?:/\d+)?(?![\w]|\.\d)", re.IGNORECASE
)
_HALF = re.compile(r"(?<![\w.])(\d{1,4}) and a half\b")
NEGATED = re.compile(r"\b(?:not|isn't|never|no|neither|isnt)\b[^.,]{0,14}$")
"""A negation before a statement."""


@dataclass(frozen=True)
class Told:
    """Something a hint says about a number: a test of candidates, or the whole answer."""

    start: int
    end: int
    holds: Callable[[int], bool] | None = None
    """None if the statement is the answer."""
    steps: int = 1
    """Operations from the statement to the answer."""


@dataclass(frozen=True)
class NumberTask:
    """A task whose answer is a number."""

    gold: Fraction
    given: frozenset[Fraction]
    """Numbers of the problem."""
    low: int
    high: int
    """The candidates are the integers from `low` to `high`."""


@lru_cache(8192)
def numbers_in(text: str) -> tuple[tuple[int, int, Fraction], ...]:
    """Return the numbers of a text with their spans."""
    found: list[tuple[int, int, Fraction]] = []
    halves = {m.start(): m for m in _HALF.finditer(text)} if "half" in text else {}
    for match in _NUMBER.finditer(text):
        half = halves.get(match.start())
        if half:
            found.append((half.start(), half.end(), Fraction(half[1]) + Fraction(1, 2)))
        elif match[0].isdigit():
            found.append((*match.span(), Fraction(int(match[0]))))
        else:
            numerator, _, denominator = re.sub(r"[^\d./]", "", match[0]).partition("/")
            if not denominator or int(denominator):
                value = Fraction(numerator) / (int(denominator) if denominator else 1)
                found.append((*match.span(), -value if match[0][0] in "-mMnN" else value))
    return tuple(found)


def as_number(text: str) -> Fraction | None:
    """Return the number of an answer such as `-1/7`, `1,024` or `2.5`; None if it is no number."""
    try:
        return Fraction(text.strip().replace(" / ", "/").replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None
