"""Puzzles of a file in the form of the data set K-and-K/knights-and-knaves (Xie et al., arXiv 2410.23123).

A row has the problem (`quiz`), the people (`names`), their roles in this order (`solution`, true for a knight) and the
claims (`statements`, a tuple as text or nested lists). Logic-RL's Parquet files have the same columns.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rl2f_core.environments.data_files import read_records, stamp
from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.errors import DataError

_KINDS = {
    "telling-truth": "knight",
    "lying": "knave",
    "not": "not",
    "and": "and",
    "or": "or",
    "->": "imp",
    "<=>": "iff",
}
"""Our names of the published kinds of statements."""
_MAX_NESTING = 16


class GivenPuzzle(NamedTuple):
    """A puzzle of a file."""

    text: str
    people: tuple[str, ...]
    puzzle: logic.Puzzle
    solution: int


def puzzles_of_size(source: str, fewest: int, most: int) -> list[GivenPuzzle]:
    """Return a file's puzzles of `fewest` to `most` people.

    Raises `DataError` if there are none, the file cannot be read, or a row is invalid.
    """
    puzzles = _read(stamp(source))
    found = [puzzle for puzzle in puzzles if fewest <= len(puzzle.people) <= most]
    if not found:
        known = sorted({str(len(puzzle.people)) for puzzle in puzzles})
        raise DataError("The file has no puzzle of so many people.", value=most, known=known)
    return found


def canonical_keys(source: str) -> frozenset[str]:
    """Return the keys, up to renaming, of all puzzles of a file."""
    return _keys(stamp(source))


@lru_cache(8)
def _read(stamped: tuple[str, int, int]) -> tuple[GivenPuzzle, ...]:
    path = Path(stamped[0]).expanduser()
    return tuple(_puzzle(row, f"Row {number} of {path.name}") for number, row in enumerate(read_records(path), 1))


@lru_cache(8)
def _keys(stamped: tuple[str, int, int]) -> frozenset[str]:
    return frozenset(logic.canonical_key(row.puzzle) for row in _read(stamped))


def _puzzle(row: Mapping[str, object], where: str) -> GivenPuzzle:
    try:
        names, solution, statements = row["names"], row["solution"], row["statements"]
        if not isinstance(names, list) or not isinstance(solution, list):
            raise TypeError("names and solution are not lists")
        parsed = ast.literal_eval(statements) if isinstance(statements, str) else statements
        puzzle = tuple(_statement(item, len(names)) for item in parsed)  # type: ignore[union-attr]
        assignment = sum(1 << i for i, knight in enumerate(solution) if knight is True)
        valid = 2 <= len(names) <= logic.MAX_PEOPLE and len(puzzle) == len(solution) == len(set(map(str, names)))
        if not valid or len(puzzle) != len(names) or logic.solutions(puzzle) != [assignment]:
            raise ValueError("the solution is not the only one of the statements")
        return GivenPuzzle(str(row["quiz"]), tuple(map(str, names)), puzzle, assignment)
    except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{where} is not a puzzle of knights and knaves: {error}.",
            value=str(row.get("quiz"))[:120],
            fix="Give the columns quiz, names, solution and statements of K-and-K/knights-and-knaves.",
        ) from error


def _statement(data: object, people: int, depth: int = 0) -> logic.Statement:
    """Convert a published statement. Raises `ValueError` if it is invalid."""
    if not isinstance(data, list | tuple) or len(data) < 2 or depth > _MAX_NESTING or data[0] not in _KINDS:
        raise ValueError(f"{data!r} is not a statement")
    kind, parts = _KINDS[str(data[0])], data[1:]
    if kind in logic.LEAVES:
        if len(parts) != 1 or type(parts[0]) is not int or not 0 <= parts[0] < people:
            raise ValueError(f"{data!r} names no person")
        return kind, parts[0]
    if len(parts) != 1 if kind == "not" else len(parts) < 2 or (kind in ("imp", "iff") and len(parts) > 2):
        raise ValueError(f"{data!r} has another number of parts")
    return kind, *(_statement(part, people, depth + 1) for part in parts)
