"""Integers in text: a strict parser for answers and a lenient scanner for leaks.

An answer must have an unambiguous form; a hint leaks the answer in any form that a person understands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from rl2f_core.common.text.tokens import cached, digit_runs, find_index, signed_starts

T = TypeVar("T")
MAX_DIGITS = 40
"""Longer numbers are not parsed."""
_MAX_TERMS = 8
MINUS = ("-", "−")
_SPACE = " \t\r\n"
_STRICT = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")
_SIGN = r"(?P<sign>(?<![\w)])[+\-−])?"
_NUMBER = re.compile(_SIGN + r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.(?P<fraction>\d+))?")
_SPLIT_UP = re.compile(_SIGN + r"(?<!\d)(?P<digits>\d+(?:[ ,_'’\u00a0\u2009\u202f]\d+)+)")
_OPERATOR = re.compile(r"\s{0,3}(?P<operator>[+\-−–x×*·X/÷^])\s{0,3}(?P<sign>[+\-−]?)")
_APART = frozenset(" ,_'’\u00a0\u2009\u202f")
_MAX_EXPONENT, _MAX_BASE = 40, 1000


def whole_number(text: str, default: T) -> int | T:
    """Return a whole number of at most 18 ASCII digits, such as an index or an id; `default` for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def parse_integer(text: str) -> int | None:
    """Parse a text that consists of one integer; None otherwise.

    Accepted are at most `MAX_DIGITS` ASCII digits with an optional sign, correct thousands commas, leading zeros, and
    surrounding white space. Rejected are `12.0`, `1e3`, `0x10`, `１２`, `1,2` and `12 apples`.
    """
    text = text.strip(_SPACE)
    if len(text) > 2 * MAX_DIGITS or not _STRICT.fullmatch(text):
        return None
    digits = text.replace(",", "")
    return int(digits) if len(digits.lstrip("+-")) <= MAX_DIGITS else None


class _Literal(NamedTuple):
    start: int
    """Start of the sign or, without one, of the digits."""
    digits_start: int
    end: int
    negative: bool
    size: int
    """The absolute value."""


def find_integers(text: str) -> list[tuple[int, int, str]]:
    """Return all integers in a text as (start, end, normal form), in order of start.

    These are numbers in any script's decimal digits with a sign, thousands separators, a fraction of zeros (`12.0`), or
    digits separated by single spaces, commas, underscores or apostrophes (`1,0 24`), and the values of sums,
    differences, products, integer quotients and powers of up to eight numbers (`10 + 2 x 3`, and each part of it).
    Takes time linear in the text.
    """
    return list(_integers(text))


@cached(1024)
def _integers(text: str) -> Sequence[tuple[int, int, str]]:
    runs = digit_runs(text)
    if not runs:
        return ()
    plain = _plain(text, runs)
    if plain is not None:
        return plain
    starts = signed_starts(text, runs, "+-−")
    numbers = list(_numbers(text, starts))
    spans = {(n.start, n.end, str(-n.size if n.negative else n.size)) for n in numbers}
    split_up = any(b == end + 1 and text[end] in _APART for (_, end), (b, _) in pairwise(runs))
    for match in find_index(_SPLIT_UP, text, starts) if split_up else ():
        digits = "".join(c for c in match["digits"] if c.isdecimal())
        if len(digits) <= MAX_DIGITS:
            value = int(digits)
            spans.add((match.start(), match.end(), str(-value if match["sign"] in MINUS else value)))
    links = [
        _OPERATOR.fullmatch(text, a.end, b.digits_start) if b.digits_start - a.end <= 8 else None
        for a, b in pairwise(numbers)
    ]
    for first, link in enumerate(links):
        if link:
            spans.update(_chains(numbers[first : first + _MAX_TERMS], links[first : first + _MAX_TERMS]))
    return sorted(spans)


def _plain(text: str, runs: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int, str]] | None:
    """Return the numbers of a text with digits only between words; None if signs or marks need the full scan."""
    spans: list[tuple[int, int, str]] = []
    before = -1
    for start, end in runs:
        digits = text[start:end]
        if (start and text[start - 1] in "+-−") or (before >= 0 and len(text[before:start].strip()) < 2):
            return None
        if len(digits) > MAX_DIGITS or not digits.isascii():
            return None
        spans.append((start, end, str(int(digits))))
        before = end
    return spans


def _numbers(text: str, starts: Iterable[int]) -> Iterator[_Literal]:
    for match in find_index(_NUMBER, text, starts):
        digits = match["digits"].replace(",", "")
        if len(digits) <= MAX_DIGITS and not (match["fraction"] or "").strip("0"):
            yield _Literal(match.start(), match.start("digits"), match.end(), match["sign"] in MINUS, int(digits))


def _chains(numbers: list[_Literal], links: Iterable[re.Match[str] | None]) -> Iterator[tuple[int, int, str]]:
    """Yield the values of `n0 op n1`, `n0 op n1 op n2`, … until an operator is missing."""
    total, term = 0, -numbers[0].size if numbers[0].negative else numbers[0].size
    for number, link in zip(numbers[1:], links, strict=False):
        if link is None:
            return
        value = -number.size if link["sign"] in MINUS else number.size
        if link["operator"] in "x×*·X":
            term *= value
        elif link["operator"] in "/÷":
            if value == 0 or term % value:
                return
            term //= value
        elif link["operator"] == "^":
            if not 0 <= value <= _MAX_EXPONENT or abs(term) > _MAX_BASE:
                return
            term **= value
        else:
            total, term = total + term, value if link["operator"] == "+" else -value
        yield numbers[0].start, number.end, str(total + term)
