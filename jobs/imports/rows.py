"""Rows of a file with rollouts, each with its position, or the reason why it is unreadable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from jobs.imports.inspect_logs import HEADER, log_info, read_archive
from jobs.imports.records import encodable
from rl2f_core.environments.data_files import InvalidRow, scan_records
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".eval", ".json")
Row = tuple[str, JsonObject | str]
"""Position, and the object or the reason why it is unreadable."""


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raises `DataError` if the file is missing or has another type."""
    readers = {".eval": read_archive, ".json": _inspect_json}
    if path.suffix not in SUFFIXES:
        raise DataError("The file type is not supported.", value=path.name, known=SUFFIXES)
    if not path.is_file():
        raise DataError("There is no such file.", value=str(path))
    return readers.get(path.suffix, _records)(path)


def _records(path: Path) -> Iterator[Row]:
    is_parquet = path.suffix == ".parquet"
    for number, row in scan_records(path):
        where = f"{'row' if is_parquet else 'line'} {number}"
        if isinstance(row, InvalidRow):
            yield where, row.reason
        else:
            yield where, row if is_parquet else encodable(row)


def _inspect_json(path: Path) -> Iterator[Row]:
    """Yield the samples of an Inspect log in the format `json`."""
    try:
        log = encodable(json.loads(path.read_bytes()))
        samples = log["samples"]
        header = log_info(log["eval"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError("A .json file must be an Inspect log with `eval` and `samples`.", value=path.name) from error
    for number, sample in enumerate(samples if isinstance(samples, list) else (), 1):
        yield f"sample {number}", {**sample, HEADER: header} if isinstance(sample, dict) else "no object"
