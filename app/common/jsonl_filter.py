"""Commands that read one JSON object per line and write one per line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.common.file_io import RepeatedKeyError, unique_keys
from rl2f_core.config.loading import format_validation_error
from rl2f_core.errors import ConfigError, DataError, RL2FError
from rl2f_core.types import JsonObject


def filter_lines(file: str, process: Callable[[Iterable[bytes]], Iterator[JsonObject]]) -> None:
    """Write the record of each line of a file (`-`: standard input) to standard output.

    Exits with code 1 after the last line if a record has the key `error`. Raises `DataError` for an unreadable file.
    """
    try:
        lines = contextlib.nullcontext(sys.stdin.buffer) if file == "-" else open(Path(file), "rb")
    except OSError as error:
        raise DataError(f"The file cannot be read: {error.strerror}.", value=file) from error
    failures = 0
    with lines as source:
        for record in process(source):
            failures += "error" in record
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
    if failures:
        typer.echo(f"Failed lines: {failures}.", err=True)
        raise typer.Exit(1)


def read_object(line: bytes, keys: Sequence[str]) -> JsonObject:
    """Parse the JSON object of a line, which must have `keys`; raises `DataError`.

    A number as `answer` becomes text, because gold numbers are often written without quotes.
    """
    try:
        record = json.loads(line.decode("utf-8"), object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        raise DataError(f"The line {error}.", fix="Write each key once.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"The line is not JSON: {error}.", fix="Write one JSON object per line, in UTF-8.") from error
    if not isinstance(record, dict):
        raise DataError("The line contains no JSON object.")
    if missing := [key for key in keys if key not in record]:
        raise DataError(f"The line lacks {', '.join(missing)}.", known=keys)
    if isinstance(record["answer"], int | float) and not isinstance(record["answer"], bool):
        record["answer"] = str(record["answer"])
    return record


def require_text(record: JsonObject, keys: Iterable[str]) -> None:
    """Raise `DataError` unless the values of `keys` are texts."""
    for key in keys:
        if not isinstance(record[key], str):
            raise DataError(f"`{key}` is not text.", value=record[key])


def error_record(error: Exception, line: int) -> JsonObject:
    """Return the record of a line that failed, also by an error of a plug-in."""
    return {"error": str(error) if isinstance(error, RL2FError) else f"{type(error).__name__}: {error}", "line": line}


def build_environment(data: JsonObject, fix: str) -> Any:
    """Build a registered environment; raises `ConfigError` with `fix` for a wrong setting."""
    component = registry.get("environment", data["type"])
    try:
        return component(component.Config.model_validate(data))
    except ValidationError as error:
        raise ConfigError(
            format_validation_error(error, component.Config), known=sorted(component.Config.model_fields), fix=fix
        ) from error
