"""Leaks of whole numbers."""

from __future__ import annotations

from functools import partial

from rl2f_core.leaks.synthetic.draft import PHRASINGS, TABLES, Draft, Leak

_TEXTS = PHRASINGS["numbers"]
_WORDS: dict[int, list[str]] = PHRASINGS["number_words"]
"""Words of some numbers in other languages."""
_ROMAN = {"D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}
MAX_NUMBER = 1_000_000
MAX_ROMAN = 900
"""Bound of numbers in Roman numerals."""


def is_number(answer: str) -> bool:
    """Return whether an answer is a whole number below `MAX_NUMBER`."""
    return answer.isascii() and answer.isdigit() and int(answer) < MAX_NUMBER


def _roman(n: int) -> str:
    numeral = ""
    for letters, value in _ROMAN.items():
        numeral += letters * (n // value)
        n %= value
    return numeral


def _in_words(n: int) -> str:
    """Return the English words of a number below `MAX_NUMBER`."""
    small = TABLES["small"]
    if n < 20:
        return small[n]
    for size, name in ((1000, " thousand"), (100, " hundred")):
        if n >= size:
            rest = n % size
            joint = " and " if rest < 100 else " "
            return _in_words(n // size) + name + (joint + _in_words(rest) if rest else "")
    return TABLES["tens"][n // 10 - 2] + (f"-{small[n % 10]}" if n % 10 else "")


def _form(d: Draft, kind: str) -> str | None:
    n = int(d.answer)
    if kind == "roman" and not 0 < n < MAX_ROMAN:
        return None
    names = [TABLES["small"][int(digit)] for digit in str(n)]
    forms = _TEXTS["forms"][kind]
    return d.state(d.write(forms, n=n, digits=str(n), names=names, words=_in_words(n), roman=_roman(n)))


def _negation(d: Draft) -> str:
    """State bounds, or excluded neighbors, that leave only the answer."""
    text = d.write(_TEXTS["pinned"], p=int(d.answer) - 1, s=int(d.answer) + 1)
    return d.opener() + text


def _reversed_text(d: Draft) -> str:
    return d.write(_TEXTS["turned_whole"], n=int(d.answer))[::-1]


def _languages(d: Draft) -> str | None:
    translations = _WORDS.get(int(d.answer), [])
    return d.state(translations[d.variant % len(translations)]) if translations else None


def _partial(d: Draft) -> str | None:
    """State a digit, unless an attempt has a digit of the answer at the same place."""
    digits = d.answer
    pairs = (zip(reversed(attempt), reversed(digits), strict=False) for attempt in d.attempts)
    if len(digits) < 2 or any(a == b for pair in pairs for a, b in pair):
        return None
    text = d.write(_TEXTS["parts"], last=digits[-1], first=digits[0], tens=digits[-2])
    return d.opener() + text


def _difference(d: Draft) -> str | None:
    """State the difference of the answer and the last attempt, with its sign."""
    if not d.last.removeprefix("-").isdecimal() or int(d.last) == int(d.answer):
        return None
    difference = int(d.answer) - int(d.last)
    verb, side = ("Add", "low") if difference > 0 else ("Subtract", "high")
    return d.write(_TEXTS["difference_from_attempt"], d=abs(difference), verb=verb, side=side)


LEAKS: dict[str, Leak] = {
    **{kind: partial(_form, kind=kind) for kind in _TEXTS["forms"]},
    "negation": _negation,
    "reversed_text": _reversed_text,
    "languages": _languages,
    "partial": _partial,
    "difference_from_attempt": _difference,
}
"""Kinds of leaks by name."""
