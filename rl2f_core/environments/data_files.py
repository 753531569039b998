"""Rows of local data files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rl2f_core.errors import DataError


def read_records(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of a .jsonl or .parquet file as objects. Raises `DataError` naming an invalid row."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(1024):
                    yield from batch.to_pylist()
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise DataError(f"The Parquet file cannot be read: {error}.", value=str(path)) from error
        return
    if path.suffix not in (".jsonl", ".ndjson"):
        raise DataError("Only .jsonl and .parquet files can be read.", value=str(path))
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                item = json.loads(line)
                if not isinstance(item, dict):
                    raise DataError(f"Row {number} of {path.name} is no object.", value=line[:160])
                yield item
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"Row {number} of {path.name} is not JSON: {error}.", value=line[:160]) from error
    except OSError as error:
        raise DataError(f"The file cannot be read: {error.strerror}.", value=str(path)) from error
