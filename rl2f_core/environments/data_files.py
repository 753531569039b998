"""Rows of local data files: CSV, JSONL and Parquet."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from rl2f_core.common.file_io import RepeatedKeyError, unique_keys
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import DataError

SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet", ".jsonl.gz")
"""Endings of the files that can be read."""


SURROGATE = re.compile("[\ud800-\udfff]")
_SEPARATOR = re.compile(r"\"?sep=([^\"\r\n])\"?\r?\n", re.IGNORECASE)
"""First line by which spreadsheet programs name the separator."""


class InvalidRow(NamedTuple):
    """A row that is not an object."""

    reason: str
    """What is wrong, in words that follow `Row 3 of FILE`."""
    text: str


def read_records(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of a file as objects. Raises `DataError` naming an invalid row."""
    for number, row in scan_records(path):
        if isinstance(row, InvalidRow):
            raise DataError(f"Row {number} of {path.name} {row.reason}.", value=row.text)
        yield row


def scan_records(path: Path) -> Iterator[tuple[int, dict[str, object] | InvalidRow]]:
    """Yield number and object of each row; an `InvalidRow` in place of one that is not an object.

    Row 1 is the first line of a JSONL file, and the first row after the header of a CSV file. Raises `DataError` if the
    file as a whole cannot be read.
    """
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"Only {', '.join(SUFFIXES)} files can be read.", value=str(path))
    try:
        if name.endswith(".parquet"):
            yield from _scan_parquet(path)
        elif name.endswith(".csv"):
            with open(path, encoding="utf-8-sig", newline="") as file:
                yield from _scan_csv(path, file)
        else:
            with (gzip.open if name.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
                yield from _scan_jsonl(path, file)
    except UnicodeDecodeError as error:
        raise DataError("The file is not UTF-8 text.", value=str(path), fix="Save it as UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"The file cannot be read: {reason}.", value=str(path)) from error


def stamp(source: str) -> tuple[str, int, int]:
    """Return a path with the file's modification time and size, to reload a changed file; 0 without a file."""
    path = Path(source).expanduser()
    info = path.stat() if path.is_file() else None
    return (source, 0, 0) if info is None else (source, info.st_mtime_ns, info.st_size)


def find_column(names: Sequence[str], header: Sequence[str]) -> str:
    """Return the first column that has one of the names, preferably in the same case; empty if there is none."""
    folded = {column.casefold(): column for column in reversed(header)}
    return next((name if name in header else folded[name] for name in names if name in folded), "")


def column_value(item: object, path: str) -> object:
    """Return the value of a row at a column, or at a path such as `a.0.b` in lists and objects; None without one."""
    if isinstance(item, Mapping) and path in item:
        return item[path]
    for key in path.split("."):
        if isinstance(item, Mapping):
            item = item.get(key)
        elif isinstance(item, Sequence) and not isinstance(item, str) and whole_number(key, len(item)) < len(item):
            item = item[int(key)]
        else:
            return None
    return item


def _scan_jsonl(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, object] | InvalidRow]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        if number == 1 and re.match(r"\s*\[\s*(?:\{|$)", line):
            raise DataError(
                f"{path.name} is a JSON array, not one object per line.",
                value=line[:160],
                fix="Write each object in a line of its own, e.g. with `jq -c '.[]'`.",
            )
        try:
            item = json.loads(line, object_pairs_hook=unique_keys)
        except RepeatedKeyError as error:
            yield number, InvalidRow(str(error), line[:160])
            continue
        except (ValueError, RecursionError) as error:
            yield number, InvalidRow(f"is not JSON: {error}", line[:160])
            continue
        if not isinstance(item, dict):
            kind = " but a JSON array" if isinstance(item, list) else ""
            yield number, InvalidRow(f"is not an object{kind}", line[:160])
        elif any(SURROGATE.search(key) for key in item):
            yield number, InvalidRow("has a column whose name is not valid Unicode text", line[:160])
        else:
            yield number, item


def _scan_csv(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, object] | InvalidRow]]:
    """Read the rows of a CSV file.

    The separator is that of a first line `sep=;`, or the most frequent one of comma, semicolon and tab. A column
    without a name is left out if it is the first (an index) or empty.
    """
    first = file.readline()
    named = _SEPARATOR.fullmatch(first)
    if named is None:
        file.seek(0)
    reader = csv.reader(file, delimiter=named[1] if named else max(",;\t", key=first.count), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"The header of the CSV file cannot be read: {error}.", value=first[:160]) from error
    named_columns = [name for name in header if name]
    if not named_columns or len(set(named_columns)) < len(named_columns):
        raise DataError(
            f"The first row of {path.name} must name each column once.", value=header, fix="Add or correct the header."
        )
    number = 0
    while True:
        number += 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield number, InvalidRow(f"is not CSV: {error}", "")
            continue
        if fields is None:
            return
        if not fields:
            number -= 1  # an empty line
        elif len(fields) != len(header):
            yield number, InvalidRow(f"has {len(fields)} fields, the header has {len(header)}", ",".join(fields)[:160])
        elif any(field.strip() and not name for name, field in [*zip(header, fields, strict=True)][1:]):
            yield number, InvalidRow("has a value in a column without a name", ",".join(fields)[:160])
        else:
            yield number, {name: field for name, field in zip(header, fields, strict=True) if name}


def _scan_parquet(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"The Parquet file cannot be read: {error}.", value=str(path)) from error
