"""Perturbed copies of knights-and-knaves puzzles, after Xie et al. (arXiv 2410.23123): the same puzzle in another
wording, or nearly the same wording with another solution.  They distinguish reasoning from memorization.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rl2f_core.environments.knights_knaves import logic as logic
from rl2f_core.environments.knights_knaves import text as puzzle_text

TRIES = 3000
"""Statements that are tried for `changed`."""


def renumbered(statement: logic.Statement, position: Sequence[int]) -> logic.Statement:
    """The statement where person p stands at `place[p]`."""
    if logic.is_leaf(statement):
        return (statement[0], position[statement[1]])
    return (statement[0], *(renumbered(child, position) for child in statement[1:]))


def reordered(puzzle: logic.Puzzle, order: Sequence[int]) -> logic.Puzzle:
    """The puzzle where person `order[k]` speaks k-th."""
    position = [0] * len(order)
    for k, person in enumerate(order):
        position[person] = k
    return tuple(renumbered(puzzle[person], position) for person in order)


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
    tables = [logic.agreement(statement, i, people) for i, statement in enumerate(puzzle)]
    others = []
    for person in range(people):
        rest = full
        for i, agrees in enumerate(tables):
            rest &= agrees if i != person else full
        others.append(rest)
    for _ in range(tries):
        person = rng.randrange(people)
        statement = logic.random_statement(person, people, depth, rng)
        left = others[person] & logic.agreement(statement, person, people)
        if left.bit_count() != 1 or left >> before & 1 or logic.agreement(statement, person, people) == full:
            continue
        candidate = (*puzzle[:person], statement, *puzzle[person + 1 :])
        if fits(candidate):
            return candidate, left.bit_length() - 1
    return None


def says_of(text: str, puzzle: logic.Puzzle, people: Sequence[str], roles: puzzle_text.Roles) -> list[int]:
    """The template of each line of a puzzle's text; the first if it cannot be determined."""
    lines = set(text.splitlines())
    return [
        next((k for k in range(len(puzzle_text.SAYS)) if puzzle_text.render_line(s, i, k, people, roles) in lines), 0)
        for i, s in enumerate(puzzle)
    ]
