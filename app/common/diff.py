"""What changed between two texts, word by word: a pure function, bounded in time."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

Piece = tuple[Literal["=", "-", "+"], str]
MAX_WORDS = 400
"""Differing words on either side beyond which no alignment is sought."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def changes(before: str, after: str) -> list[Piece]:
    """`after` against `before`: kept, removed and added pieces in order, removed before added.

    Equal ends are taken off first; a middle of more than `MAX_WORDS` words is given as removed and added whole.
    """
    if before == after:
        return [("=", after)] if after else []
    old, new = _WORD.findall(before), _WORD.findall(after)
    shared = range(min(len(old), len(new)))
    head = next((i for i in shared if old[i] != new[i]), len(shared))
    rest = range(min(len(old), len(new)) - head)
    tail = next((i for i in rest if old[-1 - i] != new[-1 - i]), len(rest))
    pieces: list[Piece] = [("=", "".join(new[:head]))]
    pieces += _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    pieces.append(("=", "".join(new[len(new) - tail :])))
    return [piece for piece in pieces if piece[1]]


def _middle(old: list[str], new: list[str]) -> list[Piece]:
    if len(old) > MAX_WORDS or len(new) > MAX_WORDS:
        return [("-", "".join(old)), ("+", "".join(new))]
    pieces: list[Piece] = []
    for what, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            pieces.append(("=", "".join(new[k:m])))
        else:
            pieces += [("-", "".join(old[i:j])), ("+", "".join(new[k:m]))]
    return pieces
