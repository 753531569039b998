"""JSONL and Parquet, batch by batch, flushed to disk, with checksums."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from jobs.export.formats import FileType, Format
from rl2f_core.run.directory import sha256

ROW_GROUP = 2000
"""Rows held in memory before they are written as one Parquet row group."""


class RowWriter(Protocol):
    """Takes rows of one file."""

    path: Path

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """End the file and flush it to disk; may be called twice."""
        ...


class JsonlWriter:
    """One JSON object a line, UTF-8."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "w", encoding="utf-8", newline="\n")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows."""
        self._file.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)

    def close(self) -> None:
        """End the file and flush it to disk."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class ParquetWriter:
    """Apache Parquet, zstd, row groups of `ROW_GROUP` rows."""

    def __init__(self, path: Path, format: Format) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self._schema = format.schema()
        self._file = open(path, "wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._held: list[dict[str, Any]] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows."""
        self._held += rows
        while len(self._held) >= ROW_GROUP:
            self._flush(self._held[:ROW_GROUP])
            self._held = self._held[ROW_GROUP:]

    def _flush(self, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        """End the file and flush it to disk."""
        if not self._file.closed:
            if self._held:
                self._flush(self._held)
                self._held = []
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class FormatWriter:
    """All files of one data set type in a folder; files begin with the first row, so an empty type leaves none."""

    def __init__(self, folder: Path, format: Format, files: Sequence[FileType]) -> None:
        self.format = format
        self.rows = 0
        self._folder, self._types = folder, tuple(files)
        self._writers: list[RowWriter] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows to every file."""
        if not rows:
            return
        if not self._writers:
            for kind in self._types:
                path = self._folder / f"{self.format.name}.{kind}"
                self._writers.append(JsonlWriter(path) if kind == "jsonl" else ParquetWriter(path, self.format))
        for writer in self._writers:
            writer.write(rows)
        self.rows += len(rows)

    def close(self) -> None:
        """End all files."""
        for writer in self._writers:
            writer.close()

    def files(self) -> dict[str, dict[str, Any]]:
        """Name → size in bytes and SHA-256 of each closed file."""
        return {w.path.name: {"bytes": w.path.stat().st_size, "sha256": sha256(w.path)} for w in self._writers}

    def __enter__(self) -> FormatWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        for writer in self._writers:  # what went wrong matters more than that the files cannot be ended
            with contextlib.suppress(Exception):
                writer.close()
