"""Worked solutions of knights and knaves: try one assignment after the other until all claims fit.

A sentence assumes roles and evaluates each claim.  A claim fits if a knight's is true or a knave's is false.  The first
claim that does not fit ends the sentence with `no`; the sentence of the unique solution ends with `yes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.environments.puzzles.knights_knaves.text import Roles


def worked_solution(puzzle: logic.Puzzle, people: Sequence[str], roles: Roles) -> str:
    """Write the search for the unique solution, one sentence per try, e.g. `If Ada knight, Ben knave: Ada false, no.`

    Roles are tried in the same order everywhere: the first person truthful before lying, then the second …
    """
    lines = []
    for assumed, claims in tries(puzzle):
        roles_text = ", ".join(
            f"{people[i]} {roles[0] if truthful else roles[1]}" for i, truthful in enumerate(assumed)
        )
        verdicts = [f"{people[i]} {'true' if truth else 'false'}" for i, truth in claims]
        fits = all(assumed[i] == truth for i, truth in claims)
        lines.append(f"If {roles_text}: {', '.join([*verdicts, 'yes' if fits else 'no'])}.")
    return " ".join(lines)


def tries(puzzle: logic.Puzzle) -> Iterator[tuple[tuple[bool, ...], list[tuple[int, bool]]]]:
    """Generate the tries: the assumed roles of the first people (True for a knight) and the truth of their claims.

    A try ends with the first claim that does not fit; all claims of the last try fit.
    """
    people = len(puzzle)
    tables = [logic.truth_table(statement, people) for statement in puzzle]
    stack: list[tuple[bool, ...]] = [(False,), (True,)]
    while stack:
        assumed = stack.pop()
        claims = []
        for person, truthful in enumerate(assumed):
            truth = _truth(tables[person], assumed, people)
            if truth is not None:
                claims.append((person, truth))
                if truth != truthful:
                    yield assumed, claims
                    break
        else:
            if len(assumed) == people:
                yield assumed, claims
                return
            stack += [(*assumed, False), (*assumed, True)]


def _truth(table: int, assumed: Sequence[bool], people: int) -> bool | None:
    """Return the truth of a claim if the first people's roles determine it, otherwise None."""
    bits = sum(1 << i for i, truthful in enumerate(assumed) if truthful)
    values = {table >> (bits | rest << len(assumed)) & 1 for rest in range(2 ** (people - len(assumed)))}
    return bool(values.pop()) if len(values) == 1 else None
