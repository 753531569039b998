"""Fixed data sets of training problems: generated, from a published file, or split by count; and wider statements."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import assign_split
from rl2f_core.environments.math.environment import Math
from rl2f_core.environments.puzzles.knights_knaves import logic
from rl2f_core.environments.puzzles.knights_knaves import text as puzzle_text
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.errors import ConfigError, DataError

ROLES = ("knight", "knave")
ROW: dict[str, Any] = {
    "quiz": 'Zoey says, "Oliver is a knave." Oliver expressed that Zoey is a knave and Oliver is a knave. So who?',
    "names": ["Zoey", "Oliver"],
    # Zoey a knight: Oliver is a knave, and his claim is false. Zoey a knave: Oliver is a knight, and his claim false.
    "solution": [True, False],
    "statements": "(('lying', 1), ('and', ('lying', 0), ('lying', 1)))",
    "solution_text_format": "(1) Zoey is a knight\n(2) Oliver is a knave",
}


def environment(**settings: Any) -> KnightsKnaves:
    return KnightsKnaves(validate_config(KnightsKnaves.Config, settings))


def parquet(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return str(path)


# -- a number of generated puzzles -------------------------------------------------------------------------------
def test_so_many_consecutive_training_tasks_are_all_the_fixed_puzzles() -> None:
    fixed = environment(people=3, problems=20)
    for start in (0, 7, 1_000_003):
        tasks = [fixed.task("train", start + i) for i in range(20)]
        assert len({fixed.canonical(task) for task in tasks}) == 20
        assert {assign_split(fixed.canonical(task)) for task in tasks} == {"train"}
        assert tasks[3].id == f"knights_knaves/train/{start + 3}"
    assert fixed.task("train", 5).public == fixed.task("train", 25).public
    assert fixed.task("test", 5) == environment(people=3).task("test", 5)
    with pytest.raises(DataError, match=r"only \d+ distinct training puzzles"):
        environment(people=2, depth=2, problems=500).task("train", 0)


# -- a published file --------------------------------------------------------------------------------------------
def test_training_puzzles_are_those_of_a_published_parquet_file(tmp_path: Path) -> None:
    given = environment(people=2, source=parquet(tmp_path, ROW))
    task = given.task("train", 3)
    assert given.prompt(task.public) == ROW["quiz"] and task.split == "train"
    assert given.gold_answer(task) == "Oliver=knave; Zoey=knight"
    assert task.public["statements"] == [("knave", 1), ("and", ("knave", 0), ("knave", 1))]
    assert given.verify(task, "<answer>Zoey is a knight, Oliver is a knave</answer>").correct
    assert not given.verify(task, "<answer>Zoey is a knave, Oliver is a knave</answer>").correct


BACK = {"knight": "telling-truth", "knave": "lying", "imp": "->", "iff": "<=>"}


def published(statement: Any) -> Any:
    """A statement as the published puzzles write it."""
    if isinstance(statement, int):
        return statement
    return (BACK.get(statement[0], statement[0]), *map(published, statement[1:]))


def test_generated_test_puzzles_are_none_of_the_file(tmp_path: Path) -> None:
    plain = environment(people=3)
    held_out = [plain.task("test", i) for i in range(5)]
    rows = []
    for task in held_out:
        puzzle = logic.as_puzzle(task.public["statements"])
        (solution,) = logic.solutions(puzzle)
        rows.append(
            {"quiz": task.public["text"], "names": task.public["people"],
             "solution": [bool(solution >> i & 1) for i in range(3)], "statements": str(tuple(map(published, puzzle)))}
        )  # fmt: skip
    given = environment(people=3, source=parquet(tmp_path, *rows))
    keys = {plain.canonical(task) for task in held_out}
    assert {given.canonical(given.task("train", i)) for i in range(5)} == keys
    drawn = [given.task("test", i) for i in range(5)]
    assert not keys & {given.canonical(task) for task in drawn}
    assert keys <= {plain.canonical(plain.task("test", i)) for i in range(5)}


def test_no_changed_copy_of_a_puzzle_is_in_the_source(tmp_path: Path) -> None:
    """The source has the copy that would be chosen without it."""
    plain = environment(people=3)
    task = plain.task("test", 0)
    copy = plain.perturbations(task)["statement_changed"]
    puzzle = logic.as_puzzle(copy.public["statements"])
    (solution,) = logic.solutions(puzzle)
    text, people, roles = copy.public["text"], copy.public["people"], [bool(solution >> i & 1) for i in range(3)]
    row = {"quiz": text, "names": people, "solution": roles, "statements": str(tuple(map(published, puzzle)))}
    given = environment(people=3, source=parquet(tmp_path, row))
    assert given.canonical(given.task("train", 0)) == plain.canonical(copy)
    assert given.canonical(given.perturbations(task)["statement_changed"]) != plain.canonical(copy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"solution": [False, True]}, "Row 1 of rows.jsonl is not a puzzle.*not the only one"),
        ({"statements": "(('lying', 1), ('lying', 0))"}, "not the only one"),
        ({"statements": "(('lying', 2), ('lying', 0))"}, "names no person"),
        ({"statements": "(('xor', 1, 0), ('lying', 0))"}, "is not a statement"),
        ({"statements": "__import__('os').getcwd()"}, "is not a puzzle"),
        ({"statements": None}, "is not a puzzle"),
        ({"names": ["Zoey"]}, "not the only one|names no person"),
    ],
)
def test_invalid_row_of_a_file_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, **change}) + "\n")
    with pytest.raises(DataError, match=words):
        environment(people=2, source=str(path)).task("train", 0)


def test_file_without_puzzles_of_the_configured_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no puzzle of so many people"):
        environment(people=5, source=parquet(tmp_path, ROW)).task("train", 0)
    with pytest.raises(DataError, match="cannot be read"):
        environment(people=5, source=str(tmp_path / "none.parquet")).task("train", 0)
    for wrong in ({"problems": 3}, {"roles": ["saint", "sinner"]}):
        with pytest.raises(ConfigError, match="source"):
            environment(source="x.parquet", **wrong)


# -- statements of three parts -----------------------------------------------------------------------------------
def test_statements_of_three_parts_have_the_right_truth_and_can_be_read_back() -> None:
    three = ("or", ("and", ("knight", 1), ("not", ("knave", 2)), ("knight", 0)), ("knave", 1), ("knave", 2))
    # bit i of the assignment: person i is a knight; false only where 1 and 2 are knights and 0 is a knave: 0b110
    assert logic.truth_table(three, 3) == 0b1011_1111
    people = ["Ada", "Ben", "Carl"]
    written = puzzle_text.render_statement(three, 0, people, ROLES)
    first = "(Ben is a knight and Carl is not a knave and I am a knight)"
    assert written == f"{first} or Ben is a knave or Carl is a knave"
    assert puzzle_text.parse_statement(written, 0, people, ROLES) == three


def test_width_three_draws_statements_of_three_parts_whose_puzzles_have_one_solution() -> None:
    wide = environment(people=5, depth=3, width=3)
    rng, counts = random.Random(0), {2: 0, 3: 0}
    for _ in range(300):
        statement = logic.random_statement(0, 5, 3, rng, width=3)
        if statement[0] in ("and", "or"):
            counts[len(statement) - 1] += 1
    assert min(counts.values()) > 30
    for i in range(10):
        task = wide.task("train", i)
        puzzle = logic.as_puzzle(task.public["statements"])
        assert len(logic.solutions(puzzle)) == 1 and task.level == "5 people, depth 3, width 3"
        found = puzzle_text.parse_puzzle(task.public["text"], task.public["people"], ROLES)
        assert found == (list(task.public["people"]), puzzle)


# -- math problems split by count --------------------------------------------------------------------------------
def test_math_problems_are_split_by_count(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    rows = [{"problem": f"What is {i} plus {i * i}?", "answer": i + i * i} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = Math(Math.Config(source=str(path), test_size=8, ngram=0)).loaded.counts
    assert (counts.train, counts.validation, counts.test) == (42, 0, 8)
    problems = Math(Math.Config(source=str(path), test_size=8, ngram=0)).loaded.problems
    assert not {p.text for p in problems["train"]} & {p.text for p in problems["test"]}
    assert {p.text for p in problems["test"]} != {row["problem"] for row in rows[:8]}
    smaller = Math(Math.Config(source=str(path), test_size=4, ngram=0)).loaded.problems["test"]
    assert [p.text for p in smaller] == [p.text for p in problems["test"]][:4]
    for wrong in ({"source": "gsm8k"}, {"test_source": "math500"}):
        with pytest.raises(ConfigError, match="source of their own"):
            validate_config(Math.Config, {"source": "omni_math", "test_size": 5, **wrong})
