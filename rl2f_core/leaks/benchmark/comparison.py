"""Compare cascades of leak detectors on benchmarks, store the results, and recommend a cascade for a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.paths import HANDWRITTEN_LEAKS, LEAK_BENCHMARK, LEAK_RESULTS, TEACHER_WRITTEN_LEAKS
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.errors import DataError
from rl2f_core.leaks.benchmark.score import BenchmarkReport, LeakItem, Split, compare, kinds_of, read_items
from rl2f_core.leaks.benchmark.timing import area_under_roc, needs_model, spread_out, try_detectors
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.types import FrozenModel, JsonObject

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

BENCHMARKS = {
    "generated": LEAK_BENCHMARK,
    "handwritten": HANDWRITTEN_LEAKS,
    "teacher_written": TEACHER_WRITTEN_LEAKS,
}
"""Shipped benchmarks by name."""
TUTORS = "tutors"
"""Name of results on the public replies of real tutors; see `mrbench`."""

_UNRECORDED = {"results": {"__all__": {"report": {"wrong"}}}}


class CascadeResult(FrozenModel):
    """A cascade on one split of a benchmark."""

    detectors: str
    """The cascade as on the command line, e.g. `exact,mentions`."""
    configs: tuple[JsonObject, ...]
    """Configurations of the detectors."""
    benchmark: str
    """A name in `BENCHMARKS`, or a path."""
    split: Split
    """dev or test."""
    hints: int
    """Number of checked hints."""
    available: int
    """Number of hints of the split; if more than `hints`, a sample was checked."""
    needs_model: bool
    """A detector needs a model."""
    judged: int = 0
    """Hints that a detector with a model checked."""
    model: str | None
    """Model of detectors that need one and name none; None if no detector needs one."""
    usd_per_1000_hints: float | None
    """Price at the endpoints in US dollars; None if unknown."""
    hints_per_second: float
    """Without model loading, on the machine of the record."""
    errors: int
    """Hints that a detector could not check; they count as not flagged."""
    area_under_roc: Interval | None
    """Of `logprob_gain`; None if not every hint has one."""
    report: BenchmarkReport


class Comparison(FrozenModel):
    """Content of a file of recorded results."""

    schema_version: Literal[1]
    results: tuple[CascadeResult, ...]


def evaluate(
    detectors: str,
    benchmark: str,
    split: Split,
    models: ModelPool,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    given: Sequence[LeakItem] | None = None,
) -> CascadeResult:
    """Run a cascade on one split of a benchmark and score it.

    Args:
        detectors: The cascade; see `parse_detectors`.
        benchmark: A name in `BENCHMARKS`, or the path of a file or folder of items.
        split: The split.
        models: Models of detectors that need one.
        limit: Maximum number of hints; see `spread_out`. None is all.
        on_progress: Called with (hints checked, all hints).
        given: The items of all splits; by default those of the path.

    Raises `ConfigError` if the cascade is invalid, `DataError` if the benchmark has no items.
    """
    configs, path = parse_detectors(detectors), BENCHMARKS.get(benchmark, Path(benchmark))
    available = read_items(path, split) if given is None else [item for item in given if item.split == split]
    items = spread_out(available, limit or len(available))
    if not items:
        raise DataError("The benchmark has no hints of this split.", value=f"{benchmark}, {split}")
    trial = try_detectors(items, configs, models, on_progress)
    uses_model = needs_model(configs)
    dev_kinds = kinds_of(read_items(path, "dev")) if given is None else set()
    report = compare(items, trial.reports, dev_kinds or None)
    return CascadeResult(
        detectors=detectors,
        configs=tuple(config.model_dump(mode="json") for config in configs),
        benchmark=benchmark,
        split=split,
        hints=len(items),
        available=len(available),
        needs_model=uses_model,
        judged=trial.judged,
        model=models.student_config.name if uses_model else None,
        usd_per_1000_hints=None if trial.cost is None else 1000 * trial.cost / len(items),
        hints_per_second=len(items) / trial.seconds,
        errors=sum(found.error is not None for found in trial.reports),
        area_under_roc=area_under_roc(items, trial.reports),
        report=report.model_copy(update={"wrong": ()}),
    )


def read_results(folder: Path = LEAK_RESULTS) -> list[CascadeResult]:
    """Read all recorded results of a folder; empty if it has none. Raises `DataError` if a file is invalid."""
    return [result for path in sorted(folder.glob("benchmark*.json")) for result in _read(path).results]


def _read(path: Path) -> Comparison:
    try:
        return Comparison.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DataError("The file contains no comparison of detectors.", value=str(path), fix="Remove it.") from error


def record(path: Path, results: Iterable[CascadeResult]) -> None:
    """Add results to a file; they replace those of the same cascade, benchmark and split.

    Raises `DataError` if the file contains something else.
    """
    merged = {_key(result): result for result in (*(_read(path).results if path.exists() else ()), *results)}
    content = Comparison(schema_version=1, results=tuple(merged[key] for key in sorted(merged)))
    write_atomically(path, content.model_dump_json(indent=1, exclude=_UNRECORDED) + "\n")


def _key(result: CascadeResult) -> tuple[str, str, str]:
    return result.benchmark, result.split, result.detectors


def latest(results: Sequence[CascadeResult], benchmark: str) -> list[CascadeResult]:
    """Return the results on one benchmark: those on its test split, or on dev if test was not recorded.

    A cascade that was recorded on more and on fewer hints is returned with more.
    """
    on = {split: [result for result in results if (result.benchmark, result.split) == (benchmark, split)]
          for split in ("test", "dev")}  # fmt: skip
    return list(
        {result.detectors: result for result in sorted(on["test"] or on["dev"], key=lambda r: r.hints)}.values()
    )


def recommend(
    results: Iterable[CascadeResult], *, usd_per_1000_hints: float, min_hints_per_second: float, min_precision: float
) -> CascadeResult | None:
    """Return the cascade with the highest recall within a budget; None if there is none.

    Args:
        results: Results on one split of one benchmark.
        usd_per_1000_hints: Maximum price in US dollars; 0 admits only cascades without a model.
        min_hints_per_second: Minimum speed.
        min_precision: Minimum of the measured precision (the estimate, not its interval).
    """

    def is_affordable(result: CascadeResult) -> bool:
        price = result.usd_per_1000_hints
        return price is not None and price <= usd_per_1000_hints and (usd_per_1000_hints > 0 or not result.needs_model)

    eligible = [
        (
            result.report.overall.recall.value or 0.0,
            result.report.overall.precision.value,
            result.hints_per_second,
            result,
        )
        for result in results
        if is_affordable(result)
        and result.hints_per_second >= min_hints_per_second
        and (result.report.overall.precision.value or 0.0) >= min_precision
    ]
    return max(eligible, key=lambda scored: scored[:3])[3] if eligible else None
