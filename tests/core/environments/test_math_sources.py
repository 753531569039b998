"""Problems from data sets and files: column layouts, errors with row numbers, splits, duplicates, decontamination."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl2f_core.environments.math import sources as sources
from rl2f_core.environments.math.answer_text import canonical
from rl2f_core.environments.math.decontamination import contaminated, distinct, ngrams
from rl2f_core.environments.math.environment import Math
from rl2f_core.errors import ConfigError, DataError

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 6 x 7?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
LAYOUTS: dict[str, tuple[dict[str, Any], sources.Row]] = {
    "omni_math": (
        {"domain": ["Algebra"], "difficulty": 4.5, "problem": "P?", "solution": "S.", "answer": "7", "source": "x"},
        sources.Row(1, "P?", "7", "S.", "4.5"),
    ),
    "deepmath": (
        {"question": "P?", "final_answer": "7", "difficulty": 6.0, "topic": "T", "r1_solution_1": "S."},
        sources.Row(1, "P?", "7", "S.", "6.0"),
    ),
    "dapo": (
        {"data_source": "math_dapo", "prompt": [{"content": DAPO, "role": "user"}], "ability": "MATH",
         "reward_model": {"ground_truth": "42", "style": "rule"}, "extra_info": {"index": "a"}},
        sources.Row(1, "What is 6 x 7?", "42", None, "all"),
    ),
    "math500": (
        {"problem": "P?", "solution": "S.", "answer": r"\frac{1}{2}", "subject": "Algebra", "level": 3,
         "unique_id": "a"},
        sources.Row(1, "P?", r"\frac{1}{2}", "S.", "3"),
    ),
    "aime": (
        {"id": 0, "problem": "P?", "solution": "S.", "answer": "204", "url": "u"},
        sources.Row(1, "P?", "204", "S.", "all"),
    ),
    "aime_2024": (
        {"id": 60, "problem": "P?", "solution": "S.", "answer": "204", "url": "u", "year": 2024},
        sources.Row(1, "P?", "204", "S.", "2024"),
    ),
    "gsm8k": (
        {"question": "P?", "answer": "He has 3+4=<<3+4=7>>7 pens.\n#### 7"},
        sources.Row(1, "P?", "7", "He has 3+4=7 pens.", "all"),
    ),
}  # fmt: skip


def written(path: Path, *items: object) -> str:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


@pytest.mark.parametrize("name", sources.HUB)
def test_a_file_in_the_layout_of_a_hub_data_set_is_read_like_it(name: str, tmp_path: Path, monkeypatch) -> None:
    item, row = LAYOUTS[name]
    assert sources.rows(written(tmp_path / "a.jsonl", item)) == [row]
    monkeypatch.setenv("RL2F_HOME", str(tmp_path))
    split = sources.HUB[name].splits[-1]
    (tmp_path / "datasets").mkdir()
    written(tmp_path / "datasets" / f"{name}-{split}.jsonl", item)
    assert sources.rows(name, split=split) == [row]


def test_a_parquet_file_is_read_with_nested_columns(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    item, row = LAYOUTS["dapo"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([item, item]), tmp_path / "a.parquet")
    assert sources.rows(str(tmp_path / "a.parquet")) == [row, row._replace(number=2)]
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"Parquet file cannot be read"):
        sources.rows(str(tmp_path / "b.parquet"))


@pytest.mark.parametrize(
    ("items", "columns", "said"),
    [
        ([{"text": "P?", "answer": "1"}], None, "No column of a.jsonl is known to hold the problem.*Fix: Name it"),
        ([{"problem": "P?", "result": "1"}], None, "No column of a.jsonl is known to hold the answer"),
        ([{"problem": "P?", "answer": "1"}, {"problem": "Q?"}], None, "Row 2 of a.jsonl has no column answer"),
        ([{"problem": "", "answer": "1"}], None, "Row 1 of a.jsonl has an empty problem"),
        ([{"problem": "P?", "answer": [1]}], None, "answer .column answer. is neither text nor a number"),
        ([{"problem": "P?", "answer": "1"}, 3], None, "Row 2 of a.jsonl is not an object"),
        ([{"q": "P?", "a": "1"}], {"problem": "q", "answer": "b"}, "Row 1 of a.jsonl has no column b"),
        ([{"q": "P?", "a": "1"}], {"problem": "q"}, "names the columns of a file"),
        ([{"q": "P?", "a": "1"}], {"problem": "q", "answer": "a", "hint": "h"}, "names the columns of a file"),
        ([], None, "holds no problems"),
        ([LAYOUTS["gsm8k"][0], {"question": "Q?", "answer": "no hashes"}], None, "Row 2 of a.jsonl has an empty a"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_an_error_with_its_row(items, columns, said, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        sources.rows(written(tmp_path / "a.jsonl", *items), columns)


def test_broken_lines_wrong_endings_and_absent_files_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "P?", "answer": "1"}\n{"problem":\n')
    with pytest.raises(DataError, match=r"Row 2 of a.jsonl is not JSON"):
        sources.rows(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_text("problem,answer\n")
    with pytest.raises(DataError, match=r"Only .csv, .jsonl, .ndjson, .parquet"):
        sources.rows(str(tmp_path / "a.txt"))
    with pytest.raises(DataError, match=r"no such data set or file.*Known: sample, omni_math"):
        sources.rows("no_such_set")


def test_a_data_set_that_cannot_be_fetched_is_a_clear_error_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setenv("RL2F_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=refused))
    with pytest.raises(DataError, match=r"HuggingFaceH4/MATH-500 is not on this machine.*Fix: Connect"):
        Math(Math.Config(source="math500")).task("train", 0)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.slow
def test_what_is_fetched_is_kept_once_and_whole(tmp_path: Path, monkeypatch) -> None:
    import datasets

    item = LAYOUTS["dapo"][0]
    calls: list[object] = []

    def given(*args: object, **kwargs: object) -> datasets.Dataset:
        calls.append((args, kwargs["split"]))
        return datasets.Dataset.from_list([item] * 3)

    monkeypatch.setenv("RL2F_HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", given)
    assert sources.rows("dapo") == [LAYOUTS["dapo"][1]] == sources.rows("dapo")
    assert calls == [(("BytedTsinghua-SIA/DAPO-Math-17k", None), "train")]
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["dapo-train.jsonl"]


# -- splits and decontamination ------------------------------------------------------------------------------------
LONG = "A train leaves the station at noon and goes sixty miles an hour to the next town"


def test_normalized_text_drops_case_spacing_punctuation_and_dress() -> None:
    assert canonical("What is  $1+2$ ?") == canonical("what is 1 + 2") == "what is 1 + 2"
    assert canonical("What is 1 - 2?") != canonical("What is 1 + 2?")


def test_a_run_of_thirteen_words_contaminates_and_twelve_do_not() -> None:
    words = LONG.lower().split()
    assert len(words) == 17 and len(ngrams(LONG, 13)) == 5
    shares = " ".join(["One", "day", *words[:13], "is", "far", "away"])
    almost = " ".join(["One", "day", *words[:12], "quickly", *words[13:]])
    train = [LONG.upper(), shares, almost, "What is 1 + 1?"]
    found = contaminated(train, [LONG])
    assert found.same == {0} and found.overlapping == {1}
    assert contaminated(train, [LONG], n=12).overlapping == {1, 2}
    assert contaminated(train, [LONG], n=0) == (frozenset({0}), frozenset())
    assert contaminated(train, []) == (frozenset(), frozenset())
    assert contaminated(["What is 2 + 3?", "What is 2 + 4?"], ["what is 2+3?"], n=0).same == {0}
    assert distinct(["A b?", "c", "a  B?", "C!", "C"]) == [0, 1, 3]


def test_training_problems_that_are_in_the_test_source_are_dropped_and_counted(tmp_path: Path) -> None:
    words = LONG.split()
    near = " ".join([*words[:14], "slowly"])
    train = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    train += [{"problem": "what is 3 +  1?", "answer": "4"}, {"problem": LONG.title(), "answer": "5"},
              {"problem": near, "answer": "6"}, {"problem": "Prove it.", "answer": "x+1"},
              {"problem": "Say why.", "answer": "because all of them are even"}]  # fmt: skip
    test = [{"problem": LONG, "answer": "5"}, {"problem": "WHAT IS 7 + 1?", "answer": "8"}]
    config = Math.Config(source=written(tmp_path / "a.jsonl", *train), test_source=written(tmp_path / "b.jsonl", *test))
    held = Math(config).loaded
    assert held.counts._asdict() == {
        "rows": 47, "unreadable": 1, "no_number": 1, "duplicates": 1, "same_as_test": 2, "overlapping_test": 1,
        "train": len(held.problems["train"]), "validation": len(held.problems["validation"]), "test": 2,
    }  # fmt: skip
    assert held.counts.train + held.counts.validation == 39 and held.counts.validation > 0
    sizes = f"{held.counts.train} problems for training, {held.counts.validation} for validation, 2 for the test"
    assert Math(config).describe_data() == (
        f"{config.source}: 47 rows, {sizes}; left out: 1 without a gold answer that can be read, 1 whose answer is "
        "not a number, 1 that repeat a problem, 2 for training that are test problems, 1 for training that share a run "
        "of words with a test problem."
    )
    keys = [{canonical(p.text) for p in held.problems[split]} for split in ("train", "validation", "test")]
    assert keys[0].isdisjoint(keys[1]) and keys[0].isdisjoint(keys[2]) and keys[1].isdisjoint(keys[2])


def test_a_stream_walks_through_its_split_before_it_repeats() -> None:
    environment = Math(Math.Config())
    count = environment.loaded.counts.validation
    asked = [environment.task("validation", i).public["problem"] for i in range(2 * count)]
    assert len(set(asked[:count])) == len(set(asked[count:])) == count and asked[:count] != asked[count:]


def test_the_worked_solution_ends_in_an_answer_that_the_verifier_accepts(tmp_path: Path) -> None:
    items = [LAYOUTS["gsm8k"][0] | {"question": f"Question {n}?"} for n in range(20)]
    forms: list[Any] = ["tags", "boxed", "either"]
    for form in forms:
        environment = Math(Math.Config(source=written(tmp_path / "a.jsonl", *items), answer_form=form))
        task = environment.task("train", 0)
        told = environment.worked_solution(task)
        assert told is not None and "He has 3+4=7 pens." in told and "<<" not in told and "####" not in told
        assert environment.verify(task, told).correct, form


def test_answers_that_are_no_numbers_need_a_model_teacher() -> None:
    from rl2f_core.config.loading import parse_config

    def run_config(**changes: Any) -> None:
        parse_config({"stages": [{"name": "s", "method": "sft", "steps": 1}], **changes})

    everything = {"type": "math", "answers": "all"}
    with pytest.raises(ConfigError, match=r"hints on numbers alone.*set teacher to .type: llm"):
        run_config(environment=everything)
    with pytest.raises(ConfigError, match="leave misleading out"):
        run_config(environment=everything, teacher="llm")
    with pytest.raises(ConfigError, match="leave scripted out"):
        run_config(environment=everything, teacher="llm", evaluation={"conditions": ["hints", "scripted"]})
    llm = {"type": "llm", "sees": {"solution": True}}
    run_config(environment=everything, teacher=llm, evaluation={"conditions": ["hints", "contentless"]})
    with pytest.raises(ConfigError, match="columns are those of a file"):
        run_config(environment={"type": "math", "source": "gsm8k", "columns": {"problem": "a", "answer": "b"}})
