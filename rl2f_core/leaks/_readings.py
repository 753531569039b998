"""All the ways in which a hint may say something, put together: plainer texts of it, and what the readers find in them.

Nothing here knows the answer; whether a reading is it, the environment's verifier decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rl2f_core.leaks import _encodings, _letters, _number_words, _numerals, _relations
from rl2f_core.leaks._text import Normalised, Reading, normalise, replaced

_WORDS = re.compile(r"[^\W\d_]+")
_DIGIT = re.compile(r"\d")
_NUMBERS = re.compile(r"\d+")
_LATEX = re.compile(r"\\[a-zA-Z,;:!( \[]|\{,\}")
_CODED = re.compile(
    r"[A-Za-z0-9+/]{2,}=|\b[A-Za-z]*\d[A-Za-z0-9]*[A-Za-z]\b|\b[a-z]+[A-Z]\w*|\b[A-Z]+[a-z]+[A-Z]\w*|\b[A-Z]{2,}[a-z]\w*|[bB]ase[- ]?64|\b[2-7][0-9a-fA-F][ ,]{1,2}[2-7][0-9a-fA-F]\b"
)
_BASE64 = re.compile(r"base[- ]?64", re.IGNORECASE)
_OPERATORS = re.compile(
    r"\b(plus|minus|times|multiplied by|divided by|to the power of|to the power|squared|equals)\b", re.IGNORECASE
)
_SIGNS = {
    "plus": "+", "minus": "-", "times": "x", "multiplied by": "x", "divided by": "/", "to the power of": "^",
    "to the power": "^", "squared": "^ 2", "equals": "=",
}  # fmt: skip
_BASEISH = re.compile(r"\b0[xbo]|[01]{6}|[01]{4}[ _][01]{4}|[0-9a-f]h\b", re.IGNORECASE)
_ROMANISH = re.compile(r"\b[IVXLCDM]{2,}\b")
_LOOKALIKE = re.compile(r"\d[OolI|]|[OolI|]\d|\d[^\x00-\x7f]|[^\x00-\x7f]\d")
_POWERS = re.compile(r"\de\+?\d|10 ?(?:\^|\*\*)", re.IGNORECASE)
_TAIL = 400
"""Characters of the earlier hints that a new one can go on from."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What kind of answer is looked for."""

    digits: bool
    """It has digits in it."""
    integer: bool
    """It is one whole number."""
    letters: int
    """How many single letters it consists of; 0 where it does not."""


@dataclass(frozen=True, slots=True)
class View:
    """One way to read the hint, as a text that maps back to the hint."""

    text: Normalised
    loose: frozenset[tuple[int, int]] = field(default=frozenset())
    """Spans of the hint that were read in an unlikely way."""


def views(visible: Normalised, wanted: Wanted) -> list[View]:
    """The hint as it stands, and without its disguises: LaTeX, number words, spoken letters, base64, right to left.

    Args:
        visible: The hint in normal form with its case and lines.
        wanted: What is looked for; disguises of other things are left alone.
    """
    text = visible.text
    bases = [visible]
    if _LATEX.search(text):
        bases.append(replaced(visible, _numerals.latex(text)))
    if _CODED.search(text):
        bases += _encodings.decoded(visible, _BASE64.search(text) is not None)
    backwards = _encodings.turned(visible)
    if backwards is not None:
        bases.append(backwards)
    found = [View(base) for base in bases]
    for base in bases:
        plain = _plainer(base, wanted)
        if plain is not None:
            found.append(plain)
    return found


def _plainer(source: Normalised, wanted: Wanted) -> View | None:
    pieces: list[tuple[int, int, str]] = []
    loose: list[tuple[int, int]] = []
    text = source.text
    if wanted.digits:
        words = {word.casefold() for word in _WORDS.findall(text)}
        if not text.isascii():
            words |= {_number_words.folded(word) for word in words}
        read = _number_words.number_words(text) if _number_words.may_hold(words) else []
        if not text.isascii():
            read = sorted([*read, *_number_words.han_numbers(text)])
        if read or _DIGIT.search(text):
            signs = [(*m.span(), _SIGNS[m[0].lower()]) for m in _OPERATORS.finditer(text)]
            pieces = _apart(sorted([*signs, *((r.start, r.end, r.said) for r in read)]))
            loose = [source.original(r.start, r.end) for r in read if r.loose]
    elif wanted.letters:
        pieces = _letters.plainer(text)
    if not pieces:
        return None
    return View(replaced(source, pieces), frozenset(loose))


def _apart(pieces: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    kept: list[tuple[int, int, str]] = []
    for piece in pieces:
        if not kept or piece[0] >= kept[-1][1]:
            kept.append(piece)
    return kept


def numbers(text: str, last: int | None, told: int | None) -> Iterator[tuple[Reading, list[int]]]:
    """Whole numbers in other notations or described by others, each with the numbers it is described by."""
    digit = _DIGIT.search(text) is not None
    if _numerals.BASE_CUE.search(text) or (digit and _BASEISH.search(text)):
        yield from ((reading, []) for reading in _numerals.based(text))
    if _ROMANISH.search(text) or _numerals.ROMAN_CUE.search(text):
        yield from ((reading, []) for reading in _numerals.roman(text))
    if not digit:
        if last is not None or told is not None:
            yield from _relations.described(lowered(text), last, told)
        return
    yield from ((reading, []) for reading in _numerals.apart(text))
    if _LOOKALIKE.search(text):
        yield from ((reading, []) for reading in _numerals.disguised(text))
    if _POWERS.search(text):
        yield from ((reading, []) for reading in _numerals.powers_of_ten(text))
    yield from _relations.described(lowered(text), last, told)


def bounded(text: str, earlier: str, tried: Sequence[int]) -> Iterator[Reading]:
    """The number that the bounds in the text and in the earlier hints leave, with its span in the text."""
    if not _relations.may_bound(text) or len(_NUMBERS.findall(text)) + len(_NUMBERS.findall(earlier)) < 2:
        return
    since = len(earlier) + 1 if earlier else 0
    joined = f"{earlier}\n{text}" if earlier else text
    for reading in _relations.pinned(lowered(joined), tried, since):
        yield reading._replace(start=reading.start - since, end=reading.end - since)


def lowered(text: str) -> str:
    """Small letters, character by character, so that offsets stay."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def after(earlier: Sequence[str], visible: Normalised) -> Normalised | None:
    """The hint behind the end of the earlier ones as one text; None without any.

    Characters of the earlier part have offsets of -1.
    """
    told = normalise(" ".join(hint.strip().rstrip(".!…") for hint in earlier)[-_TAIL:].strip(), fold=False).text
    if not told:
        return None
    none = [-1] * (len(told) + 1)
    return Normalised(f"{told} {visible.text}", [*none, *visible.starts], [*none, *visible.ends])
