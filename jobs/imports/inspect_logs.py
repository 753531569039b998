"""Logs of Inspect: `.eval` files, read without the package `inspect_ai`.

Read against log version 2 of inspect_ai 0.3.285: a ZIP archive with `header.json` and `samples/ID_epoch_N.json`. Its
entries are compressed with Zstandard (method 93), which `zipfile` supports from Python 3.14 on; pyarrow decompresses
them here. Logs in the format `json` have the same objects in one file. Scores are numbers as Inspect's
`value_to_float` maps them, and others are unknown. Only the first score counts; if it has several values, none does.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from jobs.imports.records import (
    ImportedRollout,
    RolloutFormat,
    RowError,
    answers,
    as_messages,
    as_number,
    as_score,
    encodable,
    split_prompt,
)
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

ZSTANDARD = 93
MAX_ENTRY_BYTES = 512_000_000
"""Largest decompressed entry of an archive."""
UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, ValueError, OSError, EOFError, RuntimeError
)  # fmt: skip
"""Errors of damaged and encrypted archives and entries; a `RuntimeError` includes too deep and unsupported ones."""
VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Score of Inspect's letters: correct, partial, incorrect, no answer."""
HEADER = "eval_header"
"""Key under which a sample of a log has `log_info`."""


class InspectLog(RolloutFormat):
    """Samples of Inspect."""

    name = "inspect"
    title = "Inspect logs (.eval, or .json): samples with messages, target, scores"

    def recognizes(self, keys: frozenset[str]) -> bool:
        """Return whether the rows are samples of a log."""
        return HEADER in keys or keys >= {"messages", "target", "scores"}

    def rollouts(self, row: JsonObject) -> list[ImportedRollout]:
        """Return the rollout of a sample; the prompt ends before the first generated message."""
        info, error, recorded = log_info(row.get(HEADER)), row.get("error"), row.get("messages")
        if not isinstance(recorded, list):
            raise RowError("messages: no list of messages")
        messages = as_messages(recorded, "messages", "user")
        generated = (k for k, m in enumerate(recorded) if m.get("source") == "generate" and m["role"] == "assistant")
        prompt, completion = split_prompt(messages, next(generated, None))
        scores = row.get("scores") or {}
        if not isinstance(scores, dict):
            raise RowError("scores: no object")
        by_scorer = {name: _rewards(name, score) for name, score in scores.items()}
        rewards = {name: value for values in by_scorer.values() for name, value in values.items()}
        counted = next(iter(by_scorer.values()), {})
        first = next(iter(scores.values()), None)
        parsed = first.get("answer") if isinstance(first, dict) else None
        return [
            ImportedRollout(
                prompt=prompt,
                completion=completion,
                rewards=rewards,
                weights={name: float(len(counted) == 1 and name in counted) for name in rewards},
                parsed=parsed if isinstance(parsed, str) else None,
                **answers(row.get("target")),
                phase="evaluation",
                model=info["model"],
                level=info["task"],
                truncated=_stop_reason(row) in ("max_tokens", "model_length"),
                error=str(error.get("message")) if isinstance(error, dict) else None,
            )
        ]


def _rewards(name: str, score: object) -> dict[str, float | None]:
    """Return the value of a scorer as a number, or its values, as `name` or `name.key`."""
    value = score.get("value") if isinstance(score, dict) else score
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: _number(value, name)}
    return {f"{name}.{key}": _number(number, f"{name}.{key}") for key, number in value.items()}


def _number(value: object, where: str) -> float | None:
    if isinstance(value, str) and value in VALUES:
        return VALUES[value]
    if isinstance(value, int | float):
        return as_number(value, f"scores.{where}")
    with contextlib.suppress(ValueError):
        return as_score(value)
    return None


def log_info(evaluation: object) -> dict[str, str]:
    """Return model and task of a log's `eval` object."""
    data = evaluation if isinstance(evaluation, dict) else {}
    return {name: str(data.get(name) or "") for name in ("model", "task")}


def _stop_reason(row: JsonObject) -> str:
    output = row.get("output")
    choices = output.get("choices") if isinstance(output, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return str(first.get("stop_reason")) if isinstance(first, dict) else ""


def read_archive(path: Path) -> Iterator[tuple[str, JsonObject | str]]:
    """Yield the name of each sample of an `.eval` file and its object with the header, or why it is unreadable.

    Raises `DataError` if the file is not an archive, or contains no log.
    """
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            entries = dict.fromkeys(archive.namelist())  # a name may occur twice; the last entry counts
            names = [name for name in entries if name.startswith("samples/") and name.endswith(".json")]
            if "header.json" not in entries:
                raise DataError(
                    "The log has no header: its evaluation has not ended.", value=path.name, fix="Wait for its end."
                )
            header = log_info(_entry(archive, file, "header.json").get("eval"))
            for name in names:
                try:
                    yield name, {**_entry(archive, file, name), HEADER: header}
                except UNREADABLE as error:
                    yield name, f"unreadable: {error}"
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"The Inspect log cannot be read: {error}.", value=path.name) from error


def _entry(archive: zipfile.ZipFile, file: BinaryIO, name: str) -> JsonObject:
    """Return the object of one entry. Raises `ValueError` if it is too large, damaged or no object."""
    info = archive.getinfo(name)
    if info.file_size > MAX_ENTRY_BYTES:
        raise ValueError(f"{name} has {info.file_size} bytes, more than {MAX_ENTRY_BYTES}")
    if info.compress_type != ZSTANDARD:
        data = archive.read(info)
    else:
        import pyarrow

        file.seek(info.header_offset)
        name_size, extra_size = struct.unpack("<HH", file.read(30)[26:30])
        file.seek(name_size + extra_size, 1)
        packed = file.read(info.compress_size)
        data = pyarrow.decompress(packed, info.file_size, codec="zstd", asbytes=True)
        if zlib.crc32(data) != info.CRC:
            raise ValueError(f"{name} does not match its checksum")
    value = encodable(json.loads(data))
    if not isinstance(value, dict):
        raise ValueError(f"{name} contains no object")
    return value
