"""Word diff of two texts, bounded in time."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

Segment = tuple[Literal["=", "-", "+"], str]
MAX_WORDS = 400
"""Maximum number of differing words per side that are aligned."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def changes(before: str, after: str) -> list[Segment]:
    """Return kept, removed and added pieces in order, removed before added.

    The common prefix and suffix are not compared; a middle of more than `MAX_WORDS` words is one removed and one added
    piece.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    shared = range(min(len(old), len(new)))
    head = next((i for i in shared if old[i] != new[i]), len(shared))
    rest = range(len(shared) - head)
    tail = next((i for i in rest if old[-1 - i] != new[-1 - i]), len(rest))
    pieces: list[Segment] = [("=", "".join(new[:head]))]
    pieces += _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    pieces.append(("=", "".join(new[len(new) - tail :])))
    return [piece for piece in pieces if piece[1]]


def _middle(old: list[str], new: list[str]) -> list[Segment]:
    if len(old) > MAX_WORDS or len(new) > MAX_WORDS:
        return [("-", "".join(old)), ("+", "".join(new))]
    pieces: list[Segment] = []
    for operation, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if operation == "equal":
            pieces.append(("=", "".join(new[k:m])))
        else:
            pieces += [("-", "".join(old[i:j])), ("+", "".join(new[k:m]))]
    return pieces
