"""Sources of math problems: data sets of the Hugging Face hub by name, and local CSV, JSONL or Parquet files.

`HUB` lists the data sets and their columns. Downloads are cached under `RL2F_HOME`; a file is written atomically.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rl2f_core.common.paths import MATH_SAMPLE
from rl2f_core.environments.data_files import column_value, find_column, read_records
from rl2f_core.errors import DataError

_HASHES = re.compile(r"\n?#{3,4}\s*(?P<answer>[^\n]+)\s*$")
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_DAPO = re.compile(
    r"\s*(?:Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.)?\s*(?P<problem>.*?)\s*"
    r'(?:Remember to put your answer on its own line after "Answer:"\.)?\s*',
    re.DOTALL,
)


class Row(NamedTuple):
    """One problem of a source."""

    number: int
    """1-based position in the source."""
    problem: str
    answer: str
    solution: str | None
    level: str


class Columns(NamedTuple):
    """Paths of the values in a row; `a.0.b` selects from lists and objects."""

    problem: str
    answer: str
    solution: str | None = None
    level: str | None = None


class Hub(NamedTuple):
    """A data set of the hub."""

    id: str
    columns: Columns
    splits: tuple[str, ...] = ("train",)
    """Splits to read; the last of two is the test split."""
    config: str | None = None
    clean: Callable[[Row], Row] | None = None
    """Removes instructions from problems, or separates answer and solution."""


def split_solution(text: str) -> tuple[str, str | None]:
    """Split the answer after `####` from the worked solution, and remove calculator annotations."""
    match = _HASHES.search(text)
    if match is None:
        return text, None
    return match["answer"].strip(), _CALCULATOR.sub("", text[: match.start()]).strip() or None


def _gsm8k(row: Row) -> Row:
    answer, solution = split_solution(row.answer)
    return row._replace(answer=answer if _HASHES.search(row.answer) else "", solution=solution)


def _dapo(row: Row) -> Row:
    """Remove the instruction around the problem."""
    match = _DAPO.fullmatch(row.problem)
    return row if match is None else row._replace(problem=match["problem"])


HUB: dict[str, Hub] = {
    "omni_math": Hub("KbsdJames/Omni-MATH", Columns("problem", "answer", "solution", "difficulty"), ("test",)),
    "deepmath": Hub("zwhe99/DeepMath-103K", Columns("question", "final_answer", "r1_solution_1", "difficulty")),
    "dapo": Hub(
        "BytedTsinghua-SIA/DAPO-Math-17k", Columns("prompt.0.content", "reward_model.ground_truth"), clean=_dapo
    ),
    "math500": Hub("HuggingFaceH4/MATH-500", Columns("problem", "answer", "solution", "level"), ("test",)),
    "aime": Hub("AI-MO/aimo-validation-aime", Columns("problem", "answer", "solution")),
    "aime_2024": Hub("HuggingFaceH4/aime_2024", Columns("problem", "answer", "solution", "year")),
    "gsm8k": Hub("openai/gsm8k", Columns("question", "answer"), ("train", "test"), "main", _gsm8k),
}
"""Known data sets. DAPO repeats each of its problems about a hundred times; the loader removes duplicates."""
_DETECTED = {
    "problem": ("problem", "question", "prompt"),
    "answer": ("answer", "final_answer", "gold"),
    "solution": ("solution", "worked_solution", "r1_solution_1"),
    "level": ("level", "difficulty", "year"),
}
"""Column names that are detected, in order of preference."""


def known() -> list[str]:
    """Return the names of sources that are not files."""
    return ["sample", *HUB]


def rows(source: str, columns: Mapping[str, str] | None = None, split: str | None = None) -> list[Row]:
    """Return all problems of a source, in order.

    Args:
        source: A name of `known`, or the path of a .csv, .jsonl or .parquet file, which may have the layout of a
            hub data set.
        columns: Columns of problem, answer, solution and level; None detects them.
        split: Split of a hub data set; None reads all.

    Raises `DataError` with the row for a missing column, a value of the wrong type, or an empty problem or answer.
    """
    if source in HUB:
        hub = HUB[source]
        splits = hub.splits if split is None else (split,)
        problems = [row for part in splits for row in _read(_download(source, hub, part), hub.columns, hub.clean)]
        return [row._replace(number=i) for i, row in enumerate(problems, 1)]
    path = MATH_SAMPLE if source == "sample" else Path(source).expanduser()
    if not path.is_file():
        raise DataError(
            "There is no such data set or file.",
            value=source,
            known=known(),
            fix="Give one of the names, or the path of a .csv, .jsonl or .parquet file.",
        )
    return _read(path, _check_columns(columns), None)


def has_test_split(source: str) -> bool:
    """Return whether a source has a test split."""
    return source in HUB and len(HUB[source].splits) > 1


def _check_columns(columns: Mapping[str, str] | None) -> Columns | None:
    if not columns:
        return None
    unknown = sorted(set(columns) - set(Columns._fields))
    if unknown or not {"problem", "answer"} <= set(columns):
        raise DataError(
            "`columns` names the columns of a file: problem and answer at least.",
            value=dict(columns),
            known=Columns._fields,
            fix="E.g. {problem: question, answer: final_answer}.",
        )
    return Columns(**columns)


def _read(path: Path, columns: Columns | None, clean: Callable[[Row], Row] | None) -> list[Row]:
    problems: list[Row] = []
    for number, item in enumerate(read_records(path), 1):
        if columns is None:
            columns, clean = _detect_columns(path, item)
        row = _row(path, number, item, columns)
        row = row if clean is None else clean(row)
        for name in ("problem", "answer"):
            if not getattr(row, name).strip():
                raise DataError(
                    f"Row {number} of {path.name} has an empty {name}.",
                    value=json.dumps(item, ensure_ascii=False, default=str)[:160],
                    fix="Correct or delete the row.",
                )
        problems.append(row)
    if not problems:
        raise DataError("The file holds no problems.", value=str(path))
    return problems


def _detect_columns(path: Path, item: Mapping[str, object]) -> tuple[Columns, Callable[[Row], Row] | None]:
    """Return the columns of a file by its first row: those of a hub data set, or common names."""
    for hub in HUB.values():
        problem, answer = (column_value(item, path) for path in (hub.columns.problem, hub.columns.answer))
        if hub.clean is not None and problem is not None and answer is not None:
            probe = hub.clean(Row(1, str(problem), str(answer), None, ""))
            if "." in hub.columns.problem or (probe.answer and probe.solution):
                return hub.columns, hub.clean
    detected: dict[str, str] = {}
    for column, names in _DETECTED.items():
        name = find_column(names, [key for key, value in item.items() if value is not None])
        if name:
            detected[column] = name
        elif column in ("problem", "answer"):
            raise DataError(
                f"No column of {path.name} is known to hold the {column}.",
                value=sorted(item),
                known=names,
                fix="Name it, e.g. columns: {problem: question, answer: final_answer}.",
            )
    return Columns(**detected), None


def _row(path: Path, number: int, item: Mapping[str, object], columns: Columns) -> Row:
    texts: dict[str, str | None] = {}
    for name, column in columns._asdict().items():
        value = None if column is None else column_value(item, column)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise DataError(
                f"Row {number} of {path.name}: {name} (column {column}) is neither text nor a number.", value=value
            )
        if value is None and name in ("problem", "answer"):
            raise DataError(
                f"Row {number} of {path.name} has no column {column}, which holds the {name}.",
                value=sorted(item),
                fix="Correct the row, or name another column.",
            )
        texts[name] = None if value is None else str(value)
    level = texts["level"]
    return Row(number, texts["problem"] or "", texts["answer"] or "", texts["solution"], level or "all")


def _download(name: str, hub: Hub, split: str) -> Path:
    """Return the cached file of a hub data set's split; download it if it is missing.

    Raises `DataError` if the download fails, without leaving a partial file.
    """
    from rl2f_core.common.file_io import write_atomically
    from rl2f_core.models.store.store import cache_dir

    cached = cache_dir() / "datasets" / f"{name}-{split}.jsonl"
    if cached.is_file():
        return cached
    scratch = tempfile.mkdtemp(prefix="rl2f-dataset-")
    try:
        import datasets

        data = datasets.load_dataset(hub.id, hub.config, split=split, cache_dir=scratch)
        needed = {path.split(".")[0] for path in hub.columns if path is not None}
        data = data.select_columns([column for column in data.column_names if column in needed])
        lines = list(dict.fromkeys(json.dumps(item, ensure_ascii=False) for item in data))  # DAPO repeats its rows
    except Exception as error:  # the hub's client raises many types
        raise DataError(
            f"The data set {hub.id} is not on this machine and cannot be fetched: {type(error).__name__}.",
            value=name,
            fix=f"Connect to the network, or give the path of a .jsonl or .parquet copy, or put one at {cached}.",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_atomically(cached, "\n".join(lines) + "\n")
    return cached
