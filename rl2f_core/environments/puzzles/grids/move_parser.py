"""Strict parser of directions in a student's answer."""

from __future__ import annotations

import re

INFEASIBLE = "infeasible"
"""The answer if no path leads to the goal."""
MAX_STEPS = 400
"""Longer walks are unparsable."""
_NO_WAY = (INFEASIBLE, "no path")
_LETTER = dict(zip("u d l r up down left right ↑ ↓ ← →".split(), "UDLR" * 3, strict=True))
_DIRECTION = re.compile("|".join(sorted(_LETTER, key=len, reverse=True)), re.IGNORECASE | re.ASCII)
_SEPARATORS = ("", " +", ", ?", "-")
"""Between directions, the same throughout."""
_WALKS = [
    re.compile(f"{direction}(?:{separator}{direction})*", re.ASCII)
    for direction, separators in {
        "[UDLR]": _SEPARATORS,
        "[udlr]": _SEPARATORS,
        "(?i:up|down|left|right)": _SEPARATORS[1:],
        "[↑↓←→]": _SEPARATORS[:3],
    }.items()
    for separator in separators
]


def read_moves(text: str) -> str | None:
    """Return the letters of a walk, `RRD`, or None.

    Accepted are letters, words and arrows with one kind of separator throughout: none (except between words), spaces,
    commas or dashes (except between arrows). Nothing else may be in the text, and an empty text is not a walk.
    """
    text = text.strip(" \t\r\n")
    if len(text) > 8 * MAX_STEPS or not any(walk.fullmatch(text) for walk in _WALKS):
        return None
    letters = [_LETTER[direction.lower()] for direction in _DIRECTION.findall(text)]
    return "".join(letters) if len(letters) <= MAX_STEPS else None


def read_answer(text: str, infeasible: bool) -> str | None:
    """Return the normal form of an answer, `R R D` or `infeasible`, or None; unparsable text is never infeasible.

    Args:
        text: The text inside the answer tags.
        infeasible: Whether `infeasible` is an answer in this environment.
    """
    if text.strip(" \t\r\n").lower() in _NO_WAY:
        return INFEASIBLE if infeasible else None
    moves = read_moves(text)
    return None if moves is None else " ".join(moves)
