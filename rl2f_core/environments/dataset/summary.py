"""Summary of a file of questions before a run: columns, counts, bad rows, baseline, and the settings to use it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl2f_core.environments.data_files import InvalidRow, column_value, find_column, scan_records
from rl2f_core.environments.dataset.config import CheckerName, Config
from rl2f_core.environments.dataset.environment import CHECKERS, Dataset
from rl2f_core.environments.dataset.loading import COLUMNS, Loaded, find_columns, list_bad_rows
from rl2f_core.environments.dataset.row_text import RowError
from rl2f_core.environments.math.sources import split_solution
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, JsonObject

SUGGESTED: tuple[CheckerName, ...] = ("json_fields", "multiple_choice", "numeric")
"""Checkers that `suggest_checker` tries on the answers, in this order."""
TRIED_ROWS = 200
MAX_CHECKED_HINTS = 1_000
"""Problems whose scripted hints are counted, because a comparison of expressions takes milliseconds."""
MIN_READABLE = 0.8
"""Fraction of answers that a suggested checker must read."""


class Summary(NamedTuple):
    """What `summarize` finds."""

    loaded: Loaded
    baseline: ConstantBaseline
    empty_hints: int
    """Number of problems without a sentence for a scripted hint."""
    checked_hints: int
    """Number of problems whose hints were counted, at most `MAX_CHECKED_HINTS`."""
    settings: JsonObject
    """The environment's settings that differ from the defaults, with the columns in use; bad rows are skipped."""


def summarize(config: Config) -> Summary:
    """Read a file and check its gold answers. Raises `DataError` if no row is valid or no problem is for the test."""
    environment = Dataset(config.model_copy(update={"bad_rows": "skip"}))
    loaded = environment.loaded
    if not loaded.questions["test"]:
        sizes = {split: len(questions) for split, questions in loaded.questions.items()}
        raise DataError(
            f"The file has no test problem for evaluation. {list_bad_rows(loaded.bad_rows, 5)}".strip(),
            value=sizes,
            fix="Add rows, give some rows the split `test`, or use no split column: environment.columns: {split: ''}.",
        )
    empty, checked = environment.count_empty_hints(MAX_CHECKED_HINTS)
    unused = {meaning: "" for meaning, names in COLUMNS.items() if find_column(names, loaded.header)}
    settings = {"type": "dataset", "path": config.path, "columns": {**unused, **loaded.columns}}
    chosen = config.model_dump(mode="json", exclude_defaults=True, exclude={*settings, "checker", "bad_rows"})
    if config.llm is not None:
        chosen["llm"] = {"type": config.llm.type, **chosen["llm"]}
    skipped = {"bad_rows": "skip"} if loaded.bad_rows else {}
    return Summary(
        loaded,
        environment.constant_baseline(),
        empty,
        checked,
        {**settings, "checker": config.checker, **chosen, **skipped},
    )


def read_header(path: Path) -> list[str]:
    """Return the columns of the first rows. Raises `DataError` if the file has no row that is an object."""
    columns = list(dict.fromkeys(key for item in _first_rows(path) for key in item))
    if not columns:
        raise DataError("The file has no rows with columns.", value=path.name)
    return columns


def _first_rows(path: Path) -> list[dict[str, object]]:
    valid = (row for _, row in scan_records(path) if not isinstance(row, InvalidRow))
    return list(itertools.islice(valid, TRIED_ROWS))


def _answer(item: Mapping[str, object], columns: Mapping[str, str]) -> object:
    value = column_value(item, columns["answer"])
    return split_solution(value)[0] if isinstance(value, str) else value


def suggest_checker(path: Path, columns: Mapping[str, str]) -> CheckerName:
    """Return the checker that fits the columns or reads most of the first answers; exact if none does."""
    items = _first_rows(path)
    found = find_columns(path, columns, items, read_header(path), ())
    if "tests" in found:
        return "unit_tests"
    if "pattern" in found:
        return "regex"
    if "choices" in found:
        return "multiple_choice"
    answers = [value for item in items if (value := _answer(item, found)) not in (None, "")]
    for name in SUGGESTED:
        checker = CHECKERS[name](Config(checker=name))
        read = 0
        for answer in answers:
            try:
                checker.read("", answer, {})
                read += 1
            except RowError:
                continue
        if answers and read >= MIN_READABLE * len(answers):
            return name
    return "exact"
