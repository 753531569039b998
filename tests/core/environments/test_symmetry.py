"""Rotated and mirrored copies of a matrix or grid are the same problem, so no split shares them with another."""

from __future__ import annotations

from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.types import SPLITS

LEVELS: list[tuple[str, str, dict[str, Any]]] = [
    ("binary_matrix", "rows", {"smallest": 3, "largest": 3}),
    ("binary_matrix", "rows", {"smallest": 2, "largest": 3, "plain": True, "p_zero": 0.33}),
    ("shortest_path", "grid", {"smallest": 2, "largest": 3, "p_blocked": 0.15, "infeasible": 0, "min_steps": 1}),
    ("maze", "grid", {"rooms": 2}),
]


def environment(name: str, **settings: Any) -> Environment:
    cls: Any = registry.get("environment", name)
    return cls(cls.Config(**settings))


def turned(rows: list[str]) -> list[str]:
    """A quarter turn clockwise."""
    return ["".join(rows[len(rows) - 1 - r][c] for r in range(len(rows))) for c in range(len(rows[0]))]


def copies(rows: list[str]) -> set[tuple[str, ...]]:
    """The images under the symmetry group of the square: four turns, each also mirrored."""
    result = set()
    for _ in range(4):
        rows = turned(rows)
        result |= {tuple(rows), tuple(row[::-1] for row in rows)}
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key", "settings"), LEVELS)
def test_no_test_matrix_is_a_rotated_or_mirrored_training_matrix(name: str, key: str, settings: dict[str, Any]) -> None:
    env = environment(name, **settings)
    seen = {split: {tuple(env.task(split, i).public[key]) for i in range(150)} for split in SPLITS}
    reached = {split: {copy for rows in found for copy in copies(list(rows))} for split, found in seen.items()}
    assert all(seen.values())
    assert not reached["train"] & seen["test"] and not reached["train"] & seen["validation"]
    assert not reached["validation"] & seen["test"]


def test_the_eight_copies_of_a_matrix_have_one_canonical_key_and_other_matrices_another() -> None:
    env = environment("binary_matrix", plain=True)
    task = env.task("train", 0).model_copy(update={"public": {"rows": ["110", "111", "111"]}})
    rows = copies(["110", "111", "111"])
    assert len(rows) == 4  # a 0 in each of the corners
    keys = {env.canonical(task.model_copy(update={"public": {"rows": list(copy)}})) for copy in rows}
    assert keys == {"011/111/111"}
    others = [["101", "111", "111"], ["111", "101", "111"], ["1101", "1111", "1111", "1111"]]
    assert len({env.canonical(task.model_copy(update={"public": {"rows": other}})) for other in others} | keys) == 4


def test_a_turned_grid_of_other_height_and_width_has_the_same_key() -> None:
    env = environment("shortest_path")
    task = env.task("train", 0)
    grid = ["S.#", "..G"]
    keys = {env.canonical(task.model_copy(update={"public": {"grid": list(copy)}})) for copy in copies(grid)}
    assert len(copies(grid)) == 8 and len(keys) == 1
    swapped = task.model_copy(update={"public": {"grid": ["G.#", "..S"]}})
    assert env.canonical(swapped) not in keys
