"""Cached tokenization shared by text scanners: words, tokens and digit runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

_WORD = re.compile(r"[^\W\d_]+")
_RUN = re.compile(r"\d+")
_LONE = re.compile(r"[A-Za-z](?<![^\W_].)(?![^\W_])")
_LETTERS = str.maketrans({chr(i): chr(i).lower() if chr(i).isalpha() else " " for i in range(128)})
_ALNUM = str.maketrans({chr(i): chr(i).lower() if chr(i).isalnum() else " " for i in range(128)})
_KEPT = 2_000
"""Longer texts are not cached."""
P = ParamSpec("P")
R = TypeVar("R")


class _Kept(dict[str, R]):
    """What a function read in some texts; found there in one look-up, without a call in Python."""

    def __init__(self, size: int, read: Callable[[str], R]) -> None:
        super().__init__()
        self.size, self.read = size, read

    def __missing__(self, text: str) -> R:
        result = self.read(text)
        if len(text) <= _KEPT:
            if len(self) >= self.size:
                self.clear()
            self[text] = result
        return result


def cached(size: int) -> Callable[[Callable[[str], R]], Callable[[str], R]]:
    """Cache a pure function of one text for `size` texts; callers must not modify the result."""
    return lambda read: _Kept(size, read).__getitem__


def cached_with_args(size: int) -> Callable[[Callable[Concatenate[str, P], R]], Callable[Concatenate[str, P], R]]:
    """Cache a pure function of a text and other arguments for the last `size` calls."""

    def keep(read: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
        before: Any = lru_cache(size)(read)

        @wraps(read)
        def reader(text: str, *args: P.args, **kwargs: P.kwargs) -> R:
            return (read if len(text) > _KEPT else before)(text, *args, **kwargs)

        return reader

    return keep


@cached(1024)
def split_words(text: str) -> frozenset[str]:
    """The runs of letters in small letters."""
    return frozenset(text.translate(_LETTERS).split() if text.isascii() else _WORD.findall(text.lower()))


@cached(1024)
def split_tokens(text: str) -> list[str]:
    """The runs of letters and digits of an ASCII text in small letters, in order."""
    return text.translate(_ALNUM).split()


@cached(1024)
def digit_runs(text: str) -> list[tuple[int, int]]:
    """The spans of the longest runs of digits, in order."""
    return [match.span() for match in _RUN.finditer(text)]


def signed_starts(text: str, runs: Iterable[tuple[int, int]], signs: str = "+-") -> list[int]:
    """Where a number may begin: before the sign of each of the text's digit runs, and at the run."""
    starts: list[int] = []
    for start, _ in runs:
        if start and text[start - 1] in signs:
            starts.append(start - 1)
        starts.append(start)
    return starts


def lone_letters(text: str) -> list[int]:
    """Positions of ASCII letters without an adjacent letter or digit."""
    return [match.start() for match in _LONE.finditer(text)]


def find_index(pattern: re.Pattern[str], text: str, starts: Iterable[int]) -> Iterator[re.Match[str]]:
    """`pattern.finditer(text)` for a pattern that can begin at `starts` alone (in order), many times faster.

    The engine tries a pattern that begins with a look-around at every character.
    """
    position = 0
    for start in starts:
        if start >= position and (match := pattern.match(text, start)):
            yield match
            position = match.end()


def by_word(groups: str, start: int = 1) -> dict[str, int]:
    """The number of each word: `;` separates the numbers from `start` on, `|` separates words of one number."""
    return {word: number for number, group in enumerate(groups.split(";"), start) for word in group.split("|")}
