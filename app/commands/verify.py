"""`rl2f verify`: an environment's verifier as a filter, with one JSON object per line in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from app.common.jsonl_filter import build_environment, error_record, filter_lines, read_object, require_text
from rl2f_core import registry
from rl2f_core.config.loading import apply_override
from rl2f_core.config.named_variables import check_variables
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.environments.base import Environment

KEYS = ("problem", "answer", "attempt")


def verify(
    environment: Annotated[str, typer.Argument(help="Registered name, e.g. arithmetic or reasoning_gym:gcd.")],
    file: Annotated[str, typer.Argument(help="JSONL file; - reads standard input.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the environment's settings.")
    ] = None,
) -> None:
    """Verify attempts: {"problem", "answer", "attempt"} per line in, {"correct", "score", "parsed", "detail"} out.

    `answer` is the gold answer in the environment's form. A line that cannot be verified gives {"error", "line"}, and
    the exit code is 1.
    """
    data = registry.expand_type("environment", {"type": environment})
    for override in sets or []:
        data = apply_override(data, override)
    check_variables({"environment": data})
    verifier = build_environment(data, fix="Correct --set.")
    filter_lines(file, lambda lines: verify_lines(verifier, lines))


def verify_lines(environment: Environment, lines: Iterable[bytes]) -> Iterator[JsonObject]:
    """Yield one record per line, in order; an invalid line yields an error record."""
    for number, line in enumerate(lines, 1):
        try:
            item = read_object(line, KEYS)
            require_text(item, KEYS)
            task = environment.task_from_gold(item["problem"], item["answer"])
            verdict = environment.verify(task, item["attempt"])
            yield verdict.model_dump(include={"correct", "score", "parsed", "detail"})
        except Exception as error:  # an error of a plug-in's verifier concerns one line only
            yield error_record(error, number)
