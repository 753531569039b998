"""All the ways in which a hint may say something, put together: plainer texts of it, and what the readers find in them.

Nothing here knows the answer; whether a reading is it, the environment's verifier decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from rl2f_core.environments._tokens import digit_runs, words_of
from rl2f_core.leaks import _encodings, _letters, _number_words, _numerals, _relations
from rl2f_core.leaks._text import Normalised, Reading, normalise, replaced

T = TypeVar("T")
_DIGIT = re.compile(r"\d")
_LATEX = re.compile(r"\\[a-zA-Z,;:!( \[]|\{,\}")
_CODED = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]|[A-Za-z]\d|\d[A-Za-z]|\w=|[2-7][0-9a-fA-F][ ,]{1,2}[2-7][0-9a-fA-F]\b")
_OPERATORS = re.compile(
    r"\b(plus|minus|times|multiplied by|divided by|to the power of|to the power|squared|equals)\b", re.IGNORECASE
)
_SIGNS = {
    "plus": "+", "minus": "-", "times": "x", "multiplied by": "x", "divided by": "/", "to the power of": "^",
    "to the power": "^", "squared": "^ 2", "equals": "=",
}  # fmt: skip
_OPERATOR_WORDS = frozenset("plus minus times multiplied divided power squared equals".split())
_BASEISH = re.compile(r"\d(?:(?<=0)[xXbBoO]|(?<=[01])[01]{5}|(?<=[01])[01]{3}[ _][01]{4}|[0-9a-fA-F]*h\b)")
_ROMANISH = re.compile(r"\b[IVXLCDM]{2,}\b")
_ROMAN_PAIR = re.compile(r"[IVXLCDM][IVXLCDM]")
_LOOKALIKE = re.compile(r"\d[OolI|]|[OolI|]\d|\d[^\x00-\x7f]|[^\x00-\x7f]\d")
_LOOK_ALIKE = frozenset("OolI|")
_POWERS = re.compile(r"\d(?:[eE]\+?\d|(?<=1)0 ?(?:\^|\*\*))")
_LATIN = str.maketrans("АВЕКМНОРСТУХаеорсухіѕјԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEKMHOPCTYXaeopcyxisjdqwABEZHIKMNOPTYXo")
"""Cyrillic and Greek letters that look like Latin ones."""
_SINGLE = re.compile(r"(?<![^\W_])[^\W\d_](?![^\W_])")
_ONCE = 32
_TAIL = 40
"""Characters at the end of the earlier hints, and at the beginning of the new one, that may be one reading."""


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
    words: Set[str]
    """Its words in small letters."""
    digits: bool
    """Digits stand in it."""
    loose: frozenset[tuple[int, int]] = frozenset()
    """Spans of the hint that were read in an unlikely way."""
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What readers that look at this text alone found in it: hints of scripted teachers come again and again."""

    def once(self, key: Hashable, read: Callable[[], T]) -> T:
        """What `read` finds, read once."""
        if key not in self.known:
            if len(self.known) >= _ONCE:
                self.known.clear()
            self.known[key] = read()
        return self.known[key]

    @property
    def reversal(self) -> bool:
        """It speaks of reading backwards."""
        return _encodings.speaks_of_reversal(self.words, self.text.text)


def _view(text: Normalised, loose: frozenset[tuple[int, int]] = frozenset()) -> View:
    return View(text, words_of(text.text), bool(digit_runs(text.text)), loose)


@lru_cache(512)
def views_of(hint: str, wanted: Wanted) -> list[View]:
    """`views` of a hint as it was written."""
    return views(normalise(hint, fold=False, lines=True), wanted)


def views(visible: Normalised, wanted: Wanted) -> list[View]:
    """The hint without its disguises: LaTeX, number words, spoken letters, base64, right to left.

    First comes the hint itself, its number words as digits or its spoken letters as letters where such are wanted.

    Args:
        visible: The hint in normal form with its case and lines.
        wanted: What is looked for; disguises of other things are left alone.
    """
    text = visible.text
    plain = _view(visible)
    bases = [plain]
    if _LATEX.search(text):
        bases.append(_view(replaced(visible, _numerals.latex(text))))
    if "base" in plain.words or _CODED.search(" ".join([word for word in text.split() if not word.islower()])):
        bases += [_view(said) for said in _encodings.decoded(visible, "base" in plain.words)]
    if not text.isascii():
        latin = text.translate(_LATIN)
        if latin != text:
            bases.append(_view(Normalised(latin, visible.starts, visible.ends)))
    backwards = _encodings.turned(visible, plain.words)
    if backwards is not None:
        bases.append(_view(backwards))
    return [_plainer(base, wanted) for base in bases]


def _plainer(view: View, wanted: Wanted) -> View:
    pieces: list[tuple[int, int, str]] = []
    loose: list[tuple[int, int]] = []
    source, text, words = view.text, view.text.text, view.words
    if wanted.digits:
        plain = text.isascii()
        folded = words if plain else {_number_words.folded(word) for word in words}
        read = _number_words.number_words(text) if _number_words.may_hold(folded, text.lower()) else []
        if not plain:
            read = sorted([*read, *_number_words.han_numbers(text)])
        if (read or view.digits) and not _OPERATOR_WORDS.isdisjoint(words):
            pieces = [(*m.span(), _SIGNS[m[0].lower()]) for m in _OPERATORS.finditer(text)]
        pieces = _apart(sorted([*pieces, *((r.start, r.end, r.said) for r in read)]))
        loose = [source.original(r.start, r.end) for r in read if r.loose]
    elif wanted.letters:
        pieces = _letters.plainer(text, words)
    if not pieces:
        return view
    text_ = replaced(source, pieces)
    return View(text_, words, bool(digit_runs(text_.text)), frozenset(loose))


def _apart(pieces: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    kept: list[tuple[int, int, str]] = []
    for piece in pieces:
        if not kept or piece[0] >= kept[-1][1]:
            kept.append(piece)
    return kept


def numbers(view: View) -> list[Reading]:
    """Whole numbers in other notations."""
    return view.once("numbers", lambda: list(_numbers(view)))


def _numbers(view: View) -> Iterator[Reading]:
    text, words = view.text.text, view.words
    named = not _numerals.BASE_WORDS.isdisjoint(words)
    if named or (view.digits and _BASEISH.search(text)):
        yield from _numerals.based(text, named)
    if "roman" in words or (_ROMAN_PAIR.search(text) and _ROMANISH.search(text)):
        yield from _numerals.roman(text, "roman" in words)
    if view.digits:
        runs = digit_runs(text)
        yield from _numerals.apart(text, runs)
        if _may_disguise(text, runs):
            yield from _numerals.disguised(text)
        if _POWERS.search(text):
            yield from _numerals.powers_of_ten(text)


def _may_disguise(text: str, runs: Sequence[tuple[int, int]]) -> bool:
    """Does a letter that looks like a digit stand beside one?"""
    if not text.isascii():
        return _LOOKALIKE.search(text) is not None
    return any(text[end : end + 1] in _LOOK_ALIKE or text[max(0, start - 1)] in _LOOK_ALIKE for start, end in runs)


def described(
    view: View, last: Callable[[], int | None], told: Callable[[], int | None] | None
) -> Iterator[tuple[Reading, list[int]]]:
    """Numbers that a view describes by others, each with the numbers it is described by.

    Args:
        view: The hint.
        last: The student's last answer, asked for where the hint speaks of it.
        told: The last number of the earlier hints, likewise; None where there are none.
    """
    if not _relations.may_describe(view.words, view.digits):
        return
    text = lowered(view.text.text)
    yours = _relations.refers(text, view.words)
    mine = told is not None and _relations.MINE.search(text) is not None
    if view.digits or yours or mine:
        by = (last() if yours else None, told() if told and mine else None)
        yield from view.once(("described", *by), lambda: list(_relations.described(text, view.words, *by)))


def bounded(view: View, earlier: Iterable[View], tried: Callable[[], Sequence[int]]) -> Iterator[Reading]:
    """The number that the bounds in a view and in the earlier hints leave, with its span in the view."""
    text = view.text.text
    if not view.digits or not _relations.may_bound(view.words, text):
        return
    earlier = list(earlier)
    told = [other.text.text for other in earlier if other.digits]
    if not _near_numbers([text, *told]):
        return
    before = "\n".join(told)
    since = len(before) + 1 if before else 0
    joined = f"{before}\n{text}" if before else text
    words = frozenset(view.words).union(*(other.words for other in earlier))
    for reading in _relations.pinned(lowered(joined), words, tried, since):
        yield reading._replace(start=reading.start - since, end=reading.end - since)


def _near_numbers(texts: Sequence[str]) -> bool:
    """Are there two numbers no further apart than 2, as any bounds that leave one number are?"""
    found: list[int] = []
    for text in texts:
        runs = digit_runs(text)
        for start, end in runs:
            if text[start - 1 : start] == ",":  # a group of a longer number
                return len(runs) > 1
            found.append(int(text[start:end]) if end - start < 40 else 0)
    found.sort()
    return any(b - a <= 2 for a, b in pairwise(found))


def lowered(text: str) -> str:
    """Small letters, character by character, so that offsets stay."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def after(earlier: Sequence[str], visible: Normalised, wanted: Wanted) -> Normalised | None:
    """The beginning of the hint behind the end of the earlier ones as one text; None where they cannot go together.

    Characters of the earlier part have offsets of -1.
    """
    head = visible.text[:_TAIL]
    if not _may_go_on(head, wanted):
        return None
    told = normalise(" ".join(hint.strip().rstrip(".!…") for hint in earlier)[-_TAIL:].strip(), fold=False).text
    if not told or not _may_go_on(told, wanted):
        return None
    none = [-1] * (len(told) + 1)
    return Normalised(f"{told} {head}", [*none, *visible.starts[:_TAIL]], [*none, *visible.ends[:_TAIL]])


def _may_go_on(text: str, wanted: Wanted) -> bool:
    if wanted.letters:
        return _SINGLE.search(text) is not None
    if _DIGIT.search(text):
        return True
    words = words_of(text)
    folded = words if text.isascii() else {_number_words.folded(word) for word in words}
    return _number_words.may_hold(folded, text.lower())
