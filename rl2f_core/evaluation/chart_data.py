"""Plots of an evaluation and of training, for `plotting` (Plotly) and `figure_files` (PNG).

Green and red are used only for correct and incorrect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.dialogues import reference_note
from rl2f_core.evaluation.plotting import CONDITION_COLORS, DASHES, SERIES, Format, Line, Plot
from rl2f_core.evaluation.report import EvaluationReport

BANDED = ("hints", "contentless")
"""Conditions whose lines have an interval band."""
CONSTANT = "best constant answer"
_REFERENCES = {
    "optimal with hints": ("with_hints", "longdash"),
    "copy-only": ("copying", "dashdot"),
    "optimal without hints": ("without_hints", "dot"),
    CONSTANT: ("", "dash"),
}
"""Field of `Reference` and dash of each reference policy."""
_TRAINING_COLORS = {"all correct ✓": "--rl-right", "all incorrect ✗": "--rl-wrong"}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with plots from top to bottom."""

    name: str
    """File stem."""
    title: str
    plots: tuple[Plot, ...]
    subtitle: str = ""


def reference_policies(report: EvaluationReport) -> dict[str, list[tuple[int, float]]]:
    """Return the points (turn, solve rate) of each reference policy by name."""
    policies: dict[str, list[tuple[int, float]]] = {}
    for name, (field, _) in _REFERENCES.items():
        points = [(r.turn, getattr(r, field)) for r in report.references if field and getattr(r, field) is not None]
        if points:
            policies[name] = points
    if report.constant_baseline is not None:
        policies[CONSTANT] = [(turn, report.constant_baseline.score) for turn in range(1, report.turns + 1)]
    return policies


def accuracy_plot(
    checkpoint: str,
    turns: int,
    rates: Mapping[str, Mapping[str, Interval] | None],
    policies: Mapping[str, Sequence[tuple[int, float]]],
) -> Plot:
    """Plot the solve rate within t turns: one line per condition, reference policies in gray.

    Args:
        checkpoint: Title of the plot.
        turns: Allowed turns.
        rates: Metrics `cum_acc/t` by condition, or None if the checkpoint has no dialogues under it.
        policies: See `reference_policies`.
    """
    lines = [
        Line(name, [float(t) for t, _ in points], [v for _, v in points], "--rl-muted", width=1.2,
             dash=_REFERENCES[name][1], label=name.removeprefix("best ") if name == CONSTANT else None)
        for name, points in policies.items()
    ]  # fmt: skip
    all_turns = list(range(1, turns + 1))
    for position, (condition, metrics) in enumerate(rates.items()):
        if metrics is None:
            continue
        intervals = [metrics[f"cum_acc/{t}"] for t in all_turns]
        banded, hinted = condition in BANDED, condition == "hints"
        lines.append(
            Line(condition, [float(t) for t in all_turns], [i.value for i in intervals],
                 condition_color(condition, position),
                 low=[i.low for i in intervals] if banded else (), high=[i.high for i in intervals] if banded else (),
                 at=[[checkpoint, condition] for _ in all_turns],
                 dash="solid" if hinted else DASHES[1 + position % 5], width=2.6 if hinted else 1.8)
        )  # fmt: skip
    return Plot(lines, x_title="turn", format="share", range=(0.0, 1.03), height=230,
                x_ticks=all_turns if turns <= 12 else (), title=checkpoint, unit="solve rate")  # fmt: skip


def condition_color(condition: str, position: int) -> str:
    """Return the color of a condition; by position if it has none."""
    return CONDITION_COLORS.get(condition, SERIES[position % len(SERIES)])


def interval_plot(
    title: str, rows: Iterable[tuple[str, Interval]], x_title: str, limits: tuple[float, float], form: Format
) -> Plot:
    """Plot one row per name: a value with its interval, along x."""
    lines = [
        Line(name, [0.0], [interval.value or 0.0], condition_color(name, i), low=[interval.low], high=[interval.high])
        for i, (name, interval) in enumerate(rows)
    ]
    return Plot(lines, x_title=x_title, format=form, kind="intervals", range=limits, title=title)


def effects_chart(name: str, subtitle: str, turns: int, effects: Iterable[tuple[str, str, Interval]]) -> Chart:
    """Plot (checkpoint, condition, effect), one plot per checkpoint; for the effects see `compared_with`."""
    rows: dict[str, list[tuple[str, Interval]]] = {}
    others = ""
    for checkpoint, condition, difference in effects:
        if difference.value is not None:
            rows.setdefault(checkpoint, []).append((f"{condition}{reference_note(condition)}", difference))
            others = others or (" or to hints" if reference_note(condition) else "")
    ends = [v for group in rows.values() for _, i in group for v in (i.low, i.high, i.value) if v is not None]
    limits = min([-0.1, *ends]) - 0.03, max([0.1, *ends]) + 0.03
    unit = f"difference in solve rate within {turns} turns"
    plots = tuple(interval_plot(checkpoint, group, unit, limits, "difference") for checkpoint, group in rows.items())
    return Chart(name, f"Difference to contentless feedback{others}, by condition", plots, subtitle)


def accuracy_chart(report: EvaluationReport) -> Chart:
    """Plot cumulative accuracy by turn, one plot per checkpoint."""
    policies = reference_policies(report)
    plots = []
    for checkpoint in report.checkpoints:
        metrics = {condition: report.metrics(checkpoint, condition) for condition in report.conditions}
        rates = {condition: None if m is None else m.values for condition, m in metrics.items()}
        plots.append(accuracy_plot(checkpoint, report.turns, rates, policies))
    subtitle = f"{report.title}; bands are 95\u00a0% intervals"
    return Chart("solved_by_turn", "Solved within t turns, by condition", tuple(plots), subtitle)


def effect_chart(report: EvaluationReport) -> Chart:
    """Plot the effect of each condition, one plot per checkpoint."""
    effects = [(e.checkpoint, e.condition, e.difference) for e in report.effects]
    return effects_chart("hint_effect", f"{report.title}; bars are 95\u00a0% intervals", report.turns, effects)


def benchmark_plot(scores: Mapping[str, Mapping[str, Interval]]) -> Plot:
    """Plot solve rates by checkpoint (rows) and benchmark (columns) as a heatmap; see `report.benchmark_scores`."""
    benchmarks = list(dict.fromkeys(name for row in scores.values() for name in row))
    xs = [float(i) for i in range(len(benchmarks))]
    missing = Interval(value=None, n=0)
    lines = []
    for checkpoint, row in scores.items():
        cells = [row.get(name, missing) for name in benchmarks]
        lines.append(
            Line(checkpoint, xs, [c.value for c in cells], low=[c.low for c in cells], high=[c.high for c in cells],
                 at=[[checkpoint, "hints"] for _ in cells])
        )  # fmt: skip
    return Plot(lines, x_title="benchmark", format="share", kind="heatmap", columns=benchmarks)


def benchmark_chart(report: EvaluationReport) -> Chart:
    """Plot the solve rates of a mixture by checkpoint and sub-environment; without plots for other reports."""
    scores = report.benchmark_scores()
    title = f"Solved within {report.turns} turns, by checkpoint and benchmark"
    subtitle = f"{report.title}; in brackets 95\u00a0% intervals"
    return Chart("benchmarks", title, (benchmark_plot(scores),) if scores else (), subtitle)


def training_chart(rows: Sequence[Mapping[str, float]], title: str, name: str = "training") -> Chart:
    """Plot training curves from metric rows such as `{"step": 3, "reward": .2, "time/rollout": 9.1}`.

    Plots without data are left out.
    """
    ordered = sorted(rows, key=lambda row: row["step"])
    keys = list(dict.fromkeys(key for row in ordered for key in row))
    solved = sorted((k for k in keys if k.startswith("cum_acc/")), key=lambda k: int(k.split("/")[1]))
    revisions = ("retention", "plasticity", "improving_change_rate", "repeated_answer_rate")
    groups = {"mixed": "mixed", "all_correct": "all correct ✓", "all_incorrect": "all incorrect ✗"}
    curves: list[tuple[str, str, dict[str, str]]] = [
        ("Reward", "reward per dialogue", {"reward": "mean", "reward_std": "standard deviation"}),
        ("Solved", "fraction of dialogues", {k: f"within t = {k.split('/')[1]}" for k in solved[:1] + solved[-1:]}),
        ("Revisions after feedback", "fraction", {key: key for key in revisions}),
        ("Groups", "fraction of groups", {f"groups/frac_{key}": label for key, label in groups.items()}),
        ("Time", "seconds per step", {k: k.removeprefix("time/") for k in keys if k.startswith("time/")}),
    ]
    plots = []
    for heading, unit, labels in curves:
        lines: list[Line] = []
        for key, label in labels.items():
            points = [(float(row["step"]), row[key]) for row in ordered if row.get(key) is not None]
            if points:
                x, y = zip(*points, strict=True)
                color = _TRAINING_COLORS.get(label, SERIES[len(lines) % len(SERIES)])
                lines.append(Line(label, x, y, color, dash=DASHES[len(lines) % len(DASHES)]))
        if lines:
            steps = sorted({x for line in lines for x in line.x if x is not None})
            fraction = unit.startswith("fraction")
            plots.append(Plot(lines, format="share" if fraction else "number", range=(0.0, 1.03) if fraction else None,
                              x_ticks=steps if len(steps) <= 12 else (), title=heading, unit=unit))  # fmt: skip
    return Chart(name, title, tuple(plots))
