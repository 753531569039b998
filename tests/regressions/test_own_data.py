"""Files of own questions: which problems, answers, choices and rows are read, and what the check says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.common.context import Context
from app.endpoints.own_data import OwnDataEndpoints
from jobs.db.engine import Database
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.dataset.environment import Dataset
from rl2f_core.environments.math.environment import Math
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS


def written(path: Path, *rows: object) -> Path:
    """Write rows as JSONL; a text is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def questions(path: Path, **changes: Any) -> tuple[Dataset, dict[str, dict[str, Any]]]:
    """Return the environment of a file and the privileged data of its problems."""
    environment = Dataset(validate_config(Dataset.Config, {"path": str(path), **changes}))
    every = [question for split in SPLITS for question in environment.loaded.questions[split]]
    return environment, {question.problem: question.privileged for question in every}


def check(*args: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["data", "check", *map(str, args)])
    return done.exit_code, done.output


COLLIDING = {
    "parentheses": ("What is (2+3)*4?", "What is 2+3*4?"),
    "relations": ("How many x in 1…9 satisfy x ≤ 3?", "How many x in 1…9 satisfy x ≥ 3?"),
    "factorials": ("What is 5!?", "What is 5?"),
    "absolute values": ("What is |-4|?", "What is -4?"),
    "raised digits": ("What is 2⁵?", "What is 25?"),
    "percent signs": ("What is 10% of 50?", "What is 10 of 50?"),
    "roots": ("What is √9?", "What is 9?"),
}  # fmt: skip


@pytest.mark.parametrize("texts", COLLIDING.values(), ids=COLLIDING)
def test_problems_that_differ_in_a_sign_are_two_problems(texts: tuple[str, str], tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *({"problem": text, "answer": n} for n, text in enumerate(texts)))
    environment, found = questions(path)
    assert set(found) == set(texts) and environment.loaded.bad_rows == () and environment.loaded.duplicates == 0
    problems = Math(Math.Config(source=str(path))).loaded.problems
    assert {problem.text for split in SPLITS for problem in problems[split]} == set(texts)


def test_problems_that_differ_in_case_and_white_space_are_one_problem(tmp_path: Path) -> None:
    rows = [{"problem": "What is 1  plus 1?", "answer": 2}, {"problem": "what is 1 PLUS 1?", "answer": 2}]
    assert questions(written(tmp_path / "a.jsonl", *rows))[0].loaded.duplicates == 1


GSM8K = [
    {
        "question": f"Tom has {n} apples, buys 1 and eats none. How many has he?",
        "answer": f"He buys 1.\nHe has {n}+1=<<{n}+1={n + 1}>>{n + 1} apples.\n#### {n + 1:,}",
    }
    for n in range(1200, 1206)
]


def test_an_answer_after_hashes_is_read_and_the_text_before_it_is_the_solution(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *GSM8K)
    first = questions(path)[1][GSM8K[0]["question"]]
    assert first == {"answer": "1201", "solution": "He buys 1.\nHe has 1200+1=1201 apples."}
    code, output = check(path)
    assert code == 0 and "checker: numeric" in output and "scripted hints: 0 of 6 would be empty" in output


def test_boxed_gold_answers_are_read_as_numbers(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n}+1?", "answer": rf"\boxed{{{n + 1}}}"} for n in range(4)]
    code, output = check(written(tmp_path / "a.jsonl", *rows))
    assert code == 0 and "checker: numeric" in output


CHOICES = {
    "positions": ({"choices": ["4", "9", "7"], "answer": 2}, "C"),
    "letters": ({"choices": ["4", "9", "7"], "answer": "C"}, "C"),
    "texts": ({"options": ["red", "blue", "green"], "answer": "green"}, "C"),
    "labels": ({"choices": {"text": ["4", "9", "7"], "label": ["1", "2", "3"]}, "answerKey": "3"}, "C"),
    "letters as keys": ({"options": {"A": "4", "B": "9", "C": "7"}, "answer": "C"}, "C"),
    "a list as text": ({"choices": "['red', 'blue', 'green']", "answer": "2"}, "C"),
}


@pytest.mark.parametrize(("row", "letter"), CHOICES.values(), ids=CHOICES)
def test_choices_are_shown_to_the_student_and_give_the_letter(row: dict[str, Any], letter: str, tmp_path: Path) -> None:
    rows = [{"question": f"Which is right in case {n}?", **row} for n in range(4)]
    path = written(tmp_path / "a.jsonl", *rows)
    environment, found = questions(path, checker="multiple_choice")
    problem, privileged = next(iter(found.items()))
    assert privileged["answer"] == letter and problem.splitlines()[1:][2].startswith("C. ")
    task = environment.task("train", 0)
    assert environment.prompt(task.public).count("\n") == 3
    assert environment.verify(task, wrap_answer(f"**{letter}**")).correct
    assert environment.verify(task, wrap_answer("D")).parsed is None
    code, output = check(path)
    assert code == 0 and "checker: multiple_choice" in output and "choices: " in output


def test_a_gold_answer_that_names_no_choice_or_two_is_a_bad_row(tmp_path: Path) -> None:
    rows = [
        {"question": "Two?", "choices": ["1", "2"], "answer": 5},
        {"question": "One?", "choices": ["1", "0"], "answer": "1"},
        {"question": "Three?", "choices": "no list", "answer": 0},
        {"question": "A) 1 B) 2", "answer": "C"},
        {"question": "Four?", "choices": ["4", "5"], "answer": 0},
    ]
    environment, found = questions(written(tmp_path / "a.jsonl", *rows), checker="multiple_choice")
    assert len(found) == 1 and [bad.row for bad in environment.loaded.bad_rows] == [1, 2, 3, 4]
    reasons = " ".join(bad.reason for bad in environment.loaded.bad_rows)
    assert all(part in reasons for part in ("names none", "several choices (A, B)", "not a list", "does not list"))


FILES: dict[str, tuple[str, str, int]] = {
    "an unnamed index": ("a.csv", ",problem,answer\n0,Half of 8?,4\n1,Half of 6?,3\n2,Half of 4?,2\n", 3),
    "an unnamed empty column": ("a.csv", "problem,answer,\nHalf of 8?,4,\nHalf of 6?,3,\nHalf of 4?,2,\n", 3),
    "a line with the separator": ("a.csv", "sep=;\nproblem;answer\nHalf of 8, please?;4\nHalf of 6, please?;3\n", 2),
    "a line with another separator": ("a.csv", '"sep=|"\nproblem|answer\nHalf of 8?|4\nHalf of 6?|3\n', 2),
    "names in upper case": ("a.csv", "Question,Answer\nHalf of 8?,4\nHalf of 6?,3\n", 2),
    "other names in upper case": ("a.csv", "PROBLEM,Final_Answer\nHalf of 8?,4\nHalf of 6?,3\n", 2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "count"), FILES.values(), ids=FILES)
def test_files_of_common_programs_are_read(name: str, text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    code, output = check(tmp_path / name)
    assert code == 0, output
    assert f"{count} rows: {count} valid, 0 bad" in output


def test_names_of_columns_are_recognized_whatever_the_case_in_the_math_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *({"Question": f"Half of {2 * n}?", "ANSWER": n} for n in range(9)))
    assert Math(Math.Config(source=str(path))).loaded.counts.rows == 9


@pytest.mark.parametrize(
    "text", ['[\n {"problem": "Half of 8?", "answer": 4}\n]\n', '[{"problem": "Half of 8?", "answer": 4}]']
)
def test_a_json_array_is_named_as_such(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    code, output = check(tmp_path / "a.jsonl")
    assert code == 2 and "is a JSON array" in output


@pytest.mark.parametrize(
    "line", ['{"problem": "A?", "answer": 2, "answer": 3}', '{"problem": "A?", "answer": {"a": 1, "a": 2}}']
)
def test_a_row_with_a_key_twice_is_refused(line: str, tmp_path: Path) -> None:
    rows = [{"problem": f"Half of {2 * n}?", "answer": n} for n in range(4)]
    environment, found = questions(written(tmp_path / "a.jsonl", line, *rows), checker="exact")
    assert len(found) == 4 and [bad.row for bad in environment.loaded.bad_rows] == [1]
    assert "twice" in environment.loaded.bad_rows[0].reason
    attempt = '{"problem": "A?", "answer": "1", "answer": "2", "attempt": "<answer>2</answer>"}\n'
    done = CliRunner().invoke(app, ["verify", "arithmetic", "-"], input=attempt)
    assert done.exit_code == 1 and "twice" in done.output


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_file_without_a_test_problem_is_refused_at_the_check(
    split: str, tmp_path: Path, workspace: Workspace, db: Database
) -> None:
    rows = [{"problem": f"Half of {2 * n}?", "answer": n, "split": split} for n in range(9)]
    path = written(tmp_path / "a.jsonl", *rows)
    code, output = check(path)
    assert code == 2 and "no test problem" in output
    own = OwnDataEndpoints(Context(workspace, db, Queue(db, workspace)))
    with pytest.raises(DataError, match="no test problem"):
        own.check_data_file(own.add_data_file("a.jsonl", path.read_text()))


def test_a_small_file_without_splits_has_a_test_problem(tmp_path: Path) -> None:
    for count in range(2, 6):
        rows = [{"problem": f"Half of {2 * n}?", "answer": n} for n in range(1, count + 1)]
        loaded = questions(written(tmp_path / f"{count}.jsonl", *rows))[0].loaded
        assert loaded.questions["test"] and loaded.questions["train"], count


@pytest.mark.parametrize(
    ("solutions", "empty"),
    [
        (["Halve it. It is {n}."] * 4, 0),
        (["It is {n}."] * 4, 4),
        ([None] * 4, 4),
        (["It is {n}.", "Halve it.", None, ""], 3),
    ],
    ids=["other sentences", "only the answer", "no solutions", "some"],
)
def test_the_check_counts_hints_without_content(
    solutions: list[str | None], empty: int, tmp_path: Path, workspace: Workspace, db: Database
) -> None:
    rows = [
        {"problem": f"Half of {2 * n}?", "answer": n, "solution": text and text.format(n=n)}
        for n, text in enumerate(solutions, 3)
    ]
    path = written(tmp_path / "a.jsonl", *rows)
    code, output = check(path)
    assert code == 0 and f"scripted hints: {empty} of 4 would be empty" in output
    own = OwnDataEndpoints(Context(workspace, db, Queue(db, workspace)))
    found = own.check_data_file(own.add_data_file("a.jsonl", path.read_text()))
    assert (found.empty_hints, found.checked_hints) == (empty, 4)
