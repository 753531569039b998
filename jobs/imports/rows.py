"""Files with rollouts, and their rows, each with its position, or the reason why it is unreadable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from jobs.imports.inspect_logs import HEADER, log_info, read_archive
from jobs.imports.records import Phase, encodable
from rl2f_core.common.text.integers import whole_number
from rl2f_core.environments.data_files import InvalidRow, scan_records
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet", ".eval", ".json")
"""Endings of the files that can be read, in any case; of files that differ only in it, the first is read."""
Row = tuple[str, JsonObject | str]
"""Position, and the object or the reason why it is unreadable."""
_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation"})
_TRAINING = frozenset({"train", "training", "rollout", "rollouts"})


def find_files(path: Path) -> list[Path]:
    """Return a file itself, or the files with rollouts in a folder and its subfolders, by their numbers.

    `.json` files count only if there are no others, and one of several files that differ only in their ending, such as
    the JSONL and the Parquet file of an export, of which only the type `messages` counts. Raises `DataError` if there
    are none.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if suffix(file) and file.is_file()]
    found = [file for file in found if suffix(file) != ".json"] or found
    if not found:
        raise DataError("The folder contains no file with rollouts.", value=str(path), known=SUFFIXES)
    if (path / "manifest.json").is_file():
        found = [file for file in found if file.name.startswith("messages.")] or found
    found.sort(key=lambda file: SUFFIXES.index(suffix(file)), reverse=True)
    files = {file.with_name(stem(file)): file for file in found}.values()
    return sorted(files, key=lambda file: [whole_number(p, p) for p in re.split(r"(\d+)", file.as_posix())])


def suffix(file: Path) -> str:
    """Return which of `SUFFIXES` a file has; empty for none."""
    return next((ending for ending in SUFFIXES if file.name.lower().endswith(ending)), "")


def stem(file: Path) -> str:
    """Return the name of a file without its suffix."""
    return file.name[: len(file.name) - len(suffix(file))]


def phase_of_path(file: Path, root: Path) -> Phase | None:
    """Return the phase that the name of a file or of a folder up to `root` (of a file: its folder) states."""
    folder = root if root.is_dir() else root.parent
    for name in (stem(file), *(parent.name for parent in file.parents if parent.is_relative_to(folder))):
        words = set(re.findall("[a-z]+", name.lower()))
        if words & _EVALUATION:
            return "evaluation"
        if words & _TRAINING:
            return "train"
    return None


def step_of_path(file: Path) -> int | None:
    """Return the step in the name of a file or its folder, such as `completions_00010` or `step_10`, if any."""
    match = re.fullmatch(r"(?:.*[_-])?(\d{1,9})", stem(file)) or re.search(r"step[_-]?(\d{1,9})$", file.parent.name)
    return int(match[1]) if match else None


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raises `DataError` if the file is missing or has another type."""
    readers = {".eval": read_archive, ".json": _inspect_json}
    if not suffix(path):
        raise DataError("The file type is not supported.", value=path.name, known=SUFFIXES)
    if not path.is_file():
        raise DataError("There is no such file.", value=str(path))
    return readers.get(suffix(path), _records)(path)


def _records(path: Path) -> Iterator[Row]:
    is_parquet = suffix(path) == ".parquet"
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
