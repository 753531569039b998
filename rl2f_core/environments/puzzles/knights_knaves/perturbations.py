"""Perturbed copies of knights-and-knaves puzzles, after Xie et al. (arXiv 2410.23123): the same puzzle in another
wording, or nearly the same wording with another solution.  They distinguish reasoning from memorization.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.environments.puzzles.knights_knaves import text as puzzle_text

MAX_DRAWS = 3000
"""Statements drawn by `changed`."""


def reordered(puzzle: logic.Puzzle, order: Sequence[int]) -> logic.Puzzle:
    """Return the puzzle in which person `order[k]` speaks k-th."""
    position = {person: k for k, person in enumerate(order)}

    def renumbered(statement: logic.Statement) -> logic.Statement:
        if logic.is_leaf(statement):
            return (statement[0], position[statement[1]])
        return (statement[0], *map(renumbered, statement[1:]))

    return tuple(renumbered(puzzle[person]) for person in order)


def changed(
    puzzle: logic.Puzzle,
    depth: int,
    rng: random.Random,
    fits: Callable[[logic.Puzzle], bool],
    width: int = 2,
) -> tuple[logic.Puzzle, int] | None:
    """Replace one person's statement so that there is exactly one solution, which differs from the original one.

    Args:
        puzzle: Puzzle with exactly one solution.
        depth: Maximum number of levels of the new statement.
        rng: The only source of randomness.
        fits: Whether a changed puzzle may be used, e.g. belongs to the right split.
        width: Maximum number of parts of an `and` or `or` of the new statement.

    Returns the changed puzzle and its solution, or None if none was drawn.
    """
    people = len(puzzle)
    full = (1 << 2**people) - 1
    (original,) = logic.solutions(puzzle)
    tables = [logic.agreement(statement, i, people) for i, statement in enumerate(puzzle)]
    others = [reduce(and_, tables[:i] + tables[i + 1 :], full) for i in range(people)]
    for _ in range(MAX_DRAWS):
        person = rng.randrange(people)
        statement = logic.random_statement(person, people, depth, rng, width)
        agrees = logic.agreement(statement, person, people)
        solved = others[person] & agrees
        if solved.bit_count() != 1 or solved >> original & 1 or agrees == full:
            continue
        candidate = (*puzzle[:person], statement, *puzzle[person + 1 :])
        if fits(candidate):
            return candidate, solved.bit_length() - 1
    return None


def says_of(text: str, puzzle: logic.Puzzle, people: Sequence[str], roles: puzzle_text.Roles) -> list[int]:
    """Return the template of each line of a puzzle's text; the first if it cannot be determined."""
    lines = set(text.splitlines())
    return [
        next((k for k in range(len(puzzle_text.SAYS)) if puzzle_text.render_line(s, i, k, people, roles) in lines), 0)
        for i, s in enumerate(puzzle)
    ]
