"""What the figures of an evaluation and of training show, as plain data that `figures` draws.

A series differs by dash and marker as well as by colour; green and red stand only for right and wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rl2f_core.evaluation.report import EvaluationReport, interval_text
from rl2f_core.evaluation.statistics import Interval

GREY = "#7b7b7b"
"""Text and axes: contrast above 4 on white and on near-black."""


class Style(NamedTuple):
    """How a series looks; `marker` is Plotly's name."""

    color: str
    dash: str = "solid"
    marker: str | None = "circle"
    width: float = 2.0
    band: bool = False


STYLES: dict[str, Style] = {
    "hints": Style("#2f7fd6", "solid", "circle", 3.0, band=True),
    "contentless": Style("#e08a00", "dash", "square", 2.4, band=True),
    "resample": Style("#a0785a", "dot", "diamond"),
    "shuffled": Style("#22a5b5", "dashdot", "triangle-up"),
    "misleading": Style("#b4509e", "longdash", "triangle-down"),
    "best player with hints": Style(GREY, "solid", None, 1.2),
    "copying only": Style(GREY, "dash", None, 1.2),
    "best player without hints": Style(GREY, "dot", None, 1.2),
    "best constant answer": Style(GREY, "dashdot", None, 1.2),
    "all right ✓": Style("#2f9e60", "dash", "triangle-up"),
    "all wrong ✗": Style("#d24b5a", "dot", "x"),
}
"""Series with a look of their own; others take the looks of the controls in order."""
_CYCLE = ("hints", "contentless", "shuffled", "misleading", "resample")


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one row of an interval plot (a single point)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    style: Style
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    text: tuple[str, ...] = ()
    """What stands at each point on hover."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes. Of kind `intervals`, each series is a row: its value and interval lie along x."""

    title: str
    series: tuple[Series, ...]
    x_title: str
    y_title: str
    kind: Literal["lines", "intervals"] = "lines"
    range: tuple[float, float] | None = None
    """Of the values: y for lines, x for intervals."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure: panels from top to bottom."""

    name: str
    """File stem."""
    title: str
    panels: tuple[Panel, ...]
    subtitle: str = ""

    @property
    def shared_legend(self) -> bool:
        """One panel of lines holds the series of all, so that one legend serves all."""
        names = [{s.name for s in p.series} for p in self.panels if p.kind == "lines"]
        return not names or max(names, key=len) == set().union(*names)


def accuracy_chart(report: EvaluationReport) -> Chart:
    """Cumulative accuracy by turn: a panel for each checkpoint, a line for each control, the closed-form players."""
    turns = tuple(range(1, report.turns + 1))
    players: list[Series] = []
    for name, field in (
        ("best player with hints", "with_hints"),
        ("copying only", "copying"),
        ("best player without hints", "without_hints"),
    ):
        points = [(r.turn, getattr(r, field)) for r in report.references if getattr(r, field) is not None]
        if points:
            x, y = zip(*points, strict=True)
            players.append(Series(name, x, y, STYLES[name], text=tuple(f"{v:.2f}" for v in y)))
    if report.floor is not None:
        level = report.floor.score
        players.append(Series("best constant answer", tuple(float(t) for t in turns), (level,) * len(turns),
                              STYLES["best constant answer"], text=(f"{level:.2f}",) * len(turns)))  # fmt: skip
    panels = []
    for checkpoint in report.checkpoints:
        lines: list[Series] = []
        for control in report.controls:
            metrics = report.metrics(checkpoint, control)
            if metrics is not None:
                lines.append(_line(control, turns, metrics.series("cum_acc"), len(lines)))
        panels.append(Panel(checkpoint, (*lines, *players), "turn", "share solved", range=(0.0, 1.03)))
    subtitle = f"{report.title}; bands are 95\u00a0% intervals"
    return Chart("solved_by_turn", "Solved within t turns, by what the teacher says", tuple(panels), subtitle)


def effect_chart(report: EvaluationReport) -> Chart:
    """Each control's effect against contentless feedback with its interval: a panel for each checkpoint."""
    held = [e for e in report.effects if e.difference.value is not None]
    ends = [v for e in held for v in (e.difference.low, e.difference.high, e.difference.value) if v is not None]
    low, high = min([-0.1, *ends]) - 0.03, max([0.1, *ends]) + 0.03
    panels = []
    for checkpoint in report.checkpoints:
        rows: list[Series] = []
        for effect in held:
            if effect.checkpoint == checkpoint:
                found = effect.difference
                rows.append(
                    Series(effect.control, (_known(found),), (None,), _style(effect.control, len(rows)), (found.low,),
                           (found.high,), (interval_text(found, signed=True),))
                )  # fmt: skip
        if rows:
            unit = f"difference in share solved within {report.turns} turns"
            panels.append(Panel(checkpoint, tuple(rows), unit, "", "intervals", (low, high)))
    subtitle = f"{report.title}; bars are 95\u00a0% intervals"
    return Chart("hint_effect", "Difference to contentless feedback, by control", tuple(panels), subtitle)


_TRAINING: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Reward", "reward of a dialogue", {"reward": "mean", "reward_std": "standard deviation"}),
    ("Solved", "share of dialogues", {}),
    (
        "The attempt after feedback",
        "share",
        {key: key for key in ("retention", "plasticity", "useful_change", "repeat_rate")},
    ),
    (
        "Groups",
        "share of groups",
        {
            "groups/frac_mixed": "mixed",
            "groups/frac_all_right": "all right ✓",
            "groups/frac_all_wrong": "all wrong ✗",
        },
    ),
    ("Time", "seconds a step", {}),
)  # fmt: skip


def training_chart(rows: Sequence[Mapping[str, Any]], title: str, name: str = "training") -> Chart:
    """Training curves from metric rows `{"step": 3, "reward": .2, "seconds/rollout": 9.1, …}`.

    Drawn where present: reward, reward_std, the first and the last cum_acc/t, retention, plasticity, useful_change,
    repeat_rate, groups/frac_…, and every `seconds/<phase>`. Panels without data are left out.
    """
    ordered = sorted(rows, key=lambda row: row["step"])
    keys = list(dict.fromkeys(key for row in ordered for key in row))
    solved = sorted((k for k in keys if k.startswith("cum_acc/")), key=lambda k: int(k.split("/")[1]))
    panels = []
    for heading, unit, known in _TRAINING:
        if heading == "Solved":
            known = {k: f"within t = {k.split('/')[1]}" for k in solved[:1] + solved[-1:]}
        elif heading == "Time":
            known = {k: k.removeprefix("seconds/") for k in keys if k.startswith("seconds/")}
        series: list[Series] = []
        for key, label in known.items():
            points = [(row["step"], row[key]) for row in ordered if row.get(key) is not None]
            if points:
                x, y = zip(*points, strict=True)
                style = _style(label, len(series))
                if len(points) > 15:
                    style = style._replace(marker=None)
                series.append(Series(label, x, y, style._replace(width=2.0), text=tuple(f"{v:.3g}" for v in y)))
        if series:
            limits = (0.0, 1.03) if unit.startswith("share") else None
            panels.append(Panel(heading, tuple(series), "step", unit, range=limits))
    return Chart(name, title, tuple(panels))


def _line(control: str, turns: tuple[int, ...], found: Sequence[Interval], position: int) -> Series:
    return Series(
        control, tuple(float(t) for t in turns), tuple(i.value for i in found), _style(control, position),
        tuple(i.low for i in found), tuple(i.high for i in found), tuple(interval_text(i) for i in found),
    )  # fmt: skip


def _style(name: str, position: int) -> Style:
    return STYLES[name] if name in STYLES else STYLES[_CYCLE[position % len(_CYCLE)]]


def _known(interval: Interval) -> float:
    assert interval.value is not None
    return interval.value
