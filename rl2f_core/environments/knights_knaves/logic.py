"""Knights and knaves as pure logic: statement trees, truth tables, unique puzzles, and a canonical form.

A **statement** is a nested tuple: `("knight", p)`, `("knave", p)`, `("not", s)`, and `(op, s, t)` with op one of
`and`, `or`, `imp`, `iff`; p is the number of a person.  A **puzzle** is a tuple of statements, where person i says
statement i.  An **assignment** of n people is an integer of n bits; bit i is set when person i is a knight.

A **table** is the truth table of a statement over all 2ⁿ assignments, packed into one integer: bit a is the value under
assignment a.  All 2ⁿ assignments are therefore tried at once, and uniqueness is proven, not sampled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
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
    return tuple(_as_statement(item) for item in data)


def _as_statement(data: Any) -> Any:
    return tuple(_as_statement(item) for item in data) if isinstance(data, (list, tuple)) else data


def is_leaf(statement: Statement) -> bool:
    """Whether a statement is about one person, without a connective."""
    return statement[0] in LEAVES


def height(statement: Statement) -> int:
    """Levels of the tree; a leaf has 1."""
    return 1 if is_leaf(statement) else 1 + max(height(child) for child in statement[1:])


# -- truth -------------------------------------------------------------------------------------------------------


def evaluate(statement: Statement, assignment: int) -> bool:
    """The truth value of a statement under an assignment."""
    kind = statement[0]
    if kind == "knight":
        return bool(assignment >> statement[1] & 1)
    if kind == "knave":
        return not assignment >> statement[1] & 1
    if kind == "not":
        return not evaluate(statement[1], assignment)
    left, right = evaluate(statement[1], assignment), evaluate(statement[2], assignment)
    if kind == "and":
        return left and right
    if kind == "or":
        return left or right
    if kind == "imp":
        return not left or right
    return left == right


def fits(puzzle: Puzzle, person: int, assignment: int) -> bool:
    """Whether a person's role under the assignment agrees with the truth of what that person says."""
    return bool(assignment >> person & 1) == evaluate(puzzle[person], assignment)


def first_contradicted(puzzle: Puzzle, assignment: int) -> int | None:
    """The first person whose statement contradicts the assignment, or None."""
    return next((i for i in range(len(puzzle)) if not fits(puzzle, i, assignment)), None)


@lru_cache(maxsize=64)
def _knight_table(person: int, people: int) -> int:
    return sum(1 << a for a in range(2**people) if a >> person & 1)


def _combine(kind: str, left: int, right: int, full: int) -> int:
    if kind == "and":
        return left & right
    if kind == "or":
        return left | right
    if kind == "imp":
        return left ^ full | right
    return left ^ right ^ full


def truth_table(statement: Statement, people: int) -> int:
    """The truth table of a statement: 2**people bits."""
    full = (1 << 2**people) - 1
    kind = statement[0]
    if kind == "knight":
        return _knight_table(statement[1], people)
    if kind == "knave":
        return _knight_table(statement[1], people) ^ full
    if kind == "not":
        return truth_table(statement[1], people) ^ full
    return _combine(kind, truth_table(statement[1], people), truth_table(statement[2], people), full)


def solutions(puzzle: Puzzle) -> list[int]:
    """All assignments with knight_i ↔ statement_i for every person i, in rising order."""
    people = len(puzzle)
    table = (1 << 2**people) - 1
    for person, statement in enumerate(puzzle):
        table &= agreement(statement, person, people)
    return [a for a in range(2**people) if table >> a & 1]


def agreement(statement: Statement, speaker: int, people: int) -> int:
    """The truth table of knight_speaker ↔ statement."""
    return _knight_table(speaker, people) ^ truth_table(statement, people) ^ (1 << 2**people) - 1


# -- generation --------------------------------------------------------------------------------------------------


def random_statement(speaker: int, people: int, depth: int, rng: random.Random) -> Statement:
    """Draw a statement of at most `depth` levels, uniformly from six kinds at each inner level.

    Excluded are "I am a knave", connectives with equal parts, double negations, and tautologies or contradictions.
    """
    kind = rng.choice(KINDS) if depth > 1 else "leaf"
    if kind == "leaf":
        person = rng.randrange(people)
        return (rng.choice(LEAVES) if person != speaker else "knight", person)
    full = (1 << 2**people) - 1
    while True:
        children = [random_statement(speaker, people, depth - 1, rng) for _ in range(1 if kind == "not" else 2)]
        if kind == "not" and children[0][0] == "not":
            continue
        if kind != "not" and encode(children[0], _numbers(people)) == encode(children[1], _numbers(people)):
            continue
        statement = (kind, *children)
        if truth_table(statement, people) not in (0, full):
            return statement


def generate(solution: int, people: int, depth: int, rng: random.Random, tries: int = 100_000) -> Puzzle:
    """A puzzle whose one and only solution is the given assignment.

    Every statement fits the solution, and no other assignment fits all of them.  Statements that fit every assignment
    are rejected.  The caller chooses the solution, so that all role patterns are equally frequent.

    `depth` must be at least 2: with leaves only, inverting all roles preserves the fit, so the number of solutions is
    even.  Raises `DataError` after `tries` rejected puzzles.
    """
    for _ in range(tries):
        puzzle, table = [], (1 << 2**people) - 1
        for person in range(people):
            statement, agrees = _telling_statement(person, people, depth, solution, rng)
            puzzle.append(statement)
            table &= agrees
        if table == 1 << solution:  # over all 2**people assignments, as `solutions` would find
            return tuple(puzzle)
    raise DataError(
        f"No puzzle with exactly one solution was found in {tries} draws.",
        value={"people": people, "depth": depth, "solution": solution},
        fix="Use at least 2 people and a depth of at least 2.",
    )


def _telling_statement(
    speaker: int, people: int, depth: int, solution: int, rng: random.Random
) -> tuple[Statement, int]:
    """A statement that the speaker can make under the solution, and its `agreement`."""
    knight, full = _knight_table(speaker, people), (1 << 2**people) - 1
    while True:
        statement = random_statement(speaker, people, depth, rng)
        truth = truth_table(statement, people)
        if truth != knight and (truth ^ knight) >> solution & 1 == 0:
            return statement, truth ^ knight ^ full


# -- canonical form ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _numbers(people: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(people))


def encode(statement: Statement, labels: Sequence[str]) -> str:
    """A statement as text with each person under a label; the parts of and, or, ↔ are sorted.

    Two statements have the same text exactly when they are the same up to the order of such parts (for labels that
    hold no symbol of the code).
    """
    kind = statement[0]
    if kind in LEAVES:
        return f"{_SYMBOL[kind]}{labels[statement[1]]}"
    parts = [encode(child, labels) for child in statement[1:]]
    if kind in COMMUTATIVE:
        parts.sort()
    return f"{_SYMBOL[kind]}({','.join(parts)})"


def mentions(statement: Statement) -> set[int]:
    """The people that a statement mentions."""
    return {statement[1]} if is_leaf(statement) else set().union(*(mentions(child) for child in statement[1:]))


def canonical_key(puzzle: Puzzle) -> str:
    """A text that two puzzles share exactly when renaming (and so reordering) the people turns one into the other.

    Color refinement with individualization.  People are colored by their statements and the statements about them until
    the colors are stable.  The search then individualizes each member of the first shared color.  Every step depends
    only on structure, so the smallest leaf text does too.  Exchangeable members lead to the same texts, so one
    is enough.
    """
    spoken_of = [mentions(statement) for statement in puzzle]
    return f"{len(puzzle)}:{min(_leaf_keys(puzzle, spoken_of, [0] * len(puzzle)))}"


def _leaf_keys(puzzle: Puzzle, spoken_of: list[set[int]], colors: list[int]) -> Iterator[str]:
    colors = _refine(puzzle, spoken_of, colors)
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
        yield from _leaf_keys(puzzle, spoken_of, singled)


def _refine(puzzle: Puzzle, spoken_of: list[set[int]], colors: list[int]) -> list[int]:
    """The coarsest refinement of `colors` in which people of one color look alike; colors are ranks 0, 1 …"""
    people = range(len(puzzle))
    classes = 0
    while True:
        seen = [_look(puzzle, spoken_of, colors, person) for person in people]
        rank = {look: i for i, look in enumerate(sorted(set(seen)))}
        if len(rank) == classes:
            return colors
        classes = len(rank)
        colors = [rank[look] for look in seen]


def _look(
    puzzle: Puzzle, spoken_of: list[set[int]], colors: list[int], person: int
) -> tuple[int, str, tuple[str, ...]]:
    """A person's color, statement, and the statements that mention the person."""
    labels = [str(c) for c in colors]
    labels[person] = "*"
    local = encode(puzzle[person], labels)
    mentions_by_others = []
    for speaker, statement in enumerate(puzzle):
        if speaker != person and person in spoken_of[speaker]:
            plain, labels[speaker] = labels[speaker], f"^{labels[speaker]}"
            mentions_by_others.append(f"{plain}:{encode(statement, labels)}")
            labels[speaker] = plain
    return colors[person], local, tuple(sorted(mentions_by_others))


def _exchangeable(puzzle: Puzzle, one: int, other: int) -> bool:
    """Whether swapping two people gives the same puzzle."""
    plain = _numbers(len(puzzle))
    swapped = list(plain)
    swapped[one], swapped[other] = swapped[other], swapped[one]
    turn = {one: other, other: one}
    return all(
        encode(statement, swapped) == encode(puzzle[turn.get(i, i)], plain) for i, statement in enumerate(puzzle)
    )
