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
_MAX_CACHED_CHARS = 2_000
"""Longer texts are not cached."""
P = ParamSpec("P")
R = TypeVar("R")


class _Cache(dict[str, R]):
    """Results of a function by text; a hit needs no Python call."""

    def __init__(self, size: int, function: Callable[[str], R]) -> None:
        super().__init__()
        self.size, self.function = size, function

    def __missing__(self, text: str) -> R:
        result = self.function(text)
        if len(text) <= _MAX_CACHED_CHARS:
            if len(self) >= self.size:
                self.clear()
            self[text] = result
        return result


def cached(size: int) -> Callable[[Callable[[str], R]], Callable[[str], R]]:
    """Cache a pure function of one text for `size` texts; callers must not modify the result."""
    return lambda function: _Cache(size, function).__getitem__


def cached_with_args(size: int) -> Callable[[Callable[Concatenate[str, P], R]], Callable[Concatenate[str, P], R]]:
    """Cache a pure function of a text and other arguments for the last `size` calls."""

    def decorate(function: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
        remembered: Any = lru_cache(size)(function)

        @wraps(function)
        def wrapper(text: str, *args: P.args, **kwargs: P.kwargs) -> R:
            return (function if len(text) > _MAX_CACHED_CHARS else remembered)(text, *args, **kwargs)

        return wrapper

    return decorate


@cached(1024)
def split_words(text: str) -> frozenset[str]:
    """Return the runs of letters in lower case."""
    return frozenset(text.translate(_LETTERS).split() if text.isascii() else _WORD.findall(text.lower()))


@cached(1024)
def split_tokens(text: str) -> list[str]:
    """Return the runs of letters and digits of an ASCII text in lower case, in order."""
    return text.translate(_ALNUM).split()


@cached(1024)
def digit_runs(text: str) -> list[tuple[int, int]]:
    """Return the spans of the longest runs of digits, in order."""
    return [match.span() for match in _RUN.finditer(text)]


def signed_starts(text: str, runs: Iterable[tuple[int, int]], signs: str = "+-") -> list[int]:
    """Return where a number may begin: at each digit run, and at the sign before it."""
    starts: list[int] = []
    for start, _ in runs:
        if start and text[start - 1] in signs:
            starts.append(start - 1)
        starts.append(start)
    return starts


def lone_letters(text: str) -> list[int]:
    """Return the positions of ASCII letters without an adjacent letter or digit."""
    return [match.start() for match in _LONE.finditer(text)]


def find_index(pattern: re.Pattern[str], text: str, starts: Iterable[int]) -> Iterator[re.Match[str]]:
    """Yield `pattern.finditer(text)` for a pattern that can only begin at `starts` (in order), many times faster.

    The engine tries a pattern that begins with a look-around at every character.
    """
    position = 0
    for start in starts:
        if start >= position and (match := pattern.match(text, start)):
            yield match
            position = match.end()


def by_word(groups: str, start: int = 1) -> dict[str, int]:
    """Return the number of each word: `;` separates the numbers from `start` on, `|` separates words of one number."""
    return {word: number for number, group in enumerate(groups.split(";"), start) for word in group.split("|")}
