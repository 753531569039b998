"""Rows of a file with rollouts, each with its position, or the reason why it is unreadable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from jobs.imports.inspect_logs import HEADER, log_info, read_archive
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".eval", ".json")
Row = tuple[str, JsonObject | str]
"""Position, and the object or the reason why it is unreadable."""


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raises `DataError` if the file is missing or has another type."""
    readers = {".parquet": _parquet, ".eval": read_archive, ".json": _inspect_json}
    if path.suffix not in SUFFIXES:
        raise DataError("The file type is not supported.", value=path.name, known=SUFFIXES)
    if not path.is_file():
        raise DataError("There is no such file.", value=str(path))
    return readers.get(path.suffix, _jsonl)(path)


def _jsonl(path: Path) -> Iterator[Row]:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"line {number}", _parse(line)


def _parse(line: bytes) -> JsonObject | str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return value if isinstance(value, dict) else "no JSON object"


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"The Parquet file cannot be read: {error}.", value=path.name) from error


def _inspect_json(path: Path) -> Iterator[Row]:
    """Yield the samples of an Inspect log in the format `json`."""
    try:
        log = json.loads(path.read_bytes())
        samples = log["samples"]
        header = log_info(log["eval"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError("A .json file must be an Inspect log with `eval` and `samples`.", value=path.name) from error
    for number, sample in enumerate(samples if isinstance(samples, list) else (), 1):
        yield f"sample {number}", {**sample, HEADER: header} if isinstance(sample, dict) else "no object"
