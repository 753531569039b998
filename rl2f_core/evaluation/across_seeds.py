"""Evaluation reports of several seeds: values per seed, and their mean with Student's t interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rl2f_core.errors import DataError
from rl2f_core.evaluation.chart_data import Chart, effects_chart
from rl2f_core.evaluation.report import EvaluationReport, interval_text, markdown_table, number, verdict_text
from rl2f_core.metrics.constant_baseline import describe_comparison
from rl2f_core.stats.intervals import Interval, t_interval
from rl2f_core.types import ConstantBaseline, FrozenModel

LEGEND = (
    "Means have Student's t interval over seeds; *above 0* counts the seeds whose own interval over tasks is above 0."
)
METRICS = ("gain", "conditional_solve_rate", "plasticity", "repeated_answer_rate", "improving_change_rate", "retention",
           "parse_failure_rate")  # fmt: skip
"""Metrics of the summary besides cum_acc/1 and cum_acc/T."""


class SeedRow(FrozenModel):
    """One quantity of one checkpoint by seed."""

    checkpoint: str
    """E.g. `rl2f@24`, or `rl2f@24 − sft@30` for a difference."""
    condition: str
    """Empty for a difference between checkpoints."""
    quantity: str
    """A metric, `hint_effect`, `effect` (a control against contentless), or `difference of …`."""
    values: tuple[float | None, ...]
    """Values in the order of the summary's seeds; None if missing."""
    mean: Interval
    """Mean over seeds with a t interval."""
    above_zero: int | None = None
    """For effects and differences: number of seeds whose own interval is above 0."""


class SeedSummary(FrozenModel):
    """Reports of several seeds, merged."""

    environment: str
    """Registered name."""
    level: str
    turns: int
    """Allowed turns, T."""
    seeds: tuple[str, ...]
    rows: tuple[SeedRow, ...]
    constant_baseline: ConstantBaseline | None = None
    """The score is the mean over seeds."""

    @property
    def name(self) -> str:
        """Environment and level."""
        return f"{self.environment}, {self.level}" if self.level else self.environment

    def to_markdown(self) -> str:
        """Return a table and findings as Markdown."""
        header = ["checkpoint", "condition", "quantity", *(f"seed {s}" for s in self.seeds), "mean", "above 0"]
        body = []
        for row in self.rows:
            signed = row.above_zero is not None
            count = f"{row.above_zero} of {len(self.seeds)}" if signed else ""
            values = [number(v, signed) for v in row.values]
            body.append([row.checkpoint, row.condition, row.quantity, *values, interval_text(row.mean, signed), count])
        if self.constant_baseline is not None:
            score = number(self.constant_baseline.score)
            body.append(["best constant answer", "any", "cum_acc", *("" for _ in self.seeds), score, ""])
        table = markdown_table((f"{self.name}: {len(self.seeds)} seeds, {self.turns} turns", header, body))
        return "\n".join([table, "", LEGEND, "", *(f"- {sentence}" for sentence in self.findings())]) + "\n"

    def findings(self) -> list[str]:
        """Return a sentence for each effect, difference, and score against the constant baseline."""
        lines = self._baseline_findings()
        for row in self.rows:
            if row.above_zero is None:
                continue
            if row.mean.low is None:
                verdict = f"no interval, {row.mean.n} seed{'' if row.mean.n == 1 else 's'}"
            else:
                verdict = verdict_text(row.mean, "above 0", "below 0")
            under = f" under {row.condition}" if row.condition not in ("", "hints") else ""
            lines.append(
                f"{row.quantity} of {row.checkpoint}{under}: {interval_text(row.mean, signed=True)} over {row.mean.n} "
                f"seeds, {verdict}; {row.above_zero} of {len(self.seeds)} seeds are above 0 on their own."
            )
        return lines

    def _baseline_findings(self) -> list[str]:
        baseline = self.constant_baseline
        if baseline is None:
            return []
        score = number(baseline.score)
        lines = [f"The best constant answer ({baseline.answer}) solves {score} at one attempt."]
        for name in dict.fromkeys(("cum_acc/1", f"cum_acc/{self.turns}")):
            for row in self.rows:
                if (row.quantity, row.condition) == (name, "hints") and row.mean.low is not None:
                    comparison = describe_comparison(row.mean, baseline)
                    lines.append(f"{name} of {row.checkpoint}: {interval_text(row.mean)} is {comparison} ({score}).")
        return lines


def join_runs(reports: Sequence[EvaluationReport]) -> EvaluationReport:
    """Join reports of one seed; each checkpoint comes from the first report that contains it.

    The reports contain no differences between checkpoints of different runs, so the result has none either. Raises
    `DataError` if they differ in environment, level, turns, tasks or seed.
    """
    settings = {(r.environment, r.level, r.split, r.turns, r.tasks, r.samples, r.seed) for r in reports}
    if len(settings) != 1:
        raise DataError(
            "Cannot join reports with different evaluation settings.", value=sorted(settings),
            fix="Evaluate all runs of a seed with the same environment, turns, tasks and samples.",
        )  # fmt: skip
    first_report: dict[str, int] = {}
    for i, report in enumerate(reports):
        for checkpoint in report.checkpoints:
            first_report.setdefault(checkpoint, i)
    joined = {
        field: tuple(
            item
            for i, report in enumerate(reports)
            for item in getattr(report, field)
            if first_report.get(item.checkpoint) == i
        )
        for field in ("rows", "effects", "differences")
    }
    notes = tuple(dict.fromkeys(note for report in reports for note in report.notes))
    return reports[0].model_copy(update={**joined, "notes": notes})


def seeds_chart(summary: SeedSummary) -> Chart:
    """Return each condition's effect against contentless feedback over seeds, one plot per checkpoint."""
    effects = [(r.checkpoint, r.condition, r.mean) for r in summary.rows if r.quantity in ("hint_effect", "effect")]
    subtitle = f"{summary.name}; mean of {len(summary.seeds)} seeds, bars are 95\u00a0% t intervals"
    return effects_chart("hint_effect_seeds", subtitle, summary.turns, effects)


def merge_seeds(reports: Mapping[str, EvaluationReport]) -> SeedSummary:
    """Merge the reports of several seeds by checkpoint name.

    Of the controls, the summary contains only cum_acc/T and the effect. Raises `DataError` without a report, or if the
    reports differ in environment, level or turns.
    """
    settings = {(r.environment, r.level, r.turns) for r in reports.values()}
    if len(settings) != 1:
        raise DataError(
            "Cannot merge reports that differ in environment, level or number of turns.", value=sorted(settings),
            fix="Merge reports of runs that differ only in the seed.",
        )  # fmt: skip
    environment, level, turns = settings.pop()
    rates, differences = _collect(reports, turns)
    rows = []
    for (checkpoint, condition, quantity), by_seed in (rates | differences).items():
        values = tuple(by_seed[seed].value if seed in by_seed else None for seed in reports)
        present = [v for v in values if v is not None]
        if present:
            is_rate = (checkpoint, condition, quantity) in rates
            rows.append(
                SeedRow(
                    checkpoint=checkpoint, condition=condition, quantity=quantity, values=values,
                    mean=t_interval(present, support=(0.0, 1.0) if is_rate else None),
                    above_zero=None if is_rate else sum(i.above(0) for i in by_seed.values()),
                )
            )  # fmt: skip
    baselines = [r.constant_baseline for r in reports.values() if r.constant_baseline is not None]
    baseline = None
    if baselines:
        baseline = ConstantBaseline(baselines[0].answer, math.fsum(b.score for b in baselines) / len(baselines))
    return SeedSummary(
        environment=environment, level=level, turns=turns, seeds=tuple(reports), rows=tuple(rows),
        constant_baseline=baseline,
    )  # fmt: skip


_Collected = dict[tuple[str, str, str], dict[str, Interval]]


def _collect(reports: Mapping[str, EvaluationReport], turns: int) -> tuple[_Collected, _Collected]:
    """Return rates and differences by (checkpoint, condition, quantity) and seed."""
    rates: _Collected = {}
    differences: _Collected = {}
    names = list(dict.fromkeys(["cum_acc/1", f"cum_acc/{turns}", *METRICS]))
    for seed, report in reports.items():
        for row in report.rows:
            for name in names if row.condition == "hints" else [f"cum_acc/{turns}"]:
                rates.setdefault((row.checkpoint, row.condition, name), {})[seed] = row.metrics[name]
    for seed, report in reports.items():
        for effect in report.effects:
            name = "hint_effect" if effect.condition == "hints" else "effect"
            differences.setdefault((effect.checkpoint, effect.condition, name), {})[seed] = effect.difference
        for pair in report.differences:
            key = (f"{pair.checkpoint} − {pair.against}", "", f"difference of {pair.quantity}")
            differences.setdefault(key, {})[seed] = pair.difference
    return rates, differences
