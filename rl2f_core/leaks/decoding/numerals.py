"""Read integers in other notations: bases, Roman numerals, separated or disguised digits, exponents, LaTeX.

Each function takes a text in normal form (`text.normalize`, original case) and runs in linear time.
"""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import re
from collections.abc import Iterator

from rl2f_core.common.text.normalize import Reading, non_overlapping
from rl2f_core.common.text.tokens import digit_runs, find_index

_BASES = {
    2: r"binary|base[- ](?:2|two)|bits", 8: r"octal|base[- ](?:8|eight)|oct",
    16: r"hexadecimal|hex|base[- ](?:16|sixteen)",
    3: r"ternary|base[- ](?:3|three)", 4: r"base[- ](?:4|four)", 5: r"base[- ](?:5|five)", 6: r"base[- ](?:6|six)",
    7: r"base[- ](?:7|seven)", 9: r"base[- ](?:9|nine)", 12: r"duodecimal|base[- ](?:12|twelve)",
    20: r"base[- ](?:20|twenty)", 36: r"base[- ](?:36|thirty-?\s?six)",
}  # fmt: skip
BASE_WORDS = frozenset("binary bits octal oct hex hexadecimal ternary duodecimal base".split())
"""A text that names a base contains one of these words."""
_NAMED = [
    (base, re.compile(rf"\b(?:{name})\b", re.IGNORECASE), re.compile(r"(?<!\w)[0-9a-z]{1,40}(?!\w)", re.IGNORECASE))
    for base, name in _BASES.items()
]
_PREFIXED = re.compile(
    r"(?<![\w.])(?:0x([0-9a-f]{1,16})|0b([01]{1,64})|0o([0-7]{1,22})|([0-9][0-9a-f]{1,15})h)(?!\w)", re.IGNORECASE
)
_BITS = re.compile(r"(?<![\w.,])1[01]{5,40}(?![\w]|[.,]\d)")
_BITS_APART = re.compile(r"(?<![\w.,])[01]{4}(?:[ _][01]{4}){1,8}(?![\w]|[.,]\d)")
_NEAR = 40


def based(text: str, named: bool) -> Iterator[Reading]:
    """Read numbers in another base: `0x84`, `84 in hex`, `binary 10000100`, and runs of at least six bits.

    `named`: the text names a base.
    """
    for match in _PREFIXED.finditer(text):
        group = match.lastindex or 1
        yield Reading(match.start(), match.end(), str(int(match[group], (16, 2, 8, 16)[group - 1])))
    for pattern in (_BITS, _BITS_APART):
        for match in pattern.finditer(text):
            yield Reading(match.start(), match.end(), str(int(re.sub("[ _]", "", match[0]), 2)))
    if not named:
        return
    for base, name, token in _NAMED:
        for cue in name.finditer(text):
            begin, stop = max(0, cue.start() - _NEAR), min(len(text), cue.end() + _NEAR)
            for match in token.finditer(text, begin, stop):
                whole = not (match.start() == begin and begin and text[begin - 1].isalnum())
                inside = cue.start() <= match.start() < cue.end()
                if whole and not inside and match.end() - match.start() <= 40 and re.search(r"\d", match[0]):
                    try:
                        value = int(match[0], base)
                    except ValueError:
                        continue
                    yield Reading(min(match.start(), cue.start()), max(match.end(), cue.end()), str(value))
            if base == 16:
                for match in re.compile(r"(?<!\w)[A-Fa-f]{1,8}(?!\w)").finditer(text, begin, stop):
                    span = min(match.start(), cue.start()), max(match.end(), cue.end())
                    yield Reading(*span, str(int(match[0], 16)), len(match[0]) == 1)


_ROMAN = re.compile(r"(?<![\w'])(?=[IVXLCDM])M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?![\w'])")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman(text: str, cued: bool) -> Iterator[Reading]:
    """Read Roman numerals of at least two capitals; with `cued` (the word "Roman") also single or lower-case letters."""
    for match in _ROMAN.finditer(text.upper() if cued and len(text.upper()) == len(text) else text):
        if len(match[0]) > 1 or cued:
            yield Reading(match.start(), match.end(), str(roman_value(match[0])))


def roman_value(numeral: str) -> int:
    """Return the value of a Roman numeral in capitals."""
    values = [_ROMAN_DIGITS[letter] for letter in numeral]
    return sum(-v if v < after else v for v, after in zip(values, [*values[1:], 0], strict=True))


_MARK = r"(?:\s?[-,;./:|·•*_~…>→&]{1,3}\s?|\s{1,3})(?:(?:and|then|followed by|und|et|y|a|an)\s){0,2}"
_APART = re.compile(rf"(?<![\w.,])(?:\d{_MARK}){{1,11}}\d(?![\w]|[.,]\d)", re.IGNORECASE)
_PAIRS = re.compile(r"(?<![\w.,])\d{1,3}(?:\s?(?:[-|·•*_~…>→&]|\.\.\.)\s?\d{1,3}){1,4}(?![\w]|[.,]\d)")
_DIGIT_CUE = re.compile(
    r"\bdigits?\b|\bspell|\bfigures?\b|\bone (?:by one|at a time)\b|\bone after|\bside by side\b|\bjoin|\bglue|\bin a row\b|\bconcatenat",
    re.IGNORECASE,
)
_LOOKALIKE = str.maketrans(
    "OoОоΟο〇lI|іІΙⅠ\u04c0зЗƷбƻƼ\u0405\u10d5", "0000000" + "11111111" + "333" + "6" + "25" + "5" + "3"
)
_DISGUISED = re.compile(r"(?<!\w)-?(?=[^\s]*\d)[\dOoОоΟο〇lI|іІΙⅠ\u04c0зЗƷбƻƼ\u0405]{2,15}(?!\w)")
_POWER = re.compile(
    r"(?<![\w.,])(\d{1,6})(?:\.(\d{1,6}))?\s?(?:e\+?|(?:x|×|\*|·)\s?10\s?(?:\^|\*\*)\s?)(\d{1,2})(?!\w|[.,]\d)",
    re.IGNORECASE,
)


def apart(text: str) -> Iterator[Reading]:
    """Read separated digits (`1-3-2`, `1, then 3, then 2`), and groups of digits if the text mentions digits."""
    runs = digit_runs(text)
    if len(runs) < 2:
        return
    starts = [start for start, _ in runs]
    cued = _DIGIT_CUE.search(text) is not None
    for match in find_index(_APART, text, starts):
        digits = re.sub(r"\D", "", match[0])
        yield Reading(match.start(), match.end(), digits, len(digits) == 2 and not cued)
    if cued:
        for match in find_index(_PAIRS, text, starts):
            yield Reading(match.start(), match.end(), re.sub(r"\D", "", match[0]))


def disguised(text: str) -> Iterator[Reading]:
    """Read digits next to look-alike letters: `1O24`, `l32`, the Cyrillic `1З2`."""
    for match in _DISGUISED.finditer(text):
        plain = match[0].translate(_LOOKALIKE)
        if plain != match[0] and re.fullmatch(r"-?\d+", plain):
            yield Reading(match.start(), match.end(), str(int(plain)))


def powers_of_ten(text: str) -> Iterator[Reading]:
    """Read integers with an exponent: `1.32e2`, `1.32 × 10^2`."""
    for match in _POWER.finditer(text):
        fraction = match[2] or ""
        zeros = int(match[3]) - len(fraction.rstrip("0"))
        if 0 <= zeros <= 30:
            yield Reading(match.start(), match.end(), str(int(match[1] + fraction.rstrip("0") + "0" * zeros)))


_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_COMMANDS = [
    (re.compile(r"\{,\}|\\,(?=\s?\d)|\\[!;: ](?=\d)|(?<=\d)\\ (?=\d)"), ""),
    (re.compile(r"\\(?:times|cdot|ast)\b"), "x"),
    (re.compile(r"\\div\b"), "/"),
    (
        re.compile(
            r"\\(?:boxed|fbox|text|mathbf|mathrm|mathit|mathtt|textbf|textit|texttt|mbox|overline|underline|large|Large)\b\s*\{?"
        ),
        " ",
    ),
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad|,|;|!)|\\\(|\\\)|\\\[|\\\]|\\ "), " "),
    (re.compile(r"[{}$]"), " "),
]


def latex(text: str) -> list[tuple[int, int, str]]:
    """Return replacements for `text.normalize.replaced`: fractions as quotients, other commands removed."""
    pieces: list[tuple[int, int, str]] = []
    for match in _FRACTION.finditer(text):
        pieces.append((match.start(), match.start(1), " "))
        pieces.append((match.end(1), match.start(2), " / "))
        pieces.append((match.end(2), match.end(), " "))
    for pattern, plain in _COMMANDS:
        pieces += [(match.start(), match.end(), plain) for match in pattern.finditer(text)]
    return non_overlapping(sorted((p for p in pieces if p[0] < p[1]), key=lambda piece: (piece[0], -piece[1])))
