"""Strict parser of directions in a student's answer."""

from __future__ import annotations

import re

ARROWS = {"↑": "U", "↓": "D", "←": "L", "→": "R"}
WORDS = {"up": "U", "down": "D", "left": "L", "right": "R"}
INFEASIBLE = "infeasible"
"""The answer if no path leads to the goal."""
_NO_WAY = (INFEASIBLE, "no path")
_SEPARATORS = ("", " +", ", ?", "-")
"""Between the letters of an answer, the same throughout."""
_LETTERS = [re.compile(f"[UDLR](?:{s}[UDLR])*|[udlr](?:{s}[udlr])*") for s in _SEPARATORS]
_SAID = [
    re.compile(f"{names}(?:{s}{names})*", re.IGNORECASE | re.ASCII)
    for names in ("(?:up|down|left|right)",)
    for s in _SEPARATORS[1:]
]
_ARROWS = [re.compile(f"[↑↓←→](?:{s}[↑↓←→])*") for s in _SEPARATORS[:3]]
MAX_STEPS = 400
"""Longer walks are unparsable."""


def read_moves(text: str) -> str | None:
    """The letters of a walk, `RRD`, or None.

    Read are letters, words and arrows with one kind of separator throughout: none (not between words), spaces, commas
    or dashes. Nothing else may stand there, and an empty text is no walk.
    """
    text = text.strip(" \t\r\n")
    if not text or len(text) > 8 * MAX_STEPS:
        return None
    for patterns in (_LETTERS, _SAID, _ARROWS):
        if any(pattern.fullmatch(text) for pattern in patterns):
            if patterns is _LETTERS:
                letters = [x for x in text.upper() if x in "UDLR"]
            elif patterns is _SAID:
                letters = [WORDS[word] for word in re.findall("[a-z]+", text.lower())]
            else:
                letters = [ARROWS[x] for x in text if x in ARROWS]
            return "".join(letters) if len(letters) <= MAX_STEPS else None
    return None


def read_answer(text: str, infeasible: bool) -> str | None:
    """The normal form of an answer, `R R D` or `infeasible`, or None; what cannot be read is never infeasible.

    Args:
        text: What stands between the answer tags.
        infeasible: Whether "there is no way" is an answer here.
    """
    if text.strip(" \t\r\n").lower() in _NO_WAY:
        return INFEASIBLE if infeasible else None
    moves = read_moves(text)
    return None if moves is None else " ".join(moves)
