"""What a hint in scripted wording states about the roles, for the information in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl2f_core.environments.candidates import Region, one_of
from rl2f_core.environments.puzzles.knights_knaves import logic

ROLES = "roles"
"""The only part of an answer in `AnswerSpace`: the assignment as n bits."""
_HINT = re.compile(
    r"(?:Your answer does not fit what (?P<name>.+?) says\.)? ?"
    r"(?:(?P<low>\d+)(?: to (?P<high>\d+))? of (?P<n>\d+) people (?:is|are) wrong\.)?"
)
"""A hint, true or misleading."""


def hint_statements(
    hint: str, people: Sequence[str], puzzle: logic.Puzzle, tried: Sequence[int]
) -> tuple[Region, ...] | None:
    """Return the statements of a hint: the named person's claim holds; so many roles differ from the attempt.

    Args:
        hint: The text.
        people: Names in the order of `puzzle`.
        puzzle: The statements; empty if they could not be parsed.
        tried: The last attempt as n bits; empty if it could not be parsed.

    Returns:
        Assignments that agree with each statement; None if the text has another wording or is about other people.
    """
    match, n = _HINT.fullmatch(hint), len(people)
    if not hint or match is None or match["name"] not in (None, *people) or match["n"] not in (None, str(n)):
        return None
    statements, assignments = [], range(2**n)
    if match["name"] and puzzle:
        named = people.index(match["name"])
        statements.append(one_of(ROLES, (a for a in assignments if logic.fits(puzzle, named, a))))
    if match["low"] and tried:
        low, high = int(match["low"]), int(match["high"] or match["low"])
        statements.append(one_of(ROLES, (a for a in assignments if low <= (a ^ tried[-1]).bit_count() <= high)))
    return tuple(statements)
