"""Normal form of text with a map back to the original, and whole-token search.

Normal form: Unicode NFKC, case folded, without invisible characters, runs of white space as one space, one minus sign.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.common.text.tokens import cached_with_args

_MINUS = dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
_QUOTES = dict.fromkeys("\u2018\u2019\u02bc", "'")
_SIGNS = {**_MINUS, **_QUOTES, "\u2044": "/"}
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)*|(?<![.\d])\.\d+"
NUMBER = re.compile(rf"(?:(?<![^\W_])(?<![)\]}}])[+-])?(?:{_DIGITS})(?:e[+-]?\d+)?(?:[/:^]-?\d+)*", re.IGNORECASE)
"""One numeric literal: sign, digits in groups, decimals, exponent, and a fraction, time or power of digits."""
_TOKEN = re.compile(rf"{NUMBER.pattern}|[^\W_]+|[^\w\s]|_", re.IGNORECASE)
_TIGHT = ".'_"
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u20e3\u2800\u3164\uffa0")
"""Invisible characters outside the category Cf, and the frame of a keycap."""
_PLAIN = re.compile(r"[\n\t\r -~]*")
_SPACES = ("  ", "\n", "\t", "\r")


class Reading(NamedTuple):
    """A span of a text, and its plain value."""

    start: int
    end: int
    value: str
    loose: bool = False
    """The span is ambiguous and counts only if the text asserts it."""


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """A text in normal form; character i stands for `original[starts[i]:ends[i]]`."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return the original span of the non-empty span [start, end), also if the text is reversed."""
        first, last = start, end - 1
        return min(self.starts[first], self.starts[last]), max(self.ends[first], self.ends[last])

    def locate(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of the original span [start, end)."""
        return bisect_left(self.starts, start), bisect_right(self.ends, end)


def normalize(text: str, fold: bool = True, lines: bool = False) -> NormalizedText:
    """Normalize text; `fold=False` keeps the case, `lines=True` keeps white space."""
    return _normalize(text, fold, lines)


@cached_with_args(4096)
def _normalize(text: str, fold: bool, lines: bool) -> NormalizedText:
    if text.isascii() and (text.isprintable() or _PLAIN.fullmatch(text)):
        seen = text.lower() if fold else text
        if lines or (seen.strip() == seen and not any(space in seen for space in _SPACES)):
            return NormalizedText(seen, range(len(seen)), range(1, len(seen) + 1))
    return _by_clusters(text, fold, lines)


def _by_clusters(text: str, fold: bool, lines: bool) -> NormalizedText:
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        seen = text[start:end]
        if not (lines and seen.isspace()):
            seen = _normal(seen, fold, out[-1] if out else " ")
        for char in seen:
            out.append(char)
            starts.append(start)
            ends.append(end)
    if not lines and out and out[-1] == " ":
        for values in (out, starts, ends):
            values.pop()
    return NormalizedText("".join(out), tuple(starts), tuple(ends))


def replaced(source: NormalizedText, pieces: Sequence[tuple[int, int, str]]) -> NormalizedText:
    """Replace the spans of `pieces` (start, end, replacement), which are in order and disjoint; offsets are mapped."""
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    position = 0
    for start, end, phrase in pieces:
        out.append(source.text[position:start] + phrase)
        starts += [*source.starts[position:start], *[source.starts[start]] * len(phrase)]
        ends += [*source.ends[position:start], *[source.ends[end - 1]] * len(phrase)]
        position = end
    out.append(source.text[position:])
    return NormalizedText("".join(out), [*starts, *source.starts[position:]], [*ends, *source.ends[position:]])


def non_overlapping(pieces: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Drop each piece that overlaps an earlier one; `pieces` are sorted."""
    kept: list[tuple[int, int, str]] = []
    for piece in pieces:
        if not kept or piece[0] >= kept[-1][1]:
            kept.append(piece)
    return kept


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yield spans of a character with the combining marks after it, which NFKC may join into one."""
    start = 0
    for position in range(1, len(text) + 1):
        if position == len(text) or not unicodedata.combining(text[position]):
            yield start, position
            start = position


def _normal(cluster: str, fold: bool, before: str) -> str:
    first = cluster[0]
    if first.isspace():
        return "" if before == " " else " "
    if unicodedata.category(first) in ("Cf", "Cc") or first in _INVISIBLE or "\ufe00" <= first <= "\ufe0f":
        return ""
    kind = unicodedata.decomposition(first).partition(" ")[0]
    normal = "".join(_SIGNS.get(char, char) for char in unicodedata.normalize("NFKC", cluster))
    if kind == "<super>" and normal.isdigit() and before.isdigit():
        normal = f"^{normal}"
    elif kind == "<fraction>" and before.isdigit():
        normal = f" {normal}"
    normal = normal.casefold() if fold else normal
    return normal.lstrip() if before == " " else normal


def find(value: str, text: NormalizedText) -> list[tuple[int, int]]:
    """Return all spans that contain the normalized `value` as a whole token or run of tokens.

    A word does not match inside a longer word, nor a number inside a longer number (12 in 120, 1.12, 1,012 or −12).
    White space around punctuation may differ.
    """
    if not all(word in text.text for word in _words(value)):
        return []
    if value not in text.text and value.replace(" ", "").isalnum():
        return []
    pattern = _pattern(value)
    if pattern is None or (match := pattern.search(text.text)) is None:
        return []
    numbers = literals(text.text)
    spans = []
    position = 0
    while match is not None:
        if is_whole(text.text, *match.span(), numbers):
            spans.append(match.span())
            position = match.end()
        else:
            position = match.start() + 1
        match = pattern.search(text.text, position)
    return spans


@lru_cache(1024)
def _words(value: str) -> list[str]:
    return [match[0] for match in _TOKEN.finditer(value)]


@lru_cache(1024)
def _pattern(value: str) -> re.Pattern[str] | None:
    """Return a pattern of `value` with optional spaces around punctuation."""
    pattern, end, loose = "", 0, False
    for match in _TOKEN.finditer(value):
        mark = not match[0][-1].isalnum() and match[0] not in _TIGHT
        if pattern and (mark or loose):
            pattern += " ?"
        elif match.start() > end:
            pattern += " "
        pattern += re.escape(match[0])
        end, loose = match.end(), mark
    return re.compile(pattern) if pattern else None


def literals(text: str) -> list[tuple[int, int]]:
    """Return the spans of the numeric literals."""
    return [match.span() for match in NUMBER.finditer(text)]


def is_whole(text: str, start: int, end: int, numbers: list[tuple[int, int]]) -> bool:
    """Return whether no word, and none of the text's `literals` (`numbers`), extends beyond [start, end)."""
    if text[start].isalnum() and start and text[start - 1].isalnum():
        return False
    if text[end - 1].isalnum() and re.match(r"[^\W_]|-[^\W\d_]", text[end : end + 2]):
        return False
    for left, right in numbers[max(0, bisect_left(numbers, (start, 0)) - 1) :]:
        if left >= end:
            break
        if right <= start:
            continue
        unsigned = left + (text[left] == "+" and left < start)
        if unsigned < start or right > end:
            return False
    signed = len(text) > start + 1 and text[start] in "+-" and text[start + 1].isdigit()
    return not signed or any(left == start for left, _ in numbers)


def contains_tokens(value: str, text: str) -> bool:
    """Return whether `text` contains `value` as a whole token or run of tokens."""
    return bool(find(normalize(value).text, normalize(text)))
