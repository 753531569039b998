"""`rl2f leaks check`: leak detectors as a filter, with one JSON object per line in and out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import DetectorModel, Detectors
from app.common.jsonl_filter import build_environment, error_record, filter_lines, read_object, require_text
from rl2f_core import registry
from rl2f_core.errors import DataError, ModelError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.config.fields import ComponentConfig
    from rl2f_core.environments.base import Environment
    from rl2f_core.leaks.base import LeakDetector, LeakQuery
    from rl2f_core.types import LeakReport

KEYS = ("environment", "problem", "answer", "attempts", "hint")
BATCH_SIZE = 32
"""Lines that detectors with a model score together."""


def check(
    file: Annotated[str, typer.Argument(help="JSONL file; - reads standard input.")],
    detector: Detectors = "mentions",
    model: DetectorModel = "smollm2-135m",
) -> None:
    """Check hints from a file: one JSON object per line in and out.

    The output has the keys "leaked", "detector", "leak_type", "answer_fraction", "span" and "evidence".

    In: "environment", "problem", "answer", "attempts" (the student's texts so far), "hint"; optionally "hints" (the
    earlier ones) and "settings" (of the environment). `likelihood` adds "logprob_gain", `mentions` adds
    "leak_probability". A line that cannot be checked gives {"error", "line"} beside the results of other detectors, and
    the exit code is 1.
    """
    from rl2f_core.leaks.parsing import parse_detectors

    filter_lines(file, LeakChecker(parse_detectors(detector), model).records)


class LeakChecker:
    """Detectors for lines of any environments.

    Args:
        configs: Of the detectors, cheapest first.
        model: Name of the model of detectors that need one; loaded at its first use.
    """

    def __init__(self, configs: Sequence[ComponentConfig], model: str) -> None:
        from rl2f_core.config.model import ModelConfig
        from rl2f_core.models.backends.model_pool import ModelPool

        self.configs = configs
        requires_model = any(registry.get("leak_detector", config.type).requires_model for config in configs)
        self.batch_size = BATCH_SIZE if requires_model else 1
        self.models = ModelPool(ModelConfig(name=model), registry.get("backend", "hf").Config())
        self._environments: dict[str, tuple[Environment, Sequence[LeakDetector]]] = {}

    def records(self, lines: Iterable[bytes]) -> Iterator[JsonObject]:
        """Yield one record per line, in order; an invalid line yields an error record."""
        numbered = iter(enumerate(lines, 1))
        while batch := list(islice(numbered, self.batch_size)):
            records: dict[int, JsonObject] = {}
            by_environment: dict[str, list[tuple[int, LeakQuery]]] = {}
            for number, line in batch:
                try:
                    key, query = self._parse(line)
                    by_environment.setdefault(key, []).append((number, query))
                except Exception as error:  # an error of a plug-in concerns one line only
                    records[number] = error_record(error, number)
            for key, queries in by_environment.items():
                records |= self._check(key, queries)
            for number, _ in batch:
                yield records[number]

    def _check(self, key: str, numbered: list[tuple[int, LeakQuery]]) -> dict[int, JsonObject]:
        """Return the records of hints of one environment; if the batch fails, each line is checked separately."""
        from rl2f_core.leaks.base import run_cascade

        try:
            reports = run_cascade(self._environments[key][1], [query for _, query in numbered])
        except ModelError:
            raise
        except Exception as error:
            if len(numbered) == 1:
                return {numbered[0][0]: error_record(error, numbered[0][0])}
            return {n: record for item in numbered for n, record in self._check(key, [item]).items()}
        return {number: _report_record(report, number) for (number, _), report in zip(numbered, reports, strict=True)}

    def _parse(self, line: bytes) -> tuple[str, LeakQuery]:
        """Return the key of the line's environment, and the query."""
        from rl2f_core.leaks.base import LeakQuery

        item = read_object(line, KEYS)
        require_text(item, ("environment", "problem", "answer", "hint"))
        for name in ("attempts", "hints"):
            texts = item.setdefault(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise DataError(f"`{name}` is not a list of texts.", value=texts)
        settings = item.get("settings") or {}
        if not isinstance(settings, dict):
            raise DataError("`settings` is not an object.", value=settings)
        key = self._environment_key(item["environment"], settings)
        task = self._environments[key][0].task_from_gold(item["problem"], item["answer"])
        return key, LeakQuery(task, item["hint"], tuple(item["attempts"]), tuple(item["hints"]))

    def _environment_key(self, name: str, settings: JsonObject) -> str:
        """Return the key of an environment, built if necessary."""
        from rl2f_core.leaks.base import make_detectors

        key = json.dumps([name, settings], sort_keys=True)
        if key not in self._environments:
            environment = build_environment({**settings, "type": name}, fix="Correct `settings`.")
            self._environments[key] = environment, make_detectors(self.configs, environment, self.models)
        return key


def _report_record(report: LeakReport, number: int) -> JsonObject:
    names = ("leaked", "detector", "leak_type", "answer_fraction", "span", "evidence")
    record = {name: getattr(report, name) for name in names}
    if report.leak_probability is not None:
        record["leak_probability"] = round(report.leak_probability, 4)
    if report.logprob_gain is not None:
        record["logprob_gain"] = round(report.logprob_gain, 4)
    return {**record, "error": report.error, "line": number} if report.error is not None else record
