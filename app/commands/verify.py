"""`rl2f verify`: an environment's verifier as a filter, one JSON object a line in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

KEYS = ("problem", "answer", "attempt")


def verify(
    environment: Annotated[str, typer.Argument(help="Registered name, e.g. arithmetic or reasoning_gym:gcd.")],
    file: Annotated[str, typer.Argument(help="JSONL file; - reads standard input.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the environment's settings.")
    ] = None,
) -> None:
    """Judge attempts: one {"problem", "answer", "attempt"} a line in, one {"correct", "score", "parsed", "detail"} out.

    `answer` is the gold answer in the environment's own form. A line that cannot be judged gives {"error", "line"} in
    its place, and the exit code is 1 at the end.
    """
    judge = make_environment(environment, sets or [])
    bad = 0
    with open_lines(file) as lines:
        for record in judge_lines(judge, lines):
            bad += "error" in record
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
    if bad:
        typer.echo(f"{bad} line(s) could not be judged.", err=True)
        raise typer.Exit(1)


def make_environment(name: str, overrides: list[str]) -> Any:
    """The registered environment with its default settings, changed by `key=value` overrides."""
    from pydantic import ValidationError

    from rl2f_core import registry
    from rl2f_core.config.loading import apply_override, format_validation_error
    from rl2f_core.errors import ConfigError

    data = registry.expand_type("environment", {"type": name})
    component = registry.get("environment", data["type"])
    for override in overrides:
        data = apply_override(data, override)
    try:
        return component(component.Config.model_validate(data))
    except ValidationError as error:
        raise ConfigError(
            format_validation_error(error, component.Config),
            known=sorted(component.Config.model_fields),
            fix="Correct --set.",
        ) from error


def judge_lines(environment: Any, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """One record for each line, in order. A bad line is data: it becomes an error record."""
    for number, line in enumerate(lines, 1):
        try:
            item = _read(line)
            task = environment.task_from_gold(item["problem"], item["answer"])
            verdict = environment.verify(task, item["attempt"])
            yield {
                "correct": verdict.correct,
                "score": verdict.score,
                "parsed": verdict.parsed,
                "detail": verdict.detail,
            }
        except Exception as error:  # the boundary: a plug-in's verifier must not end the judging of the other lines
            from rl2f_core.errors import RL2FError

            known = isinstance(error, RL2FError)
            yield {"error": str(error) if known else f"{type(error).__name__}: {error}", "line": number}


def read_object(line: bytes, keys: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a line, which must have `keys`; raises `DataError`."""
    from rl2f_core.errors import DataError

    try:
        item = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"The line is not JSON: {error}.", fix="Write one JSON object a line, in UTF-8.") from error
    if not isinstance(item, dict):
        raise DataError("The line holds no JSON object.")
    if missing := [key for key in keys if key not in item]:
        raise DataError(f"The line lacks {', '.join(missing)}.", known=keys)
    return item


def _read(line: bytes) -> dict[str, str]:
    from rl2f_core.errors import DataError

    item = read_object(line, KEYS)
    for key in KEYS:
        value = item[key]
        if key == "answer" and isinstance(value, int | float) and not isinstance(value, bool):
            item[key] = str(value)  # a gold number written without quotes
        elif not isinstance(value, str):
            raise DataError(f"`{key}` is not text.", value=value)
    return item


def open_lines(file: str) -> Any:
    """The lines of a file, or of standard input for `-`, as bytes: a context manager. Raises `DataError`."""
    import contextlib

    from rl2f_core.errors import DataError

    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(Path(file), "rb")
    except OSError as error:
        raise DataError(f"The file cannot be read: {error.strerror}.", value=file) from error
