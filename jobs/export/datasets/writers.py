"""Write JSONL and Parquet files in batches, flushed to disk, with checksums."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from jobs.export.datasets.formats import FileType, Format
from rl2f_core.common.file_io import sha256
from rl2f_core.types import JsonObject

ROW_GROUP = 2000
"""Number of buffered rows that become one Parquet row group."""


class _JsonlWriter:
    """One JSON object per line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, rows: Sequence[JsonObject]) -> None:
        for row in rows:
            self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def finish(self) -> None:
        """All rows are written already."""


class _ParquetWriter:
    """Apache Parquet with zstd compression."""

    def __init__(self, file: BinaryIO, format: Format) -> None:
        import pyarrow.parquet as pq

        self._schema = format.schema()
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._buffer: list[JsonObject] = []

    def write(self, rows: Sequence[JsonObject]) -> None:
        self._buffer += rows
        while len(self._buffer) >= ROW_GROUP:
            self._write_row_group(self._buffer[:ROW_GROUP])
            self._buffer = self._buffer[ROW_GROUP:]

    def _write_row_group(self, rows: list[JsonObject]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))

    def finish(self) -> None:
        if self._buffer:
            self._write_row_group(self._buffer)
        self._writer.close()


class FormatWriter:
    """All files of one dataset type; they are created with the first row, so an empty type has none."""

    def __init__(self, folder: Path, format: Format, files: Sequence[FileType]) -> None:
        self.rows = 0
        self._format = format
        self._paths = [folder / f"{format.name}.{type}" for type in files]
        self._files: list[BinaryIO] = []
        self._writers: list[_JsonlWriter | _ParquetWriter] = []

    def write(self, rows: Sequence[JsonObject]) -> None:
        """Append rows to every file."""
        if not rows:
            return
        if not self._writers:
            for path in self._paths:
                file = open(path, "wb")
                self._files.append(file)
                is_jsonl = path.suffix == ".jsonl"
                self._writers.append(_JsonlWriter(file) if is_jsonl else _ParquetWriter(file, self._format))
        for writer in self._writers:
            writer.write(rows)
        self.rows += len(rows)

    def files(self) -> JsonObject:
        """Return size in bytes and SHA-256 of each closed file, by name."""
        paths = self._paths if self.rows else []
        return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths}

    def __enter__(self) -> FormatWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer, file in zip(self._writers, self._files, strict=False):
            with contextlib.nullcontext() if kind is None else contextlib.suppress(Exception), file:
                writer.finish()
                file.flush()
                os.fsync(file.fileno())
