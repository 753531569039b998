"""`rl2f leaks benchmark`: leak detectors on hints with known labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.options import AsJson, DetectorModel, Detectors
from app.common.console import err, out, table
from app.common.terminal_progress import TerminalProgress
from rl2f_core import registry
from rl2f_core.errors import ConfigError
from rl2f_core.paths import LEAK_BENCHMARK

if TYPE_CHECKING:
    from rl2f_core.leaks.benchmark.score import BenchmarkReport, Score
    from rl2f_core.stats.intervals import Interval

SPLITS = ("dev", "test", "all")


def benchmark(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[LEAK_BENCHMARK]", help="Folder of labeled hints (default: data/leak_benchmark)."),
    ] = None,
    detector: Detectors = "exact,equivalent",
    model: DetectorModel = "smollm2-135m",
    split: Annotated[str, typer.Option(help="dev to tune on, test to report, or all.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Evenly spaced subset of N hints.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure precision and recall by kind of leak, the area under the ROC curve, and the time per hint."""
    from rl2f_core.backends.model_pool import ModelPool
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.leaks.benchmark import timing
    from rl2f_core.leaks.benchmark.score import compare, read_items
    from rl2f_core.leaks.parsing import parse_detectors

    if split not in SPLITS:
        raise ConfigError("The benchmark has no such split.", value=split, known=SPLITS)
    detectors = parse_detectors(detector)
    items = read_items(folder or LEAK_BENCHMARK, None if split == "all" else split)  # type: ignore[arg-type]
    items = timing.spread_out(items, limit or len(items))
    models = ModelPool(ModelConfig(name=model), registry.get("backend", "hf").Config())
    with TerminalProgress() as progress:
        reports, seconds = timing.try_detectors(
            items, detectors, models, lambda done, total: progress.update("hints", done, total)
        )
    report, areas = compare(items, reports), timing.areas(items, reports)
    errors = sum(each.error is not None for each in reports)
    ms_per_hint = 1000 * seconds / max(len(items), 1)
    if as_json:
        data = {
            "detectors": [part.model_dump(mode="json") for part in detectors], "split": split, "hints": len(items),
            "errors": errors, "ms_per_hint": round(ms_per_hint, 4),
            "auc": {name: area.model_dump() for name, area in areas.items()},
            **report.model_dump(mode="json", exclude={"wrong"}),
        }  # fmt: skip
        typer.echo(json.dumps(data, indent=2))
        return
    show(report, areas, ms_per_hint, errors)
    if any(registry.get("leak_detector", part.type).requires_model for part in detectors):
        err().print(f"Model: {model}. The time does not include loading it.", markup=False)


def show(report: BenchmarkReport, areas: dict[str, Interval], ms_per_hint: float, errors: int) -> None:
    """Print figures and tables."""
    console = out()
    columns = ("", "leaks", "near-misses", "precision", "recall", *(["area under ROC"] if areas else []))
    rows = (
        (name, *_cells(score), *([_format(areas[name])] if name in areas else []))
        for name, score in {"all": report.overall, **report.by_environment}.items()
    )
    console.print(table(*columns, rows=rows))
    console.print()
    console.print(table("kind", *columns[1:5], rows=((name, *_cells(s)) for name, s in report.by_kind.items())))
    console.print(f"\n{ms_per_hint:.3f} ms per hint.")
    if errors:
        console.print(f"{errors:,} hints were not scored by every detector; they count as not flagged.")


def _cells(score: Score) -> tuple[str, ...]:
    c = score.counts
    return str(c.tp + c.fn), str(c.fp + c.tn), _format(score.precision), _format(score.recall)


def _format(interval: Interval) -> str:
    if interval.value is None:
        return "–"
    ends = "" if interval.low is None or interval.high is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{ends}"
