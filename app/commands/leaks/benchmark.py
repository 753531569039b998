"""`rl2f leaks benchmark`: cascades of leak detectors on hints with known labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from app.commands.options import DetectorModel
from app.common.console import err, out, table
from app.common.terminal_progress import TerminalProgress
from rl2f_core import registry
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from rl2f_core.common.stats.intervals import Interval
    from rl2f_core.leaks.benchmark.comparison import CascadeResult
    from rl2f_core.leaks.benchmark.score import Score

Split = Literal["dev", "test"]
Grouping = Literal["kind", "register", "environment"]


def benchmark(
    detectors: Annotated[
        list[str] | None,
        typer.Option(help="A cascade, e.g. exact,mentions; may be repeated (default: mentions)."),
    ] = None,
    benchmark: Annotated[
        str, typer.Option(help="generated, handwritten, teacher_written, all, or the path of a file or folder.")
    ] = "all",
    mrbench: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public file MRBench_V2.json: replies of real tutors.")
    ] = None,
    split: Annotated[str, typer.Option(help="dev to tune on, test to report.")] = "dev",
    group_by: Annotated[
        str, typer.Option(help="Grouping of the second table: kind, register or environment.")
    ] = "kind",
    model: DetectorModel = "smollm2-135m",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Sample of N hints per benchmark, on evenly spaced dialogues.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Add the results to this file, or replace them there.")
    ] = None,
) -> None:
    """Compare leak detectors: precision, recall, price and speed, and recall by kind, register or environment.

    Brackets contain 95 % intervals. The price is that of the endpoints' tokens. Hints per second exclude the loading of
    models; replies from the disk cache make them too high (llm.cache=false turns it off).
    """
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.leaks.benchmark import comparison
    from rl2f_core.leaks.benchmark.mrbench import read_mrbench
    from rl2f_core.models.backends.model_pool import ModelPool

    _require("split", split, get_args(Split))
    _require("grouping", group_by, get_args(Grouping))
    if not Path(benchmark).exists():
        _require("name", benchmark, ("all", *comparison.BENCHMARKS))
    items = None if mrbench is None else read_mrbench(mrbench)
    models = ModelPool(ModelConfig(name=model), registry.get("backend", "hf").Config())
    benchmarks = list(comparison.BENCHMARKS) if benchmark == "all" else [benchmark]
    if items is not None:
        benchmarks = [comparison.TUTORS]
    results = []
    with TerminalProgress() as progress:
        for name in benchmarks:
            for cascade in detectors or ["mentions"]:
                update = partial(progress.update, f"{cascade} on {name}")
                results.append(comparison.evaluate(cascade, name, split, models, limit, update, items))  # type: ignore[arg-type]
    if json_file is not None:
        comparison.record(json_file, results)
    show(results, group_by)
    if split == "test" and {"handwritten", "teacher_written"} & set(benchmarks):
        err().print("Log this use of the test split in data/leaks/README.md.")


def _require(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(f"The benchmark has no such {name}.", value=value, known=known)


def show(results: Sequence[CascadeResult], by: str) -> None:
    """Print the comparison, one table of groups per benchmark, and what the tables do not contain."""
    console = out()
    scores = ("leaks", "near-misses", "precision", "recall")
    columns = ("benchmark", "detectors", *scores, "judged", "US$ / 1,000 hints", "hints/s")
    console.print(table(*columns, rows=_rows(results)))
    for name in dict.fromkeys(result.benchmark for result in results):
        selected = [result for result in results if result.benchmark == name]
        groups = _groups(selected, by)
        if groups:
            console.print()
            heads = (f"{by}, {name}", "leaks", "near-misses", *(result.detectors for result in selected))
            console.print(table(*heads, rows=groups))
    for note in notes(results):
        console.print(note, markup=False)


def _rows(results: Sequence[CascadeResult]) -> Iterator[tuple[str, ...]]:
    for result in results:
        price = result.usd_per_1000_hints
        speed = result.hints_per_second
        judged = f"{result.judged / result.hints:.0%}" if result.needs_model else ""
        cost = "unknown" if price is None else f"{price:,.2f}"
        ends = (judged, cost, f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}")
        name = f"{result.benchmark} ({result.split})"
        yield (name, result.detectors, *_cells(result.report.overall), *ends)
        if result.report.held_out is not None:
            yield (f"{name}, held-out kinds", result.detectors, *_cells(result.report.held_out), "", "", "")


def _groups(results: Sequence[CascadeResult], by: str) -> list[tuple[str, ...]]:
    """Return one row per group, with the recall and the false alarms of each cascade."""
    scores: list[dict[str, Score]] = [getattr(result.report, f"by_{by}") for result in results]
    held_out = {kind for result in results for kind in result.report.held_out_kinds} if by == "kind" else set()
    rows = []
    for name in sorted(
        {name for score in scores for name in score}, key=lambda name: (name in held_out, ":" in name, name)
    ):
        first = next(score[name] for score in scores if name in score)
        cells = [_group_cell(score[name]) if name in score else "" for score in scores]
        rows.append((f"held out: {name}" if name in held_out else name, *_cells(first)[:2], *cells))
    return rows


def _group_cell(score: Score) -> str:
    c = score.counts
    false = f"{c.fp} false alarm{'s' if c.fp != 1 else ''}" if c.fp else ""
    return ", ".join(filter(None, (format_interval(score.recall) if c.tp + c.fn else "", false))) or "–"


def notes(results: Sequence[CascadeResult]) -> Iterator[str]:
    """Yield what the tables do not contain: samples, errors, ambiguous hints and areas under the ROC curve."""
    for result in results:
        name = f"{result.detectors} on {result.benchmark}"
        if result.hints < result.available:
            yield f"{name}: a sample of {result.hints:,} of {result.available:,} hints."
        if result.errors:
            yield f"{name}: {result.errors:,} hints were not checked by every detector; they count as not flagged."
        if result.report.ambiguous:
            yield f"{name}: {result.report.ambiguous_flagged} of {result.report.ambiguous} ambiguous hints flagged."
        if result.report.partial:
            text = f"{result.report.partial_flagged} of {result.report.partial} hints that reveal a part flagged"
            yield f"{name}: {text}; no score counts them."
        if result.area_under_roc is not None:
            yield f"{name}: area under the ROC curve {format_interval(result.area_under_roc)}."


def _cells(score: Score) -> tuple[str, ...]:
    c = score.counts
    return str(c.tp + c.fn), str(c.fp + c.tn), format_interval(score.precision), format_interval(score.recall)


def format_interval(interval: Interval) -> str:
    """Return a value with its interval, or a dash."""
    if interval.value is None:
        return "–"
    ends = "" if interval.low is None or interval.high is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{interval.value:.3f}{ends}"
