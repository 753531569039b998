"""What a hint in scripted wording states about the roles, for the information in it and for its false claims."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl2f_core.environments.candidates import Region, one_of
from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.types import Verdict

ROLES = "roles"
"""The only part of an answer in `AnswerSpace`: the assignment as n bits."""
_COUNT = re.compile(r"(?P<low>\d+)(?: to (?P<high>\d+))? of (?P<n>\d+) people (?:is|are) wrong\.")
_HINT = re.compile(rf"(?:Your answer does not fit what (?P<name>.+?) says\.)? ?(?:{_COUNT.pattern})?")
"""A hint, true or misleading."""


def hint_statements(
    hint: str, people: Sequence[str], puzzle: logic.Puzzle, tried: Sequence[int]
) -> tuple[Region, ...] | None:
    """Return the statements of a hint: the named person's claim fits or not, unlike the attempt; so many roles differ.

    A true hint names a claim that the attempt contradicts, so the claim holds. A misleading one names a claim that the
    attempt fits, so who believes it looks for an assignment that contradicts the claim.

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
    if match["name"] and puzzle and tried:
        named = people.index(match["name"])
        was = logic.fits(puzzle, named, tried[-1])
        statements.append(one_of(ROLES, (a for a in assignments if logic.fits(puzzle, named, a) != was)))
    if match["low"] and tried:
        low, high = int(match["low"]), int(match["high"] or match["low"])
        statements.append(one_of(ROLES, (a for a in assignments if low <= (a ^ tried[-1]).bit_count() <= high)))
    return tuple(statements)


def blame(name: str) -> str:
    """Return the sentence of a hint that names a person."""
    return f"Your answer does not fit what {name} says."


def claim_agreement(
    people: Sequence[str], puzzle: logic.Puzzle, before: Verdict, hint: str, attempt: Verdict
) -> float | None:
    """Return the fraction of a hint's false claims that an attempt satisfies; None without such claims.

    False claims: the blamed statement, if all roles in it are right, and a wrong number of wrong people. An attempt
    satisfies the first if it changes the role of the blamed person or of one whom the statement mentions, and the
    second if it changes as many roles as claimed.
    """
    changed = {n for n, role in before.parts.items() if attempt.parsed is not None and attempt.parts[n] != role}
    satisfied = []
    named = next((i for i, name in enumerate(people) if hint.startswith(blame(name))), None)
    if named is not None and puzzle:
        involved = {people[i] for i in logic.mentions(puzzle[named]) | {named}}
        if involved <= set(before.correct_parts):
            satisfied.append(bool(involved & changed))
    count = _COUNT.search(hint)
    if count is not None and before.parts:
        low, high = int(count["low"]), int(count["high"] or count["low"])
        if not low <= len(before.parts) - len(before.correct_parts) <= high:
            satisfied.append(low <= len(changed) <= high)
    return sum(satisfied) / len(satisfied) if satisfied else None
