"""Knights and knaves as pure logic: statement trees, truth tables, unique puzzles, and a canonical form.

A **statement** is a nested tuple: `("knight", p)`, `("knave", p)`, `("not", s)`, and `(op, s, t)` with op one of
`and`, `or`, `imp`, `iff`; p is the number of a person, and `and` and `or` may have more than two parts.  A **puzzle**
is a tuple of statements, where person i says statement i.  An **assignment** of n people is an integer of n bits; bit i
is set if person i is a knight.

A **truth table** of a statement is an integer of 2ⁿ bits: bit a is the value under assignment a.  Operations on tables
therefore test all 2ⁿ assignments at once, and uniqueness is proven, not sampled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from operator import and_, or_
from typing import Any

from rl2f_core.errors import DataError

Statement = tuple[Any, ...]
Puzzle = tuple[Statement, ...]

LEAVES = ("knight", "knave")
COMMUTATIVE = ("and", "or", "iff")
BINARY = ("and", "or", "imp", "iff")
KINDS = ("leaf", "not", *BINARY)
MAX_PEOPLE = 8
_SYMBOL = {"knight": "K", "knave": "V", "not": "~", "and": "&", "or": "|", "imp": ">", "iff": "="}


def as_puzzle(data: Sequence[Any]) -> Puzzle:
    """Convert nested lists from JSON to tuples."""
    return tuple(as_puzzle(item) if isinstance(item, list | tuple) else item for item in data)


def is_leaf(statement: Statement) -> bool:
    """Return whether a statement is about one person, without a connective."""
    return statement[0] in LEAVES


# -- truth -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _knight_table(person: int, people: int) -> int:
    return sum(1 << a for a in range(2**people) if a >> person & 1)


@lru_cache(maxsize=4096)
def truth_table(statement: Statement, people: int) -> int:
    """Return the truth table of a statement."""
    full = (1 << 2**people) - 1
    match statement:
        case ["knight", person]:
            return _knight_table(person, people)
        case ["knave", person]:
            return _knight_table(person, people) ^ full
    match statement[0], *(truth_table(child, people) for child in statement[1:]):
        case ["not", table]:
            return table ^ full
        case ["and", *tables]:
            return reduce(and_, tables)
        case ["or", *tables]:
            return reduce(or_, tables)
        case ["imp", left, right]:
            return left ^ full | right
        case ["iff", left, right]:
            return left ^ right ^ full
    raise ValueError(f"unknown statement {statement!r}")


def agreement(statement: Statement, speaker: int, people: int) -> int:
    """Return the truth table of knight_speaker ↔ statement."""
    return _knight_table(speaker, people) ^ truth_table(statement, people) ^ (1 << 2**people) - 1


def fits(puzzle: Puzzle, person: int, assignment: int) -> bool:
    """Return whether a person's role under the assignment agrees with the truth of the person's statement."""
    return bool(agreement(puzzle[person], person, len(puzzle)) >> assignment & 1)


def first_contradicted(puzzle: Puzzle, assignment: int) -> int | None:
    """Return the first person whose statement contradicts the assignment, or None."""
    return next((i for i in range(len(puzzle)) if not fits(puzzle, i, assignment)), None)


def solutions(puzzle: Puzzle) -> list[int]:
    """Return all assignments with knight_i ↔ statement_i for every person i, in ascending order."""
    people = len(puzzle)
    table = (1 << 2**people) - 1
    for person, statement in enumerate(puzzle):
        table &= agreement(statement, person, people)
    return [a for a in range(2**people) if table >> a & 1]


# -- generation --------------------------------------------------------------------------------------------------


def random_statement(speaker: int, people: int, depth: int, rng: random.Random, width: int = 2) -> Statement:
    """Draw a statement of at most `depth` levels, uniformly from the six `KINDS` at each inner level.

    `and` and `or` have 2 to `width` parts, uniformly.  Excluded are "I am a knave", connectives with equal parts,
    double negations, and tautologies or contradictions.
    """
    kind = rng.choice(KINDS) if depth > 1 else "leaf"
    if kind == "leaf":
        person = rng.randrange(people)
        return (rng.choice(LEAVES) if person != speaker else "knight", person)
    full = (1 << 2**people) - 1
    while True:
        count = rng.randint(2, width) if width > 2 and kind in ("and", "or") else 1 if kind == "not" else 2
        children = [random_statement(speaker, people, depth - 1, rng, width) for _ in range(count)]
        if kind == "not" and children[0][0] == "not":
            continue
        if count > 1 and len({encode(child, _numbers(people)) for child in children}) < count:
            continue
        statement = (kind, *children)
        if truth_table(statement, people) not in (0, full):
            return statement


def generate(
    solution: int, people: int, depth: int, rng: random.Random, tries: int = 100_000, width: int = 2
) -> Puzzle:
    """Generate a puzzle whose only solution is the given assignment.

    Statements that fit every assignment are rejected.  The caller chooses the solution, so that all role patterns are
    equally frequent.  `depth` must be at least 2: with leaves only, inverting all roles preserves the fit, so the
    number of solutions is even.  Raises `DataError` after `tries` rejected puzzles.
    """
    for _ in range(tries):
        puzzle, table = [], (1 << 2**people) - 1
        for person in range(people):
            statement, agrees = _informative_statement(person, people, depth, solution, rng, width)
            puzzle.append(statement)
            table &= agrees
        if table == 1 << solution:  # over all 2**people assignments, as `solutions` would find
            return tuple(puzzle)
    raise DataError(
        f"No puzzle with exactly one solution was found in {tries} draws.",
        value={"people": people, "depth": depth, "solution": solution},
        fix="Use at least 2 people and a depth of at least 2.",
    )


def _informative_statement(
    speaker: int, people: int, depth: int, solution: int, rng: random.Random, width: int
) -> tuple[Statement, int]:
    """Draw a statement that fits the solution but not every assignment; return it and its `agreement`."""
    full = (1 << 2**people) - 1
    while True:
        statement = random_statement(speaker, people, depth, rng, width)
        agrees = agreement(statement, speaker, people)
        if agrees != full and agrees >> solution & 1:
            return statement, agrees


# -- canonical form ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _numbers(people: int) -> tuple[str, ...]:
    return tuple(map(str, range(people)))


def encode(statement: Statement, labels: Sequence[str]) -> str:
    """Write a statement with a label for each person and with sorted parts of and, or, ↔.

    Two statements have the same text exactly if they are the same up to the order of such parts, provided that labels
    contain no symbol of the code.
    """
    kind = statement[0]
    if kind in LEAVES:
        return f"{_SYMBOL[kind]}{labels[statement[1]]}"
    parts = [encode(child, labels) for child in statement[1:]]
    if kind in COMMUTATIVE:
        parts.sort()
    return f"{_SYMBOL[kind]}({','.join(parts)})"


def mentions(statement: Statement) -> set[int]:
    """Return the people that a statement mentions."""
    return {statement[1]} if is_leaf(statement) else set().union(*(mentions(child) for child in statement[1:]))


def canonical_key(puzzle: Puzzle) -> str:
    """Return a text that two puzzles share exactly if renaming (and so reordering) people turns one into the other.

    Color refinement with individualization.  People are colored by their statements and the statements about them until
    the colors are stable.  The search then individualizes each member of the first shared color.  Every step depends
    only on structure, so the smallest leaf text does too.  Exchangeable members lead to the same texts, so one
    is enough.
    """
    mentioned = [mentions(statement) for statement in puzzle]
    return f"{len(puzzle)}:{min(_leaf_keys(puzzle, mentioned, [0] * len(puzzle)))}"


def _leaf_keys(puzzle: Puzzle, mentioned: list[set[int]], colors: list[int]) -> Iterator[str]:
    colors = _refine(puzzle, mentioned, colors)
    people = range(len(puzzle))
    shared = next((c for c in range(len(puzzle)) if colors.count(c) > 1), None)
    if shared is None:
        labels = [str(c) for c in colors]
        yield ";".join(encode(puzzle[i], labels) for i in sorted(people, key=colors.__getitem__))
        return
    tried: list[int] = []
    for person in (i for i in people if colors[i] == shared):
        if any(_exchangeable(puzzle, person, other) for other in tried):
            continue
        tried.append(person)
        singled = [2 * c for c in colors]
        singled[person] -= 1
        yield from _leaf_keys(puzzle, mentioned, singled)


def _refine(puzzle: Puzzle, mentioned: list[set[int]], colors: list[int]) -> list[int]:
    """Return the coarsest stable refinement of `colors`; colors are ranks 0, 1 …"""
    people = range(len(puzzle))
    classes = 0
    while True:
        signatures = [_signature(puzzle, mentioned, colors, person) for person in people]
        rank = {signature: i for i, signature in enumerate(sorted(set(signatures)))}
        if len(rank) == classes:
            return colors
        classes = len(rank)
        colors = [rank[signature] for signature in signatures]


def _signature(
    puzzle: Puzzle, mentioned: list[set[int]], colors: list[int], person: int
) -> tuple[int, str, tuple[str, ...]]:
    """Return a person's color, statement, and the statements that mention the person."""
    labels = [str(c) for c in colors]
    labels[person] = "*"
    local = encode(puzzle[person], labels)
    mentions_by_others = []
    for speaker, statement in enumerate(puzzle):
        if speaker != person and person in mentioned[speaker]:
            plain, labels[speaker] = labels[speaker], f"^{labels[speaker]}"
            mentions_by_others.append(f"{plain}:{encode(statement, labels)}")
            labels[speaker] = plain
    return colors[person], local, tuple(sorted(mentions_by_others))


def _exchangeable(puzzle: Puzzle, one: int, other: int) -> bool:
    """Return whether swapping two people gives the same puzzle."""
    labels = _numbers(len(puzzle))
    swap = {one: other, other: one}
    swapped = [labels[swap.get(i, i)] for i in range(len(puzzle))]
    return all(
        encode(statement, swapped) == encode(puzzle[swap.get(i, i)], labels) for i, statement in enumerate(puzzle)
    )
