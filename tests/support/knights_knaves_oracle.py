"""Evaluation of statements one assignment at a time, independent of the truth tables of the environment."""

from __future__ import annotations

from rl2f_core.environments.puzzles.knights_knaves.logic import Statement, is_leaf


def evaluate(statement: Statement, assignment: int) -> bool:
    """Return the truth value of a statement under an assignment."""
    kind = statement[0]
    if is_leaf(statement):
        return bool(assignment >> statement[1] & 1) == (kind == "knight")
    left, right = evaluate(statement[1], assignment), evaluate(statement[-1], assignment)
    return {
        "not": not left,
        "and": left and right,
        "or": left or right,
        "imp": not left or right,
        "iff": left == right,
    }[kind]


def height(statement: Statement) -> int:
    """Return the levels of the tree; a leaf has 1."""
    return 1 if is_leaf(statement) else 1 + max(height(child) for child in statement[1:])
