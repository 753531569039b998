"""Summary of a file of questions before a run: columns, counts, bad rows, baseline, and the settings to use it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rl2f_core.environments.data_files import InvalidRow, column_value, scan_records
from rl2f_core.environments.dataset.checkers import RowError
from rl2f_core.environments.dataset.environment import CHECKERS, CheckerName, Dataset
from rl2f_core.environments.dataset.loading import COLUMNS, Loaded, find_columns
from rl2f_core.errors import DataError
from rl2f_core.types import ConstantBaseline, JsonObject

SUGGESTED: tuple[CheckerName, ...] = ("json_fields", "multiple_choice", "numeric")
"""Checkers that `suggest_checker` tries on the answers, in this order."""
TRIED_ROWS = 200
MIN_READABLE = 0.8
"""Fraction of answers that a suggested checker must read."""


class Summary(NamedTuple):
    """What `summarize` finds."""

    loaded: Loaded
    baseline: ConstantBaseline | None
    """None without test problems."""
    settings: JsonObject
    """The environment's settings that differ from the defaults, with the columns in use; bad rows are skipped."""


def summarize(config: Dataset.Config) -> Summary:
    """Read a file and check its gold answers. Raises `DataError` if no row is valid."""
    environment = Dataset(config.model_copy(update={"bad_rows": "skip"}))
    loaded = environment.loaded
    baseline = environment.constant_baseline() if loaded.questions["test"] else None
    unused = {meaning: "" for meaning, names in COLUMNS.items() if not set(names).isdisjoint(loaded.header)}
    settings = {"type": "dataset", "path": config.path, "columns": {**unused, **loaded.columns}}
    chosen = config.model_dump(mode="json", exclude_defaults=True, exclude={*settings, "checker", "bad_rows"})
    if config.llm is not None:
        chosen["llm"] = {"type": config.llm.type, **chosen["llm"]}
    skipped = {"bad_rows": "skip"} if loaded.bad_rows else {}
    return Summary(loaded, baseline, {**settings, "checker": config.checker, **chosen, **skipped})


def read_header(path: Path) -> list[str]:
    """Return the columns of the first rows. Raises `DataError` if the file has no row that is an object."""
    columns = list(dict.fromkeys(key for item in _first_rows(path) for key in item))
    if not columns:
        raise DataError("The file has no rows with columns.", value=path.name)
    return columns


def _first_rows(path: Path) -> list[dict[str, object]]:
    valid = (row for _, row in scan_records(path) if not isinstance(row, InvalidRow))
    return list(itertools.islice(valid, TRIED_ROWS))


def suggest_checker(path: Path, columns: Mapping[str, str]) -> CheckerName:
    """Return the checker that fits the columns or reads most of the first answers; exact if none does."""
    items = _first_rows(path)
    found = find_columns(path, columns, items, read_header(path), ())
    if "tests" in found:
        return "unit_tests"
    if "pattern" in found:
        return "regex"
    answers = [value for item in items if (value := column_value(item, found["answer"])) not in (None, "")]
    for name in SUGGESTED:
        checker = CHECKERS[name](Dataset.Config(checker=name))
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
