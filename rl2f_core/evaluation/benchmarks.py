"""Scores of checkpoints on the environments of a mixture: the rows and columns of the heatmap of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl2f_core.common.stats.intervals import Interval
from rl2f_core.evaluation.formatting import Table, interval_text

if TYPE_CHECKING:
    from rl2f_core.evaluation.report import EvaluationReport


def benchmark_scores(report: EvaluationReport) -> dict[str, dict[str, Interval]]:
    """Return the solve rate within all turns by checkpoint and sub-environment; empty without parts.

    It is that under `hints`, or under the first condition.
    """
    if not report.parts:
        return {}
    condition = "hints" if "hints" in report.conditions else report.conditions[0]
    scores: dict[str, dict[str, Interval]] = {}
    for name in report.checkpoints:
        measured = {part.environment: part.metrics(name, condition) for part in report.parts}
        scores[name] = {part: metrics.final() for part, metrics in measured.items() if metrics is not None}
    return scores


def benchmark_tables(report: EvaluationReport) -> list[Table]:
    """Return the table of `benchmark_scores`; none without parts."""
    names = [part.environment for part in report.parts]
    rows = [
        [checkpoint, *(interval_text(scores[name]) if name in scores else "–" for name in names)]
        for checkpoint, scores in benchmark_scores(report).items()
    ]
    return [(f"Solved within {report.turns} turns, by benchmark", ["checkpoint", *names], rows)] if rows else []
