"""Worked solutions of knights and knaves: try one assignment after the other until all claims fit.

A sentence assumes roles and evaluates each claim.  A claim fits if a knight's is true or a knave's is false.  The first
claim that does not fit ends the sentence with `no`; the sentence of the unique solution ends with `yes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl2f_core.environments.knights_knaves import logic as logic
from rl2f_core.environments.knights_knaves.text import Roles


def worked_solution(puzzle: logic.Puzzle, people: Sequence[str], roles: Roles) -> str:
    """The search for the one solution of a puzzle, a sentence a try, e.g. `If Ada knight, Ben knave: Ada false, no.`

    Roles are tried in the same order everywhere: the first person truthful before lying, then the second …
    """
    lines = []
    for settled, claims in tries(puzzle):
        supposed = ", ".join(f"{people[i]} {roles[0] if truthful else roles[1]}" for i, truthful in enumerate(settled))
        verdicts = [f"{people[i]} {'true' if truth else 'false'}" for i, truth in claims]
        fits = all(settled[i] == truth for i, truth in claims)
        lines.append(f"If {supposed}: {', '.join([*verdicts, 'yes' if fits else 'no'])}.")
    return " ".join(lines)


def tries(puzzle: logic.Puzzle) -> Iterator[tuple[tuple[bool, ...], list[tuple[int, bool]]]]:
    """The roles supposed (of the first people in order, true for a knight) and the claims' truth, of each line.

    All claims of a line fit but, on every line before the last, the last one.
    """
    people = len(puzzle)
    tables = [logic.truth_table(statement, people) for statement in puzzle]
    yield from _below((), tables, [])


def _below(
    settled: tuple[bool, ...], tables: Sequence[int], solved: list[bool]
) -> Iterator[tuple[tuple[bool, ...], list[tuple[int, bool]]]]:
    """The tries that begin with `settled`; `found` is filled once the solution was among them."""
    people = len(tables)
    if settled:
        claims = []
        for person, truthful in enumerate(settled):
            truth = _truth(tables[person], settled, people)
            if truth is None:
                continue
            claims.append((person, truth))
            if truth != truthful:
                yield settled, claims
                return
        if len(settled) == people:
            solved.append(True)
            yield settled, claims
            return
    for truthful in (True, False):
        if not solved:
            yield from _below((*settled, truthful), tables, solved)


def _truth(table: int, settled: Sequence[bool], people: int) -> bool | None:
    """The truth of a claim if the first people's roles determine it, otherwise None."""
    bits = sum(1 << i for i, truthful in enumerate(settled) if truthful)
    mask = 0
    for rest in range(2 ** (people - len(settled))):
        mask |= 1 << (bits | rest << len(settled))
    inside = table & mask
    return True if inside == mask else False if inside == 0 else None
