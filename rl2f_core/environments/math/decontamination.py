"""Training problems that are too close to a test problem: the same text but for case and space, or a run of words.

The n-gram rule is that of GPT-3's appendix C (arXiv 2005.14165), which took n = 13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rl2f_core.environments.math.answer_text import canonical, folded


class Contamination(NamedTuple):
    """Positions of contaminated training problems."""

    same: frozenset[int]
    """Problems equal to a test problem, up to case and white space."""
    overlapping: frozenset[int]
    """Other problems that share a run of n words with a test problem."""


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """Return the runs of n words of a problem's normalized text."""
    tokens = canonical(text).split()
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def contaminated(train: Sequence[str], test: Iterable[str], n: int = 13) -> Contamination:
    """Find contaminated training problems.

    Args:
        train: Training problems.
        test: Test problems.
        n: Words in a run; 0 compares only whole texts.
    """
    test = list(test)
    whole = {_unspaced(text) for text in test}
    runs = set().union(*(ngrams(text, n) for text in test)) if n else set()
    same = {i for i, text in enumerate(train) if _unspaced(text) in whole}
    near = {i for i, text in enumerate(train) if i not in same and runs and not runs.isdisjoint(ngrams(text, n))}
    return Contamination(frozenset(same), frozenset(near))


def _unspaced(text: str) -> str:
    return folded(text).replace(" ", "")


def distinct(problems: Sequence[str]) -> list[int]:
    """Return the position of the first occurrence of each problem, in ascending order."""
    first: dict[str, int] = {}
    for i, text in enumerate(problems):
        first.setdefault(folded(text), i)
    return list(first.values())
