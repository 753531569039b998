"""Descriptions of a number by other numbers, by its digits, in another base or in Roman numerals."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from rl2f_core.leaks.candidates.told import NumberTask, Told, numbers_in
from rl2f_core.leaks.equivalent.numerals import roman_value

SWAPPED = re.compile(
    r"\b(?:swap\w*|exchang\w+|switch\w*|trad\w+|transpos\w+|interchang\w+|revers\w+|back(?:wards?| to front)|the other way (?:round|around)|turn\w* (?:it|them|that|yours)? ?(?:around|round)|mirror\w*|flip\w*|wrong order|chang\w+ (?:seats|places)|mixed up|from (?:right to left|behind|the back)|upside|inside out|glass door|opposite order)\b"
)
_ORIGIN = r"(?:what |the number |exactly |just |right |your )?"
_BEFORE = r"less than|fewer than|below|short of|shy of|under|before|smaller than|lower than|left of|from reaching|away from|off|subtracted from|taken from"
_BEYOND = r"more than|greater than|above|over|past|after|beyond|bigger than|larger than|higher than|on top of|added to|to the right of|north of"
_OFFSET = re.compile(
    rf"(?<![\w.-])(?P<n>\d{{1,3}}|an?|one|just|right|immediately|directly|comes?|next)(?: \w+)? (?:(?P<less>{_BEFORE})|(?P<more>{_BEYOND})) {_ORIGIN}(?P<m>\d{{1,6}})(?![\w]|[.,]\d)"
)
_MULTIPLE = re.compile(
    r"\b(?P<f>half|double|twice|triple|thrice|a third|a quarter|(?P<square>the square)|(?P<root>the (?:square )?root))(?: of)?(?: the number)? (?P<m>\d{1,6})(?![\w]|[.,]\d)|(?<!\d)(?P<base>\d{1,3}) (?:squared|times itself|multiplied by itself)"
)
_FACTORS = {
    "half": Fraction(1, 2),
    "double": Fraction(2),
    "twice": Fraction(2),
    "triple": Fraction(3),
    "thrice": Fraction(3),
    "a third": Fraction(1, 3),
    "a quarter": Fraction(1, 4),
}
_MIDWAY = re.compile(
    r"\b(?:half ?way|midway|in the middle|exactly in between|the middle|average|mean|midpoint|(?:exactly|right|smack|dead|precisely|squarely)(?: in)? between)\b[^.]{0,30}?(\d{1,6}) (?:and|to|&) (\d{1,6})"
)
_BASES = re.compile(
    r"\b(?:(?P<b2>binary|base 2|base-2|bits?)|(?P<b16>hex\w*|base 16|base-16)|(?P<b8>octal|base 8|base-8))\b"
)
_CODED = re.compile(r"(?<![\w.])(?:0[xbo])?(?=[0-9A-F]*\d)[0-9A-F]{2,10}(?![\w])", re.IGNORECASE)
_ROMAN_CUE = re.compile(r"\b(?:roman\w*|caesar\w*|cicero|latin|numerals?|centurion|legion\w*|letters?)\b")
_ROMAN = re.compile(r"(?<![\w'])(?=[MDCLXVI])M{0,3}(?:CM|CD|D?C{0,4})(?:XC|XL|L?X{0,4})(?:IX|IV|V?I{0,4})(?![\w'])")
_FILLER = re.compile(
    r"\W{1,3}(?:(?:and|then|an?|the|followed by|with|by|next|comes?|another|big|round|after|it|that|finally|lastly|second|last|in|front|middle|is)\W{1,2}){0,4}"
)
_SINGLE = re.compile(r"(?<![\w.])\d(?![\w]|[.,]\d)")
_DIGIT_WORDS = re.compile(r"\b(?:digits?|followed|figures?|next to)\b")


def described(text: str, original: str, task: NumberTask, tried: Sequence[Fraction]) -> Iterator[Told]:
    """Yield descriptions of the answer by other numbers, by its digits, in another base or in Roman numerals.

    `text` is `original` in lower case.
    """
    gold = task.gold
    if gold.denominator != 1:
        return
    for match in _ROMAN.finditer(original) if _ROMAN_CUE.search(text) else ():
        if match[0] and match[0] != "I" and roman_value(match[0]) == gold:
            yield Told(*match.span())
    if not numbers_in(text) and not _BASES.search(text):
        return
    for match in _OFFSET.finditer(text):
        n = int(match["n"]) if match["n"].isdigit() else 1
        if {n, int(match["m"])} <= task.given or int(match["m"]) in tried:
            continue
        if int(match["m"]) + (-n if match["less"] else n) == gold:
            yield Told(*match.span())
    for match in _MULTIPLE.finditer(text):
        m = int(match["m"] or match["base"])
        value = Fraction(m * m) if match["base"] or match["square"] else m * _FACTORS.get(match["f"], Fraction(0))
        if value == gold or (match["root"] and gold * gold == m):
            yield Told(*match.span())
    for match in _MIDWAY.finditer(text):
        if int(match[1]) + int(match[2]) == 2 * gold:
            yield Told(*match.span())
    for match in _BASES.finditer(text):
        base = next(int(str(name)[1:]) for name, word in match.groupdict().items() if word)
        for coded in _CODED.finditer(text):
            if _in_base(coded[0], base) == gold:
                yield Told(*coded.span())
    digits = str(abs(int(gold)))
    singles = [m.span() for m in _SINGLE.finditer(text)] if len(digits) > 1 else []
    for i in range(len(singles) - len(digits) + 1):
        group = singles[i : i + len(digits)]
        if all(text[start] == d for (start, _), d in zip(group, digits, strict=True)):
            close = all(_FILLER.fullmatch(text, one[1], other[0]) for one, other in pairwise(group))
            if close and (len(digits) > 2 or _DIGIT_WORDS.search(text)):
                yield Told(group[0][0], group[-1][1])
    if SWAPPED.search(text) and digits != digits[::-1]:
        for start, end, number in numbers_in(text):
            if str(number) == digits[::-1] and number not in tried:
                yield Told(start, end)


def _in_base(text: str, base: int) -> int | None:
    try:
        return int(text, base)
    except ValueError:
        return None
