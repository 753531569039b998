"""Own questions from files: columns, bad rows, splits, near-duplicates, hints and the constant baseline."""

from __future__ import annotations

import csv
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import assign_split
from rl2f_core.environments.dataset.environment import Dataset
from rl2f_core.environments.dataset.loading import Question, near_duplicates
from rl2f_core.environments.math.answer_text import canonical
from rl2f_core.errors import DataError
from rl2f_core.types import SPLITS


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Sums with different texts."""
    return [{"question": f"What is {n} plus {n * n}?", "answer": n + n * n, **more} for n in range(1, count + 1)]


def write(path: Path, items: list[Any]) -> Path:
    """Write rows in the format of the path's suffix."""
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(items[0]))
            writer.writeheader()
            writer.writerows(items)
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), path)
    else:
        path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
    return path


def made(path: Path, **settings: Any) -> Dataset:
    return Dataset(validate_config(Dataset.Config, {"path": str(path), **settings}))


# -- files ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".ndjson", ".parquet"])
def test_all_formats_give_the_same_problems_by_split(suffix: str, tmp_path: Path) -> None:
    loaded = made(write(tmp_path / f"sums{suffix}", rows(40))).loaded
    assert loaded.columns == {"problem": "question", "answer": "answer"} and loaded.bad_rows == ()
    found = {q.problem: (split, q.privileged) for split in SPLITS for q in loaded.questions[split]}
    texts = [(f"What is {n} plus {n * n}?", str(n + n * n)) for n in range(1, 41)]
    assert found == {text: (assign_split(canonical(text)), {"answer": answer}) for text, answer in texts}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("question;answer\nHalf of 3, please?;1.5\n", "Half of 3, please?"),
        ("\ufeffquestion,answer\n\n\"One\nplus half?\",1.5\n", "One\nplus half?"),
        ("question\tanswer\nHalf of 3?\t1.5\n", "Half of 3?"),
    ],
)  # fmt: skip
def test_csv_files_of_spreadsheet_programs_are_read(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    (question,) = [q for questions in made(tmp_path / "a.csv").loaded.questions.values() for q in questions]
    assert (question.row, question.problem, question.privileged) == (1, problem, {"answer": "1.5"})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"x", "Only .csv, .jsonl, .ndjson, .parquet, .jsonl.gz files"),
        ("a.csv", b"", "must name each column once|no valid row"),
        ("a.csv", b"q,q\n1,2\n", "must name each column once"),
        ("a.csv", b"question,answer\n\xff,1\n", "not UTF-8 text.*Fix: Save it as UTF-8"),
        ("a.csv", b"text,answer\nWhat?,1\n", r"known to hold the problem.*Fix: Name it: environment.columns"),
        ("a.jsonl", b"", "no valid row"),
        ("a.jsonl", b"[1]\n", "no valid row. Row 1: is not an object"),
        ("a.parquet", b"PAR1", "Parquet file cannot be read"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_clear_error(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        _ = made(tmp_path / name).loaded
    with pytest.raises(DataError, match="no such file"):
        _ = made(tmp_path / "absent.csv").loaded


def test_columns_are_detected_or_named_also_inside_of_objects(tmp_path: Path) -> None:
    item = {
        "id": 3,
        "data": {"q": "What is 1 plus 1?", "texts": ["two", "2"]},
        "level": "easy",
        "note": "",
        "split": "?",
    }
    path = write(tmp_path / "a.jsonl", [item])
    columns = {"problem": "data.q", "answer": "data.texts.1", "split": ""}
    loaded = made(path, columns=columns).loaded
    assert loaded.header == ("id", "data", "level", "note", "split") and loaded.bad_rows == ()
    (question,) = [q for questions in loaded.questions.values() for q in questions]
    assert (question.problem, question.privileged, question.level) == ("What is 1 plus 1?", {"answer": "2"}, "easy")
    assert loaded.preview == ({k: v if isinstance(v, str) else json.dumps(v) for k, v in item.items()},)
    with pytest.raises(DataError, match=r"No row of a.jsonl has the column data.w.*Known: id, data"):
        _ = made(path, columns={**columns, "solution": "data.w"}).loaded


# -- bad rows ------------------------------------------------------------------------------------------------------
BROKEN: list[tuple[Any, str, str]] = [
    ("{broken", "", "is not JSON: Expecting property name"),
    ("[1, 2]", "", "is not an object"),
    ({"answer": 3}, "question", "is empty"),
    ({"question": "  ", "answer": 3}, "question", "is empty"),
    ({"question": "?!", "answer": 3}, "question", "has no word"),
    ({"question": ["What?"], "answer": 3}, "question", "is a list, not a text"),
    ({"question": "x" * 60_000, "answer": 3}, "question", "has 60,000 characters, more than 50,000"),
    ({"question": "How many?", "answer": None}, "answer", "is empty"),
    ({"question": "How many?", "answer": "four"}, "answer", "is not an answer that the checker numeric can read"),
    ({"question": "What is 1 plus 1?", "answer": 3}, "answer", "differs from row 1, the same problem"),
    ({"question": "How much?", "answer": 3, "split": "holdout"}, "split", "is 'holdout', none of train, training, "),
    ({"question": "half \ud83d of a pair", "answer": 3}, "question", "is not valid Unicode text"),
]


def test_bad_rows_are_listed_with_row_column_and_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*rows(20), *(item for item, _, _ in BROKEN)])
    loaded = made(path).loaded
    assert [(bad.row, bad.column) for bad in loaded.bad_rows] == [(21 + i, c) for i, (_, c, _) in enumerate(BROKEN)]
    for bad, (_, _, reason) in zip(loaded.bad_rows, BROKEN, strict=True):
        assert bad.reason.startswith(reason)
    assert (loaded.rows, loaded.valid, sum(map(len, loaded.questions.values()))) == (32, 20, 20)


def test_bad_rows_stop_a_run_unless_they_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*rows(20), {"question": "How many?", "answer": "four"}])
    said = "1 of 21 rows cannot be used. Row 21, answer: is not an answer.*Fix: .*environment.bad_rows: skip"
    for use in (lambda env: env.task("train", 0), Dataset.describe_data, Dataset.constant_baseline):
        with pytest.raises(DataError, match=said):
            use(made(path))
    lenient = made(path, bad_rows="skip")
    assert lenient.task("train", 0).privileged["answer"].isdecimal()
    assert "21 rows" in lenient.describe_data() and "Row 21, answer: is not an answer" in lenient.describe_data()


def test_csv_rows_of_another_length_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('question,answer\nOne?,1\nTwo?,2,3\nThree?\n"Four"?,4\nFive?,5\n')
    reasons = [(bad.row, bad.reason) for bad in made(tmp_path / "a.csv").loaded.bad_rows]
    assert reasons[:2] == [(2, "has 3 fields, the header has 2"), (3, "has 1 fields, the header has 2")]
    assert reasons[2][0] == 4 and reasons[2][1].startswith("is not CSV")


def test_gold_answers_that_their_own_checker_rejects_are_bad_rows(tmp_path: Path) -> None:
    dates = {"question": "Name a day of May.", "answer": "2 June", "pattern": r"\d+ May"}
    loaded = made(write(tmp_path / "a.jsonl", [{**dates, "question": "And?", "answer": "2 May"}, dates]),
                  checker="regex").loaded  # fmt: skip
    (bad,) = loaded.bad_rows
    assert (bad.row, bad.column) == (2, "answer") and bad.reason.startswith("is not accepted by its checker: 2 June")
    program = {"problem": "def solve(n):", "answer": "def solve(n): return n", "tests": [{"input": "1", "output": "2"}]}
    good = {**program, "problem": "Add one. def solve(n):", "answer": "def solve(n): return n + 1"}
    broken = {**program, "problem": "No tests.", "tests": "[}"}
    loaded = made(write(tmp_path / "b.jsonl", [good, program, broken]), checker="unit_tests").loaded
    assert [(bad.row, bad.column) for bad in loaded.bad_rows] == [(2, "answer"), (3, "tests")]
    assert "0 of 1 tests pass" in loaded.bad_rows[0].reason


# -- splits --------------------------------------------------------------------------------------------------------
def test_the_column_of_the_split_is_kept_and_test_problems_win(tmp_path: Path) -> None:
    items = rows(30)
    for i, item in enumerate(items):
        item["split"] = ("train", "dev", "TEST")[i % 3]
    items.append({**items[2], "split": "train"})  # a test problem again
    items.append({**items[0], "question": "what  is 1 PLUS 1?"})  # the same problem in another form
    loaded = made(write(tmp_path / "a.csv", items)).loaded
    assert {split: len(questions) for split, questions in loaded.questions.items()} == dict.fromkeys(SPLITS, 10)
    assert loaded.duplicates == 2 and {q.row % 3 for q in loaded.questions["test"]} == {0}


def test_validation_problems_are_taken_from_training_if_the_file_names_none(tmp_path: Path) -> None:
    items = [{**item, "split": "test" if i < 5 else "train"} for i, item in enumerate(rows(45))]
    sizes = {s: len(q) for s, q in made(write(tmp_path / "a.csv", items)).loaded.questions.items()}
    assert sizes["test"] == 5 and sizes["validation"] > 0 and sum(sizes.values()) == 45
    alone = made(write(tmp_path / "b.csv", [{**item, "split": "train"} for item in rows(5)]))
    with pytest.raises(DataError, match="The test split has no problems"):
        alone.task("test", 0)


def question(text: str, answer: str = "5") -> Question:
    return Question(1, text, canonical(text), {}, {"answer": answer}, "all", None)


def test_near_duplicates_differ_in_a_word_or_share_thirteen_words() -> None:
    test = [question("Tom has 3 apples and buys 2. How many has he?"), question("Capital of France?", "Paris")]
    near = ["Ann has 3 apples and buys 2. How many has he?", "Tom has 3 apples and buys 2 more. How many has he?"]
    other = ["Tom has 4 apples and buys 2. How many has he?", "Ann has 3 apples and gets 2. How many has he?"]
    assert near_duplicates([question(text) for text in near + other], test) == {0, 1}
    assert near_duplicates([question(near[0], "6"), question("Capital of Spain?", "Madrid")], test) == set()
    passage = " ".join(f"word{chr(97 + i)}" for i in range(13))
    held_out = [question(f"{passage}: first question?", "1")]
    assert near_duplicates([question(f"Read {passage} and answer.", "2")], held_out) == {0}
    assert near_duplicates([question(f"{passage[:-1]}x and answer.", "2")], held_out) == set()
    instruction = [question(f"Task {n}: {passage}", str(n)) for n in range(11)]  # in more than 10 problems
    assert near_duplicates(instruction, held_out) == set() and len(near_duplicates(instruction[:10], held_out)) == 10


def test_near_duplicates_are_counted_and_left_out_on_request(tmp_path: Path) -> None:
    items = [{**item, "split": "train"} for item in rows(20)]
    items += [{"question": "So what is 4 plus 16?", "answer": 20, "split": "test"}]
    path = write(tmp_path / "a.csv", items)
    kept, dropped = made(path), made(path, near_duplicates="drop")
    assert kept.loaded.near_duplicates == dropped.loaded.near_duplicates == 1
    sizes = [sum(len(q) for q in env.loaded.questions.values()) for env in (kept, dropped)]
    assert sizes == [21, 20] and "1 near-duplicates of test problems are left out" in dropped.describe_data()


# -- tasks ---------------------------------------------------------------------------------------------------------
def test_an_epoch_of_a_split_has_each_problem_once_and_the_seed_changes_the_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows(30))
    one, other = made(path), made(path, seed=1)
    count = len(one.loaded.questions["train"])
    first, second = ([env.task("train", i).public["problem"] for i in range(count)] for env in (one, other))
    assert len(set(first)) == count and sorted(first) == sorted(second) and first != second


def test_the_constant_baseline_is_the_most_frequent_test_answer(tmp_path: Path) -> None:
    items = [{"question": f"Question {n}?", "answer": "yes" if n < 3 else f"no {n}", "split": "test"} for n in range(5)]
    baseline = made(write(tmp_path / "a.csv", items), checker="exact").constant_baseline()
    assert (baseline.answer, baseline.score) == ("yes", 0.6)


def test_scripted_hints_are_sentences_of_the_solution_without_the_answer(tmp_path: Path) -> None:
    solution = "Add both numbers. The sum is 42. 30 and 12 have no carry!"
    item = {"question": "What is 30 plus 12?", "answer": 42, "solution": solution, "split": "train"}
    env = made(write(tmp_path / "a.jsonl", [item]))
    task, rng = env.task("train", 0), random.Random(0)
    wrong = env.verify(task, "<answer>41</answer>")
    hints = [env.hint(task, [wrong] * turns, rng) for turns in (1, 2, 3)]
    assert hints == ["Add both numbers.", "30 and 12 have no carry!", "30 and 12 have no carry!"]
    false = env.misleading_hint(task, [wrong] * 2, rng)
    assert false not in (solution, hints[1]) and false.endswith(" have no carry!")
    assert env.worked_solution(task) == f"{solution}\n<answer>42</answer>"
    bare = made(write(tmp_path / "b.jsonl", rows(20)))
    assert bare.hint(bare.task("train", 0), [wrong], rng) == "That is not the answer. Check each step again."
    assert "scripted hints have no content" in bare.describe_data()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows(20))
    env = made(path)
    assert env.loaded.rows == 20
    write(path, rows(25))
    assert env.loaded.rows == 25


def test_a_thousand_rows_take_less_than_a_second(tmp_path: Path) -> None:
    rng, words = random.Random(0), [f"word{n}" for n in range(2000)]
    items = [{"question": f"{n} {' '.join(rng.choices(words, k=40))}?", "answer": n} for n in range(1000)]
    env = made(write(tmp_path / "a.csv", items))
    began = time.process_time()
    assert env.loaded.valid == 1000 and time.process_time() - began < 1  # 10,000 in 10 seconds
