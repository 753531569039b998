"""Plots of an evaluation and of training, for `plotting` (Plotly) and `figure_files` (PNG).

Green and red are used only for correct and incorrect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl2f_core.evaluation.plotting import CONDITION_COLORS, DASHES, SERIES, Format, Line, Plot
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.stats.intervals import Interval

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


def interval_limits(intervals: Iterable[Interval], margin: float = 0.03) -> tuple[float, float]:
    """Return axis limits that contain all intervals and ±0.1."""
    ends = [v for i in intervals for v in (i.low, i.high, i.value) if v is not None]
    return min([-0.1, *ends]) - margin, max([0.1, *ends]) + margin


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
    """Plot the effect of each condition against contentless feedback, one plot per checkpoint."""
    effects = [e for e in report.effects if e.difference.value is not None]
    limits = interval_limits(e.difference for e in effects)
    unit = f"difference in solve rate within {report.turns} turns"
    plots = []
    for checkpoint in report.checkpoints:
        rows = [(e.condition, e.difference) for e in effects if e.checkpoint == checkpoint]
        if rows:
            plots.append(interval_plot(checkpoint, rows, unit, limits, "difference"))
    subtitle = f"{report.title}; bars are 95\u00a0% intervals"
    return Chart("hint_effect", "Difference to contentless feedback, by condition", tuple(plots), subtitle)


def training_chart(rows: Sequence[Mapping[str, Any]], title: str, name: str = "training") -> Chart:
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
