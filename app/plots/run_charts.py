"""Charts of a run: a curated overview, and any other metric by name.

The metrics of a stage that learns from demonstrations describe the demonstrations. The overview therefore contains
only its loss, entropy and speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from app.plots.metric_info import METRICS, group_info, metric_info
from app.plots.series import Look, MetricRow, XKind, axis, column, line, names_of, turns_of
from rl2f_core.evaluation.plotting import SERIES, Number, Plot, figure
from rl2f_core.metrics.dialogues import OUTCOMES
from rl2f_core.stats.intervals import effective_number
from rl2f_core.types import JsonObject

Sizes = Mapping[tuple[str, int], Mapping[int, float]]
"""Effective number of independent dialogues by stage and step, then by turn."""


OUTCOME_COLORS = {
    "truncated": "--rl-plot-4",
    "unparsable": "--rl-plot-2",
    "incorrect_format_error": "--rl-plot-3",
    "incorrect": "--rl-wrong",
    "correct_format_error": "--rl-plot-5",
    "correct": "--rl-right",
}
"""Colors in the order of the stack, from the bottom."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its texts for the page."""

    key: str
    title: str
    unit: str
    names: Sequence[str]
    """Metrics in the plot."""
    figure: JsonObject
    note: str = ""
    help: str = ""
    formula: str = ""

    def as_json(self) -> JsonObject:
        """Return plain data, with a text description."""
        return {**asdict(self), "words": describe(self)}


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """Plot settings of the user, and facts about the run."""

    x: XKind = "step"
    weight: float = 0.0
    """Smoothing weight β, 0 ≤ β < 1."""
    began: float | None = None
    sizes: Sizes | None = None
    off_policy: frozenset[str] = frozenset()
    """Stages that learn from demonstrations."""
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """Style of a chart; empty sequences select the defaults."""

    colors: Sequence[str] = ()
    dashes: Sequence[str] = ()
    kind: Literal["lines", "stack"] = "lines"
    limit: tuple[float, str] | None = None
    """As in `Plot`."""


_BY_CORRECTNESS = ChartStyle(["--rl-student", "--rl-right", "--rl-wrong"], ["solid", "dash", "dot"])
"""Style of all, correct and incorrect attempts."""


def overview(rows: Sequence[MetricRow], options: PlotOptions) -> list[Chart]:
    """Return the most important charts, without those that lack data."""
    on_policy = [row for row in rows if row.stage not in options.off_policy]
    if options.x == "tokens" and not on_policy:  # demonstrations are not sampled
        options = replace(options, x="step")
    all_rows = on_policy if options.x == "tokens" else list(rows)
    makers: list[tuple[Callable[[Sequence[MetricRow], PlotOptions], Chart | None], Sequence[MetricRow]]] = [
        (_single("reward"), on_policy), (_solved, on_policy), (_parts, on_policy), (_revisions, on_policy),
        (_groups, on_policy), (_outcomes, on_policy), (_level, all_rows), (_level_solved, all_rows),
        (_single("leak_rate", "leak_rate", "--rl-leak"), on_policy), (_yield, all_rows), (_length, on_policy),
        (_reflection, on_policy), (_single("approx_kl"), on_policy),
        (_single("off_context/masked_frac", "masked"), on_policy),
        (_single("value/explained_variance", "explained variance"), on_policy), (_single("entropy"), all_rows),
        (_loss, all_rows), (_speed, all_rows),
    ]  # fmt: skip
    charts = [make(chosen, options) for make, chosen in makers if chosen]
    return [chart for chart in charts if chart is not None]


def series(rows: Sequence[MetricRow], names: Sequence[str], options: PlotOptions) -> list[Chart]:
    """Return one chart per existing metric; a name that ends in `/` selects the whole group."""
    available = names_of(rows)
    charts = []
    for name in names:
        selected = [n for n in available if (n.startswith(name) if name.endswith("/") else n == name)]
        chart = _chart(name, rows, options, {n: n.removeprefix(name) or n for n in selected})
        if chart is not None:
            charts.append(chart)
    return charts


# -- curated charts ------------------------------------------------------------------------------------------------
def _single(
    name: str, label: str = "", color: str = "--rl-student"
) -> Callable[[Sequence[MetricRow], PlotOptions], Chart | None]:
    """Return a function that draws one metric."""
    return lambda rows, options: _chart(name, rows, options, {name: label or name}, ChartStyle([color]))


def _solved(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    turns = turns_of(names_of(rows), "cum_acc")
    banded = turns if len(turns) <= 3 else turns[:1] + turns[-1:]
    sizes = {f"cum_acc/{t}": _sizes(rows, t, options) for t in banded}
    has_baseline = turns and any("constant_baseline" in row.values for row in rows)
    baseline = {"constant_baseline": "constant answer"} if has_baseline else {}
    shares = [1.0] if len(turns) == 1 else [0.4 + 0.6 * i / (len(turns) - 1) for i in range(len(turns))]
    chart = _chart(
        "cum_acc/", rows, options, {f"cum_acc/{t}": f"t = {t}" for t in turns} | baseline,
        ChartStyle([*(f"mix(--rl-surface,--rl-student,{share:.2f})" for share in shares), "--rl-muted"],
                   [*("solid" for _ in turns), "dash"]), sizes,
    )  # fmt: skip
    if chart is None:
        return None
    has_bands = any(any(values) for values in sizes.values() if values)
    help = "Cumulative accuracy, one line per turn, and the constant baseline."
    note = "bands: 95 % intervals" if has_bands else ""
    return replace(chart, title="Solved within t turns", help=help, note=note)


def _parts(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("solved/")]
    chart = _chart("solved/", rows, options, {name: name.partition("/")[2] for name in names})
    return chart and replace(
        chart, title="Solved by environment", help="Solved within all turns, one line per sub-environment."
    )


def _level(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    return _chart("curriculum/level", rows, replace(options, weight=0.0), {"curriculum/level": "level"})


def _level_solved(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {"curriculum/solve_rate": "this level", "curriculum/replay_solve_rate": "earlier levels"}
    chart = _chart("curriculum/solve_rate", rows, options, shown, ChartStyle(dashes=["solid", "dash"]))
    return chart and replace(
        chart, help="Over the curriculum's window; for earlier levels, over this step's dialogues."
    )


def _revisions(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {
        "plasticity": "changed",
        "improving_change_rate": "improving",
        "retention": "retained",
        "repeated_answer_rate": "repeated",
    }
    chart = _chart("revisions", rows, options, shown,
                   ChartStyle(["--rl-student", "--rl-plot-3", "--rl-plot-5", "--rl-plot-2"],
                              ["solid", "dash", "dot", "dashdot"]))  # fmt: skip
    return chart and replace(
        chart, title="Revisions after feedback", unit="fraction",
        help="changed: plasticity, the answer differs; improving: of those, correct or closer; retained: retention of "
        "correct parts; repeated: repeated_answer_rate, the dialogue already contained the answer.",
        formula="changed = changed answers / revisions; improving = correct or closer / changed; "
        "retained = retained / correct parts; repeated = answers given before / revisions",
    )  # fmt: skip


def _groups(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {
        "groups/frac_all_incorrect": "all incorrect ✗",
        "groups/frac_mixed": "mixed",
        "groups/frac_all_correct": "all correct ✓",
    }
    style = ChartStyle(["--rl-wrong", "--rl-student", "--rl-right"], kind="stack")
    chart = _chart("groups", rows, options, shown, style)
    return chart and replace(
        chart, title="Groups", unit="fraction of groups", names=[*chart.names, "frac_reward_zero_std"],
        note="frac_mixed | all_good | all_bad; frac_reward_zero_std = 1 − mixed",
        help="Only mixed groups give a gradient: equal returns have zero advantage.",
        formula="frac_mixed = groups with different returns / groups = 1 − frac_reward_zero_std",
    )  # fmt: skip


def _length(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    limit = (float(options.max_new_tokens), f"limit {options.max_new_tokens}") if options.max_new_tokens else None
    name = "attempt_tokens"
    is_split = any(f"{name}/correct" in row.values or f"{name}/incorrect" in row.values for row in rows)
    shown = _by_correctness(name) if is_split else {name: name}
    return _chart(name, rows, options, shown, replace(_BY_CORRECTNESS, limit=limit))


def _reflection(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    name = "reflection_words"
    if not any(row.values.get(name) for row in rows):  # a student that never reflects has no curve
        return None
    chart = _chart(name, rows, options, _by_correctness(name), _BY_CORRECTNESS)
    return chart and replace(chart, help="check, verify, wait, however, re-evaluate, let me …, by correctness.")


def _by_correctness(name: str) -> dict[str, str]:
    return {name: "all", f"{name}/correct": "correct", f"{name}/incorrect": "incorrect"}


def _outcomes(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {f"outcome/{name}": name.replace("_", " ") for name in OUTCOME_COLORS}
    shown = {name: label for name, label in shown.items() if any(row.values.get(name) for row in rows)}
    colors = [OUTCOME_COLORS[name.removeprefix("outcome/")] for name in shown]
    chart = _chart("outcome/", rows, options, shown, ChartStyle(colors, kind="stack"))
    texts = "; ".join(f"{name.replace('_', ' ')}: {text}" for name, text in OUTCOMES.items())
    return chart and replace(chart, help=f"Exclusive fractions of attempts that add up to 1. {texts}.")


def _yield(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    key = "distill/acceptance_rate"
    names = [name for name in names_of(rows) if name.startswith(f"{key}/")]
    parts = {name: name.removeprefix(f"{key}/") for name in names} if len(names) > 1 else {}
    return _chart(key, rows, options, {key: "all"} | parts)


def _loss(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    chosen = [row for row in rows if row.stage in options.off_policy]
    chart = _chart("loss/ce", chosen, options, {"loss/ce": "loss/ce"})
    return chart and replace(
        chart,
        title="Loss on demonstrations",
        unit="cross-entropy, nats per token",
        help="loss/ce: negative log-probability of the demonstrations.",
        formula="mean of −log π(token)",
    )


def _speed(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("time/")]
    weights = {name: sum(value or 0.0 for value in column(rows, name)) for name in names}
    ordered = sorted(names, key=lambda name: -weights[name])
    chart = _chart("time/", rows, options, {name: name.partition("/")[2] for name in ordered},
                   ChartStyle([SERIES[i % len(SERIES)] for i in range(len(ordered))], kind="stack"))  # fmt: skip
    return chart and replace(
        chart, title="Time by phase", help="rollout: sampling; update: training; sync: new weights."
    )


# -- shared --------------------------------------------------------------------------------------------------------
def _chart(
    key: str,
    rows: Sequence[MetricRow],
    options: PlotOptions,
    shown: Mapping[str, str],
    style: ChartStyle | None = None,
    sizes: Mapping[str, Sequence[Number] | None] | None = None,
) -> Chart | None:
    """Return a chart of `shown` (metric → label); None if no row has any of them."""
    style = style or ChartStyle()
    present = [name for name in shown if any(name in row.values for row in rows)]
    if not present:
        return None
    chosen = [row for row in rows if not row.values.keys().isdisjoint(present)]
    along = axis(chosen, options.x, options.began)
    lines = []
    for i, name in enumerate(present):
        default = "--rl-student" if len(present) == 1 else SERIES[i % len(SERIES)]
        look = Look(style.colors[i] if style.colors else default, style.dashes[i] if style.dashes else "solid")
        values = column(chosen, name)
        if style.kind == "stack":
            values = [value if value is not None else 0.0 for value in values]
        lines.append(
            line(shown[name], values, along, weight=options.weight, sizes=(sizes or {}).get(name),
                 raw=len(present) == 1, gaps=style.kind == "lines", look=look)
        )  # fmt: skip
    info = group_info(key) if key.endswith("/") else metric_info(key if key in METRICS else present[0])
    marks = along.marks()
    plot = Plot(lines, x_title=along.title, format=info.format, kind=style.kind, marks=marks if len(marks) <= 8 else [],
                limit=style.limit)  # fmt: skip
    return Chart(key, info.title, info.unit, present, figure(plot), help=info.help, formula=info.formula)


def _sizes(rows: Sequence[MetricRow], turn: int, options: PlotOptions) -> list[Number] | None:
    """Return effective sizes; unknown if groups were resampled, because metrics exclude the discarded ones."""
    if options.sizes is None:
        return None
    sizes: list[Number] = []
    for row in rows:
        known = options.sizes.get((row.stage, row.step), {}).get(turn)
        sizes.append(None if row.values.get("groups/resampled") else known)
    return sizes


def sizes_of(
    groups: Iterable[tuple[str, int, str, int | None, int]], turns: int
) -> dict[tuple[str, int], dict[int, float]]:
    """Return `Sizes` from counts of dialogues by (stage, step, group, solved at, number)."""
    by_step: dict[tuple[str, int], dict[str, Counter[int | None]]] = {}
    for stage, step, group, solved_at, count in groups:
        by_step.setdefault((stage, step), {}).setdefault(group, Counter())[solved_at] += count
    sizes: dict[tuple[str, int], dict[int, float]] = {}
    for key, by_group in by_step.items():
        counts = [float(solved.total()) for solved in by_group.values()]
        sizes[key] = {
            turn: effective_number([solved_within(solved, turn) for solved in by_group.values()], counts)[1]
            for turn in range(1, turns + 1)
        }
    return sizes


def solved_within(solved: Mapping[int | None, int], turns: int) -> float:
    """Return how many dialogues were solved within `turns`, from their number by turn."""
    return float(sum(n for at, n in solved.items() if at is not None and at <= turns))


def catalogue(names: Sequence[str]) -> list[dict[str, str]]:
    """Return a description of every metric and metric group, for the search box."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "/" in name)
    families = [f"{head}/" for head in heads if sum(name.startswith(f"{head}/") for name in names) > 1]
    entries = []
    for name in [*names, *families]:
        info = group_info(name) if name.endswith("/") else metric_info(name)
        title = f"{info.title}, all" if name.endswith("/") else info.title
        entries.append({"name": name, "title": title, "unit": info.unit, "help": info.help})
    return entries


def describe(chart: Chart) -> str:
    """Describe a chart for screen readers."""
    parts = []
    for trace in chart.figure["data"]:
        if trace.get("meta") == "line":
            texts = [text for text, y in zip(trace["text"], trace["y"], strict=True) if y is not None]
            parts.append(f"{trace['name']} {texts[-1] if texts else '–'}")
    return f"{chart.title} ({chart.unit}): newest {'; '.join(parts)}"
