"""Perturbed copies of knights-and-knaves puzzles, after Xie et al. (arXiv 2410.23123): the same puzzle in other words,
or nearly the same words with another solution.  A solver who reasons does as well on them; one who remembers does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rl2f_core.environments import _kk_logic as logic
from rl2f_core.environments import _kk_text as words

TRIES = 3000
"""Statements that are tried for `changed`."""


def renumbered(statement: logic.Statement, place: Sequence[int]) -> logic.Statement:
    """The statement where person p stands at `place[p]`."""
    if logic.is_leaf(statement):
        return (statement[0], place[statement[1]])
    return (statement[0], *(renumbered(child, place) for child in statement[1:]))


def reordered(puzzle: logic.Puzzle, order: Sequence[int]) -> logic.Puzzle:
    """The puzzle where person `order[k]` speaks k-th."""
    place = [0] * len(order)
    for k, person in enumerate(order):
        place[person] = k
    return tuple(renumbered(puzzle[person], place) for person in order)


def changed(
    puzzle: logic.Puzzle, depth: int, rng: random.Random, fits: Callable[[logic.Puzzle], bool], tries: int = TRIES
) -> tuple[logic.Puzzle, int] | None:
    """One person's statement replaced so that there is one solution, proven, and it is another than before.

    Args:
        puzzle: With exactly one solution.
        depth: Most levels of the new statement.
        rng: The only source of chance.
        fits: Whether a changed puzzle may be used, e.g. belongs to the right split.
        tries: Statements to try.

    Returns the changed puzzle and its solution; None where none was found.
    """
    people = len(puzzle)
    full = (1 << 2**people) - 1
    (before,) = logic.solutions(puzzle)
    held = [logic.agreement(statement, i, people) for i, statement in enumerate(puzzle)]
    others = []
    for person in range(people):
        rest = full
        for i, agrees in enumerate(held):
            rest &= agrees if i != person else full
        others.append(rest)
    for _ in range(tries):
        person = rng.randrange(people)
        statement = logic.random_statement(person, people, depth, rng)
        left = others[person] & logic.agreement(statement, person, people)
        if left.bit_count() != 1 or left >> before & 1 or logic.agreement(statement, person, people) == full:
            continue
        made = (*puzzle[:person], statement, *puzzle[person + 1 :])
        if fits(made):
            return made, left.bit_length() - 1
    return None


def says_of(text: str, puzzle: logic.Puzzle, people: Sequence[str], roles: words.Roles) -> list[int]:
    """Which template each line of a puzzle's text was written with; the first where that cannot be told."""
    lines = set(text.splitlines())
    return [
        next((k for k in range(len(words.SAYS)) if words.render_line(s, i, k, people, roles) in lines), 0)
        for i, s in enumerate(puzzle)
    ]
