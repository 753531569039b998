"""Combine all decoders: plainer views of a hint, and the numbers that they contain.

Nothing here uses the answer; the environment's verifier decides which reading is correct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from rl2f_core.common.text.normalize import NormalizedText, Reading, literals, non_overlapping, normalize, replaced
from rl2f_core.common.text.tokens import digit_runs, split_words
from rl2f_core.leaks.decoding import encodings, letters, number_words, numerals, relations

T = TypeVar("T")
_LATEX = re.compile(r"\\[a-zA-Z,;:!( \[]|\{,\}")
_CODED = re.compile(r"[a-z][A-Z]|[A-Z][A-Z][a-z]|[A-Za-z]\d|\d[A-Za-z]|\w=|[2-7][0-9a-fA-F][ ,]{1,2}[2-7][0-9a-fA-F]\b")
_OPERATORS = re.compile(
    r"\b(plus|minus|times|multiplied by|divided by|to the power of|to the power|squared|equals)\b", re.IGNORECASE
)
_SIGNS = {
    "plus": "+", "minus": "-", "times": "x", "multiplied by": "x", "divided by": "/", "to the power of": "^",
    "to the power": "^", "squared": "^ 2", "equals": "=",
}  # fmt: skip
_BASEISH = re.compile(r"\d(?:(?<=0)[xXbBoO]|(?<=[01])[01]{5}|(?<=[01])[01]{3}[ _][01]{4}|[0-9a-fA-F]*h\b)")
_ROMANISH = re.compile(r"\b[IVXLCDM]{2,}\b")
_LOOKALIKE = re.compile(r"\d[OolI|]|[OolI|]\d|\d[^\x00-\x7f]|[^\x00-\x7f]\d")
_POWERS = re.compile(r"\d(?:[eE]\+?\d|(?<=1)0 ?(?:\^|\*\*))")
_LATIN = str.maketrans("АВЕКМНОРСТУХаеорсухіѕјԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEKMHOPCTYXaeopcyxisjdqwABEZHIKMNOPTYXo")
"""Cyrillic and Greek letters that look like Latin ones, as Latin ones."""
_SINGLE = re.compile(r"(?<![^\W_])[^\W\d_](?![^\W_])")
_MAX_CACHED_READINGS = 32
_SEAM_CHARS = 40
"""Characters at the end of the earlier hints, and at the start of the new one, that may form one reading."""


@dataclass(frozen=True, slots=True)
class AnswerType:
    """Form of the answer to look for."""

    digits: bool
    """The answer contains digits."""
    integer: bool
    """The answer is one integer."""
    letters: int
    """Number of single letters that the answer consists of, otherwise 0."""


@dataclass(frozen=True, slots=True)
class TextView:
    """One decoded form of the hint, with a map back to the hint."""

    text: NormalizedText
    words: Set[str]
    """The words in lower case."""
    digits: bool
    """The text contains digits."""
    loose: frozenset[tuple[int, int]] = frozenset()
    """Spans of the hint with an unlikely reading."""
    cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Cached readings that depend only on this text, since scripted hints repeat."""

    def cached(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return `read()`, from the cache if possible."""
        if key not in self.cache:
            if len(self.cache) >= _MAX_CACHED_READINGS:
                self.cache.clear()
            self.cache[key] = read()
        return self.cache[key]

    @property
    def mentions_reversal(self) -> bool:
        """The text mentions reading backwards."""
        return encodings.mentions_reversal(self.words, self.text.text)


def _view(text: NormalizedText) -> TextView:
    return TextView(text, split_words(text.text), bool(digit_runs(text.text)))


@lru_cache(512)
def views_of(hint: str, wanted: AnswerType) -> list[TextView]:
    """Return the cached `views` of a raw hint."""
    return views(normalize(hint, fold=False, lines=True), wanted)


def views(visible: NormalizedText, wanted: AnswerType) -> list[TextView]:
    """Return decoded views of a hint: without LaTeX, base64, look-alike letters or reversal.

    The first view is the hint itself. In every view, number words become digits and spoken letters become letters if
    the answer has such.

    Args:
        visible: The hint in normal form with its case and lines.
        wanted: Form of the answer.
    """
    text = visible.text
    plain = _view(visible)
    bases = [plain]
    if _LATEX.search(text):
        bases.append(_view(replaced(visible, numerals.latex(text))))
    if "base" in plain.words or _CODED.search(" ".join([word for word in text.split() if not word.islower()])):
        bases += [_view(decoded) for decoded in encodings.decoded(visible, "base" in plain.words)]
    if not text.isascii():
        latin = text.translate(_LATIN)
        if latin != text:
            bases.append(_view(NormalizedText(latin, visible.starts, visible.ends)))
    backwards = encodings.reversed_text(visible, plain.words)
    if backwards is not None:
        bases.append(_view(backwards))
    return [_plainer(base, wanted) for base in bases]


def _plainer(view: TextView, wanted: AnswerType) -> TextView:
    pieces: list[tuple[int, int, str]] = []
    loose: list[tuple[int, int]] = []
    source, text, words = view.text, view.text.text, view.words
    if wanted.digits:
        read = number_words.number_words(text) if number_words.has_number_words(text.lower(), words) else []
        if not text.isascii():
            read = sorted([*read, *number_words.han_numbers(text)])
        if read or view.digits:
            pieces = [(*m.span(), _SIGNS[m[0].lower()]) for m in _OPERATORS.finditer(text)]
        pieces = non_overlapping(sorted([*pieces, *((r.start, r.end, r.value) for r in read)]))
        loose = [source.original(r.start, r.end) for r in read if r.loose]
    elif wanted.letters:
        pieces = letters.plainer(text, words)
    if not pieces:
        return view
    text_ = replaced(source, pieces)
    return TextView(text_, words, bool(digit_runs(text_.text)), frozenset(loose))


def numbers(view: TextView) -> list[Reading]:
    """Read integers in other notations."""
    return view.cached("numbers", lambda: list(_numbers(view)))


def _numbers(view: TextView) -> Iterator[Reading]:
    text, words = view.text.text, view.words
    named = not numerals.BASE_WORDS.isdisjoint(words)
    if named or (view.digits and _BASEISH.search(text)):
        yield from numerals.based(text, named)
    if "roman" in words or _ROMANISH.search(text):
        yield from numerals.roman(text, "roman" in words)
    if view.digits:
        yield from numerals.apart(text)
        if _LOOKALIKE.search(text):
            yield from numerals.disguised(text)
        if _POWERS.search(text):
            yield from numerals.powers_of_ten(text)


def described(view: TextView, last: Iterable[int], earlier: Iterable[TextView]) -> Iterator[tuple[Reading, list[int]]]:
    """Read numbers that a view describes by other numbers; yields each with those numbers.

    Args:
        view: The hint.
        last: The student's last answer if it is a number, otherwise empty.
        earlier: The earlier hints.
    """
    if not relations.may_describe(view.words, view.digits):
        return
    text = _lowered(view.text.text)
    answer = next(iter(last), None) if relations.mentions_last_answer(text, view.words) else None
    hinted = _last_number(earlier) if relations.MINE.search(text) else None
    if view.digits or answer is not None or hinted is not None:
        key = "described", answer, hinted
        yield from view.cached(key, lambda: list(relations.described(text, view.words, answer, hinted)))


def _last_number(views: Iterable[TextView]) -> int | None:
    text = "\n".join(view.text.text for view in views)
    spans = literals(text)
    digits = text[slice(*spans[-1])].replace(",", "") if spans else ""
    return int(digits) if digits.lstrip("+-").isdecimal() else None


def bounded(view: TextView, earlier: Iterable[TextView], tried: Iterable[int]) -> Iterator[Reading]:
    """Read the only number within the bounds of a view and the earlier hints; its span is in the view.

    Bounds that are both in `tried`, the student's answers, do not count.
    """
    text = view.text.text
    if not view.digits or not relations.may_bound(view.words, text):
        return
    earlier = list(earlier)
    texts = [other.text.text for other in earlier if other.digits]
    if not _has_close_numbers([text, *texts]):
        return
    before = "\n".join(texts)
    since = len(before) + 1 if before else 0
    joined = f"{before}\n{text}" if before else text
    words = frozenset(view.words).union(*(other.words for other in earlier))
    for reading in relations.implied_by_bounds(_lowered(joined), words, tried, since):
        yield reading._replace(start=reading.start - since, end=reading.end - since)


def _has_close_numbers(texts: Sequence[str]) -> bool:
    """Return whether two numbers differ by at most 2, as bounds that leave one number must."""
    values: list[int] = []
    for text in texts:
        runs = digit_runs(text)
        for start, end in runs:
            if text[start - 1 : start] == ",":  # a group of a longer number
                return len(runs) > 1
            values.append(int(text[start:end]) if end - start < 40 else 0)
    return any(b - a <= 2 for a, b in pairwise(sorted(values)))


def _lowered(text: str) -> str:
    """Convert to lower case character by character, which keeps offsets."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def join_hints(earlier: Sequence[str], visible: NormalizedText, wanted: AnswerType) -> NormalizedText | None:
    """Join the end of the earlier hints and the start of this one; None if they cannot form a reading.

    Characters of the earlier hints have offset -1.
    """
    head = visible.text[:_SEAM_CHARS]
    if not _may_continue(head, wanted):
        return None
    tail = normalize(" ".join(hint.strip().rstrip(".!…") for hint in earlier)[-_SEAM_CHARS:].strip(), fold=False).text
    if not tail or not _may_continue(tail, wanted):
        return None
    none = [-1] * (len(tail) + 1)
    return NormalizedText(
        f"{tail} {head}", [*none, *visible.starts[:_SEAM_CHARS]], [*none, *visible.ends[:_SEAM_CHARS]]
    )


def _may_continue(text: str, wanted: AnswerType) -> bool:
    if wanted.letters:
        return _SINGLE.search(text) is not None
    return bool(digit_runs(text)) or number_words.has_number_words(text.lower(), split_words(text))
