"""`rl2f leaks check`: leak detectors as a filter, one JSON object a line in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rl2f_core.leaks.base import LeakDetector, LeakQuery
    from rl2f_core.types import LeakReport

KEYS = ("environment", "problem", "answer", "attempts", "hint")
BATCH = 32
"""Lines that detectors which ask a model read at once."""


def check(
    file: Annotated[str, typer.Argument(help="JSONL file; - reads standard input.")],
    detector: Annotated[
        str, typer.Option(help="exact,equivalent, or likelihood:threshold=2, or a YAML or JSON file.")
    ] = "exact,equivalent",
    model: Annotated[str, typer.Option(help="Model of detectors that ask one.")] = "smollm2-135m",
) -> None:
    """Check hints from a file: one JSON object per line in and out.

    The output has the keys "leaked", "detector", "answer_fraction", "span" and "evidence".

    In: "environment", "problem", "answer", "attempts" (the student's texts so far), "hint"; where wanted also "hints"
    (the earlier ones) and "settings" (of the environment). A detector that measures
    nats adds "logprob_gain". A line that
    cannot be judged gives {"error", "line"} in its place, or both beside the verdict of the detectors that could, and
    the exit code is 1 at the end.
    """
    from app.commands.verify import open_lines
    from rl2f_core.leaks.parsing import parse_detectors

    judge = Judge(parse_detectors(detector), model)
    bad = 0
    with open_lines(file) as lines:
        for record in judge.records(lines):
            bad += "error" in record
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
    if bad:
        typer.echo(f"{bad} line(s) could not be judged.", err=True)
        raise typer.Exit(1)


class Judge:
    """Detectors for lines of any environments.

    Args:
        detectors: Their configs, cheapest first.
        model: Name of the model that they may ask; it is loaded when the first one does.
    """

    def __init__(self, detectors: Iterable[Any], model: str) -> None:
        from rl2f_core import registry
        from rl2f_core.backends.model_pool import ModelPool
        from rl2f_core.config.model import ModelConfig

        self.detectors = tuple(detectors)
        kinds = [registry.get("leak_detector", part.type) for part in self.detectors]
        self.batch = BATCH if any(kind.requires_model for kind in kinds) else 1
        backend = registry.get("backend", "hf")
        self.models = ModelPool(ModelConfig(name=model), backend.Config())
        self._made: dict[str, tuple[Any, list[LeakDetector]]] = {}

    def records(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """One record for each line, in order. A bad line is data: it becomes an error record."""
        numbered = iter(enumerate(lines, 1))
        while batch := list(islice(numbered, self.batch)):
            records: dict[int, dict[str, Any]] = {}
            by_environment: dict[str, list[tuple[int, LeakQuery]]] = {}
            for number, line in batch:
                try:
                    key, query = self._query(line)
                    by_environment.setdefault(key, []).append((number, query))
                except Exception as error:  # the boundary: a plug-in must not end the judging of the other lines
                    records[number] = _error(error, number)
            for key, asked in by_environment.items():
                records |= self._judged(key, asked)
            for number, _ in batch:
                yield records[number]

    def _judged(self, key: str, asked: list[tuple[int, LeakQuery]]) -> dict[int, dict[str, Any]]:
        """The records of the hints of one environment; where the batch cannot be judged, each line is tried alone."""
        from rl2f_core.errors import ModelError
        from rl2f_core.leaks.base import run_cascade

        try:
            reports = run_cascade(self._made[key][1], [query for _, query in asked])
        except ModelError:
            raise
        except Exception as error:
            if len(asked) == 1:
                return {asked[0][0]: _error(error, asked[0][0])}
            return {n: record for one in asked for n, record in self._judged(key, [one]).items()}
        return {number: _record(report, number) for (number, _), report in zip(asked, reports, strict=True)}

    def _query(self, line: bytes) -> tuple[str, LeakQuery]:
        from app.commands.verify import read_object
        from rl2f_core.errors import DataError
        from rl2f_core.leaks.base import LeakQuery

        item = read_object(line, KEYS)
        if isinstance(item["answer"], int | float) and not isinstance(item["answer"], bool):
            item["answer"] = str(item["answer"])  # a gold number written without quotes
        for name in ("environment", "problem", "answer", "hint"):
            if not isinstance(item[name], str):
                raise DataError(f"`{name}` is not text.", value=item[name])
        for name in ("attempts", "hints"):
            texts = item.setdefault(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise DataError(f"`{name}` is not a list of texts.", value=texts)
        settings = item.get("settings") or {}
        if not isinstance(settings, dict):
            raise DataError("`settings` is not an object.", value=settings)
        key = self._environment(item["environment"], settings)
        task = self._made[key][0].task_from_gold(item["problem"], item["answer"])
        return key, LeakQuery(task, item["hint"], tuple(item["attempts"]), tuple(item["hints"]))

    def _environment(self, name: str, settings: dict[str, Any]) -> str:
        """The key of an environment whose detectors are made."""
        from pydantic import ValidationError

        from rl2f_core import registry
        from rl2f_core.config.loading import format_validation_error
        from rl2f_core.errors import ConfigError
        from rl2f_core.leaks.guard import make_detectors

        key = json.dumps([name, settings], sort_keys=True)
        if key not in self._made:
            component = registry.get("environment", name)
            try:
                environment = component(component.Config.model_validate({**settings, "type": name}))
            except ValidationError as error:
                raise ConfigError(
                    format_validation_error(error, component.Config),
                    known=sorted(component.Config.model_fields),
                    fix="Correct `settings`.",
                ) from error
            self._made[key] = environment, make_detectors(self.detectors, environment, self.models)
        return key


def _record(report: LeakReport, number: int) -> dict[str, Any]:
    record = {name: getattr(report, name) for name in ("leaked", "detector", "answer_fraction", "span", "evidence")}
    if report.logprob_gain is not None:
        record["logprob_gain"] = round(report.logprob_gain, 4)
    return {**record, "error": report.error, "line": number} if report.error is not None else record


def _error(error: Exception, number: int) -> dict[str, Any]:
    from rl2f_core.errors import RL2FError

    known = isinstance(error, RL2FError)
    return {"error": str(error) if known else f"{type(error).__name__}: {error}", "line": number}
