"""`rl2f leaks benchmark`: leak detectors tried on hints whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rl2f_core.evaluation.statistics import Interval
    from rl2f_core.leaks.benchmark import BenchmarkReport, Score

SPLITS = ("dev", "test", "all")


def benchmark(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Folder of labelled hints; data/leaks by default.")
    ] = None,
    detector: Annotated[
        str, typer.Option(help="exact,equivalent, or probe:threshold=2, or a YAML or JSON file.")
    ] = "exact,equivalent",
    model: Annotated[str, typer.Option(help="Model of detectors that ask one.")] = "smollm2-135m",
    split: Annotated[str, typer.Option(help="dev to tune on, test to report, or all.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="So many hints, evenly over the benchmark.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Precision and recall by kind of leak, the probe's area under the ROC curve, and the cost of a hint."""
    from app.console import err
    from app.progress import TerminalProgress
    from rl2f_core import registry
    from rl2f_core.backends.pool import Models
    from rl2f_core.config import ModelConfig
    from rl2f_core.errors import ConfigError
    from rl2f_core.leaks import trial
    from rl2f_core.leaks.benchmark import FOLDER, compare, read_items
    from rl2f_core.leaks.choice import parse_detectors

    if split not in SPLITS:
        raise ConfigError("The benchmark has no such part.", value=split, known=SPLITS)
    detectors = parse_detectors(detector)
    items = read_items(folder or FOLDER, None if split == "all" else split)  # type: ignore[arg-type]
    items = trial.spread_out(items, limit or len(items))
    backend: Any = registry.get("backend", "hf")
    with TerminalProgress() as progress:
        reports, seconds = trial.try_detectors(
            items,
            detectors,
            Models(ModelConfig(name=model), backend.Config()),
            lambda done, total: progress.update("hints", done, total),
        )
    report, areas = compare(items, reports), trial.areas(items, reports)
    errors = sum(found.error is not None for found in reports)
    each = 1000 * seconds / max(len(items), 1)
    if as_json:
        data = {
            "detectors": [part.model_dump(mode="json") for part in detectors], "split": split, "hints": len(items),
            "errors": errors, "ms_per_hint": round(each, 4),
            "auc": {name: found.model_dump() for name, found in areas.items()},
            **report.model_dump(mode="json", exclude={"wrong"}),
        }  # fmt: skip
        typer.echo(json.dumps(data, indent=2))
        return
    show(report, areas, each, errors)
    if any(registry.get("leak", part.type).asks_model for part in detectors):  # type: ignore[attr-defined]
        err().print(f"With {model}; loading it is not in the cost.", markup=False)


def show(report: BenchmarkReport, areas: dict[str, Interval], each: float, errors: int) -> None:
    """Figures and tables for people."""
    from app.console import out, table

    console = out()
    scores = {"all": report.overall, **report.by_environment}
    rows = (
        (name, *_cells(score), *([_interval(areas[name])] if name in areas else [])) for name, score in scores.items()
    )
    columns = ("", "leaks", "near-misses", "precision", "recall", *(["area under ROC"] if areas else []))
    console.print(table(*columns, rows=rows))
    console.print()
    console.print(table("kind", *columns[1:5], rows=((name, *_cells(s)) for name, s in report.by_kind.items())))
    console.print(f"\n{each:.3f} ms a hint.")
    if errors:
        console.print(f"{errors:,} hints could not be judged by every tier; they count as not flagged.")


def _cells(score: Score) -> tuple[str, ...]:
    counts = score.counts
    return (
        str(counts.found + counts.missed), str(counts.false + counts.clean),
        _interval(score.precision), _interval(score.recall),
    )  # fmt: skip


def _interval(found: Interval) -> str:
    if found.value is None:
        return "–"
    ends = "" if found.low is None or found.high is None else f" [{found.low:.3f}, {found.high:.3f}]"
    return f"{found.value:.3f}{ends}"
