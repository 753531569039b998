"""Evaluation data for tables and plots, from the report or the dialogues so far.

Differences are paired over tasks (see `metrics.dialogues.hint_effect`), so they are valid only between
dialogues on the same tasks with the same evaluation seed; `incompatible_keys` lists what prevents pairing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.plots.metric_info import chart_info, metric_info
from app.plots.run_charts import Chart, solved_within
from jobs.db.queries.outcomes import Outcomes, solved_by_task
from rl2f_core.common.file_io import checked_path
from rl2f_core.common.stats.intervals import MIN_PROBLEMS, Interval, correct_families, wilson_clustered
from rl2f_core.dialogue.metrics.constant_baseline import describe_comparison, is_above_baseline
from rl2f_core.dialogue.metrics.dialogues import (
    OUTCOMES,
    compared_with,
    paired_effect_difference,
    reference_note,
    solve_rate_difference,
)
from rl2f_core.evaluation.chart_data import BANDED, accuracy_plot, benchmark_plot, reference_policies
from rl2f_core.evaluation.conclusions import answers, grouped_findings
from rl2f_core.evaluation.formatting import count_text, interval_text, nonzero_number, verdict_text
from rl2f_core.evaluation.levels.report import ORIGINAL, LevelsReport, condition_name, level_findings, level_plots
from rl2f_core.evaluation.plotting import Plot, figure
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.types import ConstantBaseline, JsonObject

COUNTS: tuple[tuple[str, str, str], ...] = (
    ("attempt_tokens", "tokens", "Tokens per attempt."),
    ("attempt_tokens/correct", "tokens, correct", "Tokens per correct attempt."),
    ("attempt_tokens/incorrect", "tokens, incorrect", "Tokens per incorrect attempt."),
    ("reflection_words", "reflection words", "check, verify, wait, however, re-evaluate, let me …, per 1,000 tokens."),
    ("reflection_words/correct", "in correct", "Reflection words per 1,000 tokens of correct attempts."),
    ("reflection_words/incorrect", "in incorrect", "Reflection words per 1,000 tokens of incorrect attempts."),
)
"""Mean counts of attempts: metric, title, help."""
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("cum_acc/1", "t = 1", "Solved at the first turn."),
    ("cum_acc/T", "t = {turns}", "Solved within all turns."),
    ("effect", "effect", "Solved within all turns, minus the same under contentless feedback, or under hints, paired."),
    ("consistency", "consistent", "CR: of the solved originals, those solved as variants too."),
    ("memorization", "LiMem", "Acc · (1 − CR): tasks solved in the original but not as variants."),
    ("memorization_above_resample", "beyond chance", "LiMem minus that of the same text sampled again, paired."),
    ("gain", "gain", "Solved after the first turn."),
    ("plasticity", "changed", "plasticity: the answer changed after feedback."),
    ("improving_change_rate", "improving", "improving_change_rate: of the changed answers, those correct or closer."),
    ("retention", "retained", "retention: correct parts that the next attempt retains."),
    ("repeated_answer_rate", "repeated", "repeated_answer_rate: the dialogue already contained the answer."),
    ("efficiency", "efficiency", "efficiency: bits of hints that the next attempt agrees with."),
    ("leak_rate", "leaks", "leak_rate: hints that leak the answer."),
    ("parse_failure_rate", "unparsable", "parse_failure_rate: attempts without a parsable answer."),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity of one checkpoint minus that of another, paired over tasks."""

    quantity: str
    checkpoint: str
    against: str
    difference: Interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of checkpoints under controls on the same tasks."""

    title: str
    turns: int
    whole: bool
    """From the report; otherwise from the dialogues so far."""
    cells: Mapping[tuple[str, str], Mapping[str, Interval]]
    """By (checkpoint, control): metrics by name."""
    effects: Mapping[tuple[str, str], Interval]
    """Each control against contentless, or with replaced reflections against hints."""
    differences: Sequence[Difference] = ()
    reference_policies: Mapping[str, Sequence[tuple[int, float]]] | None = None
    """Reference policies by name: fraction solved within each turn."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """See `rl2f_core.evaluation.conclusions.answers`."""
    conclusions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Sentences by kind."""
    constant_baseline: ConstantBaseline | None = None
    """The best constant answer, if all cells share one and have enough problems to be compared with it."""
    baselines: Mapping[str, ConstantBaseline] = field(default_factory=dict)
    """Constant baselines by control, if each level has its own."""
    charts: Sequence[Chart] | None = None
    """Replace the curves by turn."""
    parts: Sequence[Evaluation] = ()
    """Evaluations of each environment of a mixture."""
    benchmarks: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    """For a mixture: solve rate within all turns by checkpoint and environment."""

    @property
    def checkpoints(self) -> list[str]:
        """Checkpoints in order of evaluation."""
        return list(dict.fromkeys(checkpoint for checkpoint, _ in self.cells))

    @property
    def controls(self) -> list[str]:
        """Controls in order of evaluation."""
        return list(dict.fromkeys(control for _, control in self.cells))

    def last(self) -> str | None:
        """Return the newest checkpoint that was evaluated with hints."""
        return next((c for c in reversed(self.checkpoints) if (c, "hints") in self.cells), None)


def from_report(report: EvaluationReport) -> Evaluation:
    """Return the evaluation of a report."""
    return Evaluation(
        title=report.title,
        turns=report.turns,
        whole=True,
        cells={(row.checkpoint, row.condition): row.metrics.values for row in report.rows},
        effects={(e.checkpoint, e.condition): e.difference for e in report.effects},
        differences=[Difference(d.quantity, d.checkpoint, d.against, d.difference) for d in report.differences],
        reference_policies=reference_policies(report),
        answers=answers(report),
        conclusions=grouped_findings(report),
        constant_baseline=report.constant_baseline if report.tasks >= MIN_PROBLEMS else None,
        parts=[from_report(part) for part in report.parts],
        benchmarks=report.benchmark_scores(),
    )


def read_levels(folder: Path) -> LevelsReport | None:
    """Return the report of an evaluation by level in a run's folder; None if it is missing or damaged."""
    try:
        return LevelsReport.model_validate_json(checked_path(folder, "evaluation/levels.json").read_bytes())
    except (OSError, ValueError):
        return None


def from_levels(report: LevelsReport) -> Evaluation:
    """Return an evaluation by level: each level and variant is a control."""
    cells: dict[tuple[str, str], dict[str, Interval]] = {}
    for c in report.cells:
        scores = {"cum_acc/1": c.accuracy, "consistency": c.consistency, "memorization": c.memorization,
                  "memorization_above_resample": c.memorization_above_resample}  # fmt: skip
        if c.solved is not None:
            scores[f"cum_acc/{report.turns}"] = c.solved
        metrics = {name: v for name, v in c.metrics.values.items() if name != "gain"} if c.metrics else {}
        cells[c.checkpoint, c.condition] = metrics | {name: v for name, v in scores.items() if v is not None}
    baselines = {
        condition_name(info.name, variant): info.constant_baseline
        for info in report.levels
        for variant in (ORIGINAL, *report.variants)
        if info.constant_baseline is not None and (info.tasks is None or info.tasks >= MIN_PROBLEMS)
    }
    return Evaluation(report.title, report.turns, True, cells, {}, conclusions={"Levels": level_findings(report)},
                      baselines=baselines, charts=level_charts(report))  # fmt: skip


def level_charts(report: LevelsReport) -> list[Chart]:
    """Return the accuracy of the first attempt by level, one plot per checkpoint."""
    unit = "correct at the first attempt"
    return [_rate_chart("levels", plot.title, unit, plot, "cum_acc/1") for plot in level_plots(report)]


def from_outcomes(outcomes: Outcomes, turns: int, title: str = "") -> Evaluation:
    """Return solve rates by turn and effects, from the turn at which each task was solved."""
    cells = {}
    for key, by_task in outcomes.items():
        counts = [float(sum(solved.values())) for solved in by_task.values()]
        cells[key] = {
            f"cum_acc/{t}": wilson_clustered([solved_within(solved, t) for solved in by_task.values()], counts)
            for t in range(1, turns + 1)
        }
    effects = {
        (checkpoint, control): difference(by_task, outcomes[checkpoint, compared_with(control)], turns)
        for (checkpoint, control), by_task in outcomes.items()
        if control != compared_with(control) and (checkpoint, compared_with(control)) in outcomes
    }
    corrected = correct_families(list(effects.values()), [control for _, control in effects])
    effects = dict(zip(effects, corrected, strict=True))
    return Evaluation(title, turns, False, cells, effects)


def difference(
    a: Mapping[str, Mapping[int | None, int]], b: Mapping[str, Mapping[int | None, int]], turns: int
) -> Interval:
    """Return the solve rate of `a` minus that of `b`, as `rl2f_core.dialogue.metrics.dialogues.hint_effect`."""
    return solve_rate_difference(solved_by_task(a, turns), solved_by_task(b, turns))


def effect_difference(a: Outcomes, a_checkpoint: str, b: Outcomes, b_checkpoint: str, turns: int) -> Interval | None:
    """Return the hint effect of one checkpoint minus that of another, as `metrics.dialogues.effect_difference`.

    Returns None if one of them was not evaluated with and without hints.
    """
    keys = [(o, (c, control)) for o, c in ((a, a_checkpoint), (b, b_checkpoint)) for control in BANDED]
    if any(key not in outcomes for outcomes, key in keys):
        return None
    return paired_effect_difference([solved_by_task(outcomes[key], turns) for outcomes, key in keys])


def incompatible_keys(a: JsonObject, b: JsonObject) -> list[str]:
    """Return the differing keys that determine tasks and randomness, and so prevent pairing."""
    first, second = _deciding_keys(a), _deciding_keys(b)
    return [key for key in first if first[key] != second[key]]


def _deciding_keys(config: JsonObject) -> JsonObject:
    evaluation, rollout = config.get("evaluation") or {}, config.get("rollout") or {}
    return {
        "environment": config.get("environment"),
        "evaluation.split": evaluation.get("split"),
        "evaluation.seed": evaluation.get("seed"),
        "evaluation.samples_per_task": evaluation.get("samples_per_task"),
        "turns": evaluation.get("max_turns") or rollout.get("max_turns"),
    }


# -- for the page --------------------------------------------------------------------------------------------------
def cell(interval: Interval | None, signed: bool = False) -> JsonObject | None:
    """Return a value with its interval as text and numbers; None without a value."""
    if interval is None or interval.value is None:
        return None
    return {"text": interval_text(interval, signed), "value": interval.value, "low": interval.low,
            "high": interval.high, "n": interval.n}  # fmt: skip


def table(evaluation: Evaluation) -> JsonObject:
    """Return rows checkpoint × control, without columns that no row has."""
    rows: list[JsonObject] = []
    for (checkpoint, control), metrics in evaluation.cells.items():
        baseline = evaluation.baselines.get(control, evaluation.constant_baseline)
        cells: dict[str, JsonObject | None] = {}
        for name, _, _ in COLUMNS:
            if name == "effect":
                entry = cell(evaluation.effects.get((checkpoint, control)), signed=True)
                cells[name] = entry and {**entry, "text": f"{entry['text']}{reference_note(control)}"}
                continue
            score = metrics.get(name.replace("T", str(evaluation.turns)) if name.endswith("/T") else name)
            entry = cell(score)
            if score is not None and entry is not None and name.startswith("cum_acc/"):
                entry |= _baseline_mark(score, baseline)
            cells[name] = entry
        rows.append({"checkpoint": checkpoint, "control": control, "cells": cells})
    hidden = {"cum_acc/1"} if evaluation.turns == 1 else set()
    hidden |= {name for name, _, _ in COLUMNS if all(row["cells"][name] is None for row in rows)}
    columns = [
        {"key": key, "title": title.format(turns=evaluation.turns), "help": text, "formula": metric_info(key).formula}
        for key, title, text in COLUMNS
        if key not in hidden
    ]
    reference_policies = [
        {"name": name, "values": [{"turn": turn, "text": nonzero_number(value)} for turn, value in points]}
        for name, points in (evaluation.reference_policies or {}).items()
    ]
    return {"columns": columns, "rows": rows, "reference_policies": reference_policies}


def _baseline_mark(score: Interval, baseline: ConstantBaseline | None) -> dict[str, str]:
    """Return a mark if a score is not above the constant baseline."""
    if is_above_baseline(score, baseline):
        return {}
    return {"constant_baseline": describe_comparison(score, baseline)}


def attempts(evaluation: Evaluation) -> JsonObject | None:
    """Return fractions of outcomes, lengths and reflection words of attempts; None if a report lacks them."""
    measured = {key: metrics for key, metrics in evaluation.cells.items() if "outcome/correct" in metrics}
    if not measured:
        return None
    texts = [(f"outcome/{name}", name.replace("_", " "), f"Fraction of attempts: {t}.") for name, t in OUTCOMES.items()]
    columns = [
        {"key": key, "title": title, "help": text, "formula": metric_info(key).formula}
        for key, title, text in (*texts, *COUNTS)
    ]
    rows = []
    for (checkpoint, control), metrics in measured.items():
        cells = {f"outcome/{name}": cell(metrics[f"outcome/{name}"]) for name in OUTCOMES}
        for key, _, _ in COUNTS:
            entry = cell(metrics[key])
            cells[key] = entry and {**entry, "text": count_text(metrics[key])}
        rows.append({"checkpoint": checkpoint, "control": control, "cells": cells})
    return {"columns": columns, "rows": rows, "reference_policies": []}


def difference_rows(differences: Sequence[Difference]) -> list[JsonObject]:
    """Return differences with their findings as text."""
    return [
        {"quantity": d.quantity, "checkpoint": d.checkpoint, "against": d.against,
         "cell": cell(d.difference, signed=True), "finding": verdict_text(d.difference, "higher", "lower")}
        for d in differences
    ]  # fmt: skip


def accuracy_charts(evaluation: Evaluation) -> list[Chart]:
    """Return cumulative accuracy, a plot per checkpoint, with a line per control and reference policies in grey."""
    charts = []
    for checkpoint in evaluation.checkpoints:
        cells = {control: evaluation.cells.get((checkpoint, control)) for control in evaluation.controls}
        plot = accuracy_plot(checkpoint, evaluation.turns, cells, evaluation.reference_policies or {})
        charts.append(_rate_chart("evaluation", checkpoint, "solve rate within t turns", plot, "cum_acc/"))
    return charts


def benchmark_charts(evaluation: Evaluation) -> list[Chart]:
    """Return the heatmap of checkpoints and environments of a mixture; none for other evaluations."""
    if not evaluation.benchmarks:
        return []
    info, plot = chart_info("cum_acc/"), benchmark_plot(evaluation.benchmarks)
    title, unit = "Benchmarks", f"solve rate within {evaluation.turns} turns"
    return [Chart("benchmarks", title, unit, [], figure(plot), "in brackets: 95 % intervals", info.help, info.formula)]


def _rate_chart(kind: str, title: str, unit: str, plot: Plot, described: str) -> Chart:
    """Return a chart of rates with the explanation of the metric or group `described`."""
    info = chart_info(described)
    bands = "bands: 95 % intervals" if any(len(line.low) for line in plot.lines) else ""
    return Chart(f"{kind}:{title}", title, unit, [], figure(plot), bands, info.help, info.formula)


def as_json(evaluation: Evaluation) -> JsonObject:
    """Return an evaluation as JSON for the page."""
    return {
        "title": evaluation.title,
        "whole": evaluation.whole,
        "turns": evaluation.turns,
        "checkpoints": evaluation.checkpoints,
        "table": table(evaluation),
        "attempts": attempts(evaluation),
        "differences": difference_rows(evaluation.differences),
        "answers": dict(evaluation.answers),
        "conclusions": {kind: list(lines) for kind, lines in evaluation.conclusions.items() if lines},
        "findings": [line for lines in evaluation.conclusions.values() for line in lines],
        "charts": [
            chart.as_json()
            for chart in (*benchmark_charts(evaluation), *(evaluation.charts or accuracy_charts(evaluation)))
        ],
        "parts": [as_json(part) for part in evaluation.parts],
    }
