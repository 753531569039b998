"""Runs of directions in free text, in any form: `R R D`, `twice right, then down`, `→→↓`, `(1,1), (1,2)`."""

# ruff: noqa: E501 (long patterns stay on one line)
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rl2f_core.common.text.tokens import by_word, cached, split_words

_ARROWS = {
    arrow: letter
    for letter, arrows in {"U": "↑⬆⇧⇑▲👆", "D": "↓⬇⇩⇓▼👇", "L": "←⬅⇦⇐◀👈", "R": "→➡⇨⇒▶👉"}.items()
    for arrow in arrows
}
_WORDS = {
    word + ending: letter
    for word, letter in zip("up down left right north south west east".split(), "UDLRUDLR", strict=True)
    for ending in ("", "ward", "wards")
}
DIRECTIONS = frozenset(_WORDS)
_POINTS = frozenset(word for word in _WORDS if word[0] in "nsew")
_COMPASS = str.maketrans("NSWE", "UDLR")
_COUNTS = by_word("one|once|another;two|twice|double;three|thrice|triple;four;five;six;seven;eight;nine")
_FILL = frozenset(
    "then and go goes going move moves moving step steps stepping to the a an next after that finally lastly first followed by cell cells "
    "square squares time times once more you walk walking turn turning head heading take x for in further straight keep now afterwards again "
    "field fields tile tiles block blocks it it's but second third fourth last i we let's please just simply".split()
)
_MARKS = frozenset(",;:-–—>()[]{}'\"`./|~*&+×·=!\\$“”‘’")
_TOKEN = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|\d+|\.\.\.+|…|[^\sA-Za-z\d]")
_SPELLED = re.compile(r"(?:[UDLR]+|[NESW]+|[udlr]{3,}|[nesw]{4,})")
_NOT_WORDS = frozenset("dull lull sewn seen senses sews wees ewes news were".split())
_ADJECTIVE_AFTER = frozenset(
    "is are was were been not all quite seems seem looks look so half almost got get partly mostly still absolutely you're that's it's yes "
    "exactly they're isn't aren't wasn't stay these your".split()
)
_NOUN_AFTER = frozenset(
    "answer way path track direction directions order idea one now away here there so before after thing number length place edge side column "
    "half hand neighbour neighbor of lines approach place spirit moves steps until though but except up".split()
)
_LEFT_AFTER = frozenset(
    "is are was have has had nothing you we walk moves steps what's much be it path cells way he she they attempt".split()
)
_LEFT_BEFORE = frozenset("edge side column half hand over out of to behind the it undone open a when".split())
_UP_AFTER = frozenset(
    "end ends ended ending look looks give gave giving set mix mixed come came pick make makes add adds adding open opens catch mess sum wind winds speed held keep".split()
)
_DOWN_AFTER = frozenset(
    "write wrote written writing slow slowing break breaking note narrow cut put calm count jot let scale upside".split()
)
_ASKED = re.compile(r"\bhow (?:many|far)\b[^.,;:!?]{0,60}$", re.IGNORECASE)
"""Words before directions whose number of steps the student is asked for."""
_MODAL = re.compile(r"\b(?:should|must|has to|needs to|ought to|have to)$")
_STEP = re.compile(r"\b(?:step|move|first|second|third|fourth|fifth|sixth|last|next|one|it|\d)\b")
_CELL = re.compile(
    r"[(\[]\s?(\d{1,2})\s?[,;]\s?(\d{1,2})\s?[)\]]|\brow\s(\d{1,2}),?\s(?:and\s)?col(?:umn)?\s(\d{1,2})\b|\br(\d{1,2})c(\d{1,2})\b",
    re.IGNORECASE,
)
_BETWEEN_CELLS = re.compile(
    r"(?:[\s,;:.>→\-–=]|\b(?:then|to|and|next|finally|the|cell|on|from|via|through|over|in)\b){0,12}", re.IGNORECASE
)
_CAPITALS = re.compile(r"\b(?:[UDLR]{1,60}|[NESW]{2,60}|[NEW]|[udlr]{3,60}|[nesw]{4,60}|\d?[UDLR](?:\d[UDLR])*\d?)\b")


_LIST_MARKS = (".", ")", ":")
_HIT = re.compile(
    r"\b(?i:up|down|left|right|north|south|east|west)(?:wards?)?\b|[^\x00-\xff]|(?<![A-Za-z])(?:[UDLR]+|[NESW]+|[udlr]{3,}|[nesw]{4,})(?![A-Za-z])"
)
"""Positions where a direction may occur."""
_GAP = 40
"""Maximum number of characters between directions of one run."""
_MAX_RUN = 400


class Run(NamedTuple):
    """Consecutive directions."""

    start: int
    end: int
    letters: str
    """In U, D, L and R."""
    worded: bool
    """The first direction is a word such as `right`, which is ambiguous."""


def may_hold_moves(text: str) -> bool:
    """Return False if the text certainly has no run; a cheap test."""
    return not text.isascii() or not DIRECTIONS.isdisjoint(split_words(text)) or _CAPITALS.search(text) is not None


@cached(1024)
def runs_of(text: str) -> list[Run]:
    """Return all runs in a text, in order, without overlaps."""
    if not may_hold_moves(text):
        return []
    runs = [run for start, end in _stretches(text) for run in _runs_in(text, start, end)]
    return [Run(run.start, run.end, run.letters, run.style == "word") for run in runs if len(run.letters) <= _MAX_RUN]


@dataclass(slots=True)
class _OpenRun:
    """A run while it is scanned."""

    style: str
    start: int
    end: int
    letters: str
    counts_first: bool
    """Counts precede their directions, as in `two right`."""
    counted: bool = False
    """The last direction has its count."""


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans around directions that may belong to their runs; the rest of the text is irrelevant."""
    start = end = -1
    for match in _HIT.finditer(text):
        if start >= 0 and match.start() - end > _GAP:
            yield start, _edge(text, end + _GAP)
            start = -1
        if start < 0:
            start = max(0, text.rfind(" ", 0, max(0, match.start() - _GAP)) + 1)
        end = match.end()
    if start >= 0:
        yield start, _edge(text, end + _GAP)


def _edge(text: str, at: int) -> int:
    index = text.find(" ", at)
    return len(text) if index < 0 else index


def _runs_in(text: str, start: int, end: int) -> list[_OpenRun]:
    tokens = list(_TOKEN.finditer(text, start, end))
    runs: list[_OpenRun] = []
    run: _OpenRun | None = None
    listed = False  # the run is a list with numbers
    pending: tuple[int, int] | None = None  # a count that may belong to the next direction, and its start
    for i, match in enumerate(tokens):
        symbol = match[0]
        low = symbol.lower()
        style, letters = _direction(text, tokens, i, low, run)
        if letters:
            count, first = pending or (1, match.start())
            if run is not None and run.style == style:
                run.letters += letters * count
                run.end, run.counted = match.end(), False
            else:
                listed = i > 1 and tokens[i - 1][0] in _LIST_MARKS and tokens[i - 2][0].isdigit()
                run = _OpenRun(style, first, match.end(), letters * count, pending is not None)
                runs.append(run)
            pending = None
            continue
        count = _count(text, tokens, i, low, run is None or listed)
        if count > 0 and run is not None and not run.counts_first and not run.counted:
            run.letters += run.letters[-1] * (count - 1)
            run.end, run.counted = match.end(), True
        elif count > 0:
            pending = (count, match.start())
        elif count < 0 or low in _FILL or symbol in _MARKS or symbol in "→⇒➡":
            if low == "again" and run is not None and not _is_direction_before(tokens, i):
                run.letters += run.letters[-1]
                run.end, run.counted = match.end(), False
        else:
            run = pending = None
    return runs


def _direction(text: str, tokens: list[re.Match[str]], i: int, low: str, run: _OpenRun | None) -> tuple[str, str]:
    """Return the style and the letters of a token, or two empty texts."""
    symbol = tokens[i][0]
    if symbol in _ARROWS:
        # between letters or words, an arrow is punctuation
        follows = tokens[i + 1][0] if i + 1 < len(tokens) else ""
        if (run is not None and run.style != "arrow") or (symbol in "→⇒" and follows[:1].isalnum() and run is None):
            return "", ""
        return "arrow", _ARROWS[symbol]
    if low in _WORDS:
        if not _is_meant(text, tokens, i, low, run):
            return "", ""
        return "point" if low in _POINTS else "word", _WORDS[low]
    if symbol == "S" and (run is None or run.style != "compass"):
        return "", ""
    return _spelled(symbol)


@lru_cache(4096)
def _spelled(symbol: str) -> tuple[str, str]:
    """Return the style and the letters of a word of direction letters, `R` or `RRD`, or two empty texts."""
    if not _SPELLED.fullmatch(symbol) or symbol.lower() in _NOT_WORDS:
        return "", ""
    letters = symbol.upper()
    return ("letter", letters) if set(letters) <= set("UDLR") else ("compass", letters.translate(_COMPASS))


def _is_meant(text: str, tokens: list[re.Match[str]], i: int, low: str, run: _OpenRun | None) -> bool:
    """Return whether a word is a direction here, unlike `that is right`, `two steps left` or `write down`."""
    before = tokens[i - 1][0].lower() if i else ""
    after = tokens[i + 1][0].lower() if i + 1 < len(tokens) else ""
    if _ASKED.search(text, max(0, tokens[i].start() - 70), tokens[i].start()):
        return False
    if run is not None and run.style == "word" and (before in _MARKS or before in _WORDS):
        return True
    nearby = [token[0].lower() for token in tokens[i + 1 : i + 4]]
    if after in (",", "-", "→") and any(word in _WORDS for word in nearby) and "to" not in nearby:
        return True
    if before == "be" and low in ("left", "right"):
        start = tokens[i - 1].start()
        symbol = text[max(0, start - 60) : start].rstrip().lower()
        return _MODAL.search(symbol) is not None and _STEP.search(symbol) is not None
    if low == "right":
        return (
            before not in _ADJECTIVE_AFTER
            and after not in _NOUN_AFTER
            and not (before == "the" and after.isalpha() and after not in _FILL)
        )
    if low == "left":
        return before not in _LEFT_AFTER and after not in _LEFT_BEFORE
    if low == "up":
        return before not in _UP_AFTER and after not in ("to", "with")
    return low != "down" or (
        before not in _DOWN_AFTER and not (before in ("it", "that", "them", "this") and after in (".", ""))
    )


def _is_direction_before(tokens: list[re.Match[str]], i: int) -> bool:
    before = tokens[i - 1][0] if i else ""
    return before.lower() in _WORDS or before in _ARROWS or before in tuple("UDLR")


def _count(text: str, tokens: list[re.Match[str]], i: int, low: str, listed: bool) -> int:
    """Return the repeat count of a token; −1 for a step number or list number, 0 otherwise."""
    count = _COUNTS.get(low, 0) or (int(low) if low.isascii() and low.isdigit() and len(low) < 3 else 0)
    if not count:
        return 0
    before = tokens[i - 1][0].lower() if i else ""
    after = tokens[i + 1] if i + 1 < len(tokens) else None
    if before in ("step", "move"):
        return -1
    if before in ("row", "column", "steps", "number", "no"):
        return 0
    follows = text[after.start() + 1 : after.start() + 2] if after else ""
    if (
        listed
        and low.isdigit()
        and after is not None
        and after[0] in _LIST_MARKS
        and (not follows or follows.isspace())
        and before not in ("(", "x", "×")
    ):
        return -1
    return count if count < 10 else 0


# -- cells -----------------------------------------------------------------------------------------------------------
def cell_rows(text: str) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield sequences of at least two cells such as `(1,1), (1,2)` or `row 1, column 1, then row 1, column 2`."""
    row: list[tuple[int, int]] = []
    start = end = 0
    for match in _CELL.finditer(text):
        first, second = (int(group) for group in match.groups() if group is not None)
        if row and _BETWEEN_CELLS.fullmatch(text, end, match.start()):
            row.append((first, second))
        else:
            if len(row) > 1:
                yield start, end, row
            row, start = [(first, second)], match.start()
        end = match.end()
    if len(row) > 1:
        yield start, end, row
