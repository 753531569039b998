"""Charts of a run: a curated overview, and any other metric by name.

The metrics of a stage that learns from demonstrations describe the demonstrations. The overview therefore contains
only its loss, entropy and speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from app.plots.metric_info import METRIC_GROUPS, METRICS, chart_info, group_info, metric_info
from app.plots.series import Look, MetricRow, StepMetrics, XKind, axis, column, line, names_of, turns_of
from jobs.db.errors import NotFoundError
from rl2f_core.common.stats.intervals import effective_number
from rl2f_core.evaluation.plotting import SERIES, Line, Number, Plot, figure
from rl2f_core.types import JsonObject

Sizes = Mapping[tuple[str, int], Mapping[int, float]]
"""Effective number of independent dialogues by stage and step, then by turn."""
CleanSteps = Mapping[tuple[str, int], Mapping[str, float]]
"""Metrics `reward/clean` and `solved/clean` of the dialogues in which no leak was read, by stage and step."""
OUTCOME_COLORS = {
    "truncated": "--rl-plot-4",
    "unparsable": "--rl-plot-2",
    "incorrect_format_error": "--rl-plot-3",
    "incorrect": "--rl-wrong",
    "correct_format_error": "--rl-plot-5",
    "correct": "--rl-right",
}
"""Colors in the order of the stack, from the bottom."""
MAX_STEP_TICKS = 6
"""Up to this number of steps each one has a tick; plotly.js would add fractions of steps."""


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
    clean: CleanSteps = field(default_factory=dict)
    """Empty if no leak was read."""
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


Maker = Callable[[Sequence[MetricRow], PlotOptions], Chart | None]
"""Draws one chart of the overview; None without data."""
_BY_CORRECTNESS = ChartStyle(["--rl-student", "--rl-right", "--rl-wrong"], ["solid", "dash", "dot"])
"""Style of all, correct and incorrect attempts."""
REVISIONS = {
    "plasticity": "changed",
    "improving_change_rate": "improving",
    "retention": "retained",
    "repeated_answer_rate": "repeated",
}
REVISION_COLORS = ["--rl-student", "--rl-plot-3", "--rl-plot-5", "--rl-plot-2"]
INFORMATION = {"hint_bits": "bits in a hint", "bits_left": "bits left"}
EFFICIENCY = {"efficiency": "used of its bits", "efficiency_chance": "by chance"}
LEAKS = {"leak_rate": "read by the student", "prevented_leak_rate": "prevented"}
NO_LEAK_READ = "no leak read"
REWARD = {"reward": "reward", "reward/clean": NO_LEAK_READ}
LEVEL_SOLVED = {"curriculum/solve_rate": "this level", "curriculum/replay_solve_rate": "earlier levels"}


def overview(rows: Sequence[MetricRow], options: PlotOptions) -> list[Chart]:
    """Return the most important charts, without those that lack data."""
    rows = [_with_clean(row, options.clean) for row in rows]
    on_policy = [row for row in rows if row.stage not in options.off_policy]
    if options.x == "tokens" and not on_policy:  # demonstrations are not sampled
        options = replace(options, x="step")
    all_rows = on_policy if options.x == "tokens" else rows
    charts = [make(all_rows if of_all_stages else on_policy, options) for make, of_all_stages in OVERVIEW]
    return [chart for chart in charts if chart is not None]


def series(rows: Sequence[MetricRow], names: Sequence[str], options: PlotOptions) -> list[Chart]:
    """Return one chart per existing metric; a name that ends in `/` selects the whole group."""
    available = names_of(rows)
    charts = []
    for name in names:
        selected = [n for n in available if (n.startswith(name) if name.endswith("/") else n == name)]
        charts.append(_chart(name, rows, options, {n: n.removeprefix(name) or n for n in selected}))
    return [chart for chart in charts if chart is not None]


def _with_clean(row: MetricRow, clean: CleanSteps) -> MetricRow:
    values = {**row.values, **clean.get((row.stage, row.step), {})}
    return StepMetrics(row.stage, row.step, row.number, row.time, values, row.tokens)


# -- curated charts ------------------------------------------------------------------------------------------------
def _fixed(key: str, labels: Mapping[str, str] | None = None, style: ChartStyle | None = None) -> Maker:
    """Return a function that draws the metrics of `labels`, by default the metric `key`."""
    return lambda rows, options: _chart(key, rows, options, labels or {key: key}, style)


def _solved(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    turns = turns_of(names_of(rows), "cum_acc")
    clean = {"solved/clean": NO_LEAK_READ} if any("solved/clean" in row.values for row in rows) else {}
    baseline = {"constant_baseline": "constant answer"} if turns else {}
    shown = {f"cum_acc/{t}": f"t = {t}" for t in turns} | clean | baseline
    rows = [row for row in rows if not row.values.keys().isdisjoint(shown)]  # `_chart` omits the others
    banded = turns if len(turns) <= 3 else turns[:1] + turns[-1:]
    sizes = {f"cum_acc/{t}": _sizes(rows, t, options) for t in banded}
    weights = [1.0] if len(turns) == 1 else [0.4 + 0.6 * i / (len(turns) - 1) for i in range(len(turns))]
    colors = [f"mix(--rl-surface,--rl-student,{weight:.2f})" for weight in weights]
    style = ChartStyle([*colors, *("--rl-leak" for _ in clean), "--rl-muted"],
                       [*("solid" for _ in turns), *("dot" for _ in clean), "dash"])  # fmt: skip
    has_bands = any(any(values) for values in sizes.values() if values)
    note = "bands: 95 % intervals" if has_bands else ""
    return _chart("cum_acc/", rows, options, shown, style, sizes, note)


def _parts(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("solved/") and name != "solved/clean"]
    return _chart("solved/", rows, options, {name: name.partition("/")[2] for name in names})


def _level(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    return _chart("curriculum/level", rows, replace(options, weight=0.0), {"curriculum/level": "level"})


def _groups(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {
        "groups/frac_all_incorrect": "all incorrect ✗",
        "groups/frac_mixed": "mixed",
        "groups/frac_all_correct": "all correct ✓",
    }
    style = ChartStyle(["--rl-wrong", "--rl-student", "--rl-right"], kind="stack")
    note = "frac_mixed | all_good | all_bad; frac_reward_zero_std = 1 − mixed"
    chart = _chart("groups/", rows, options, shown, style, note=note)
    return chart and replace(chart, key="groups", names=[*chart.names, "frac_reward_zero_std"])


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
    return _chart(name, rows, options, _by_correctness(name), _BY_CORRECTNESS)


def _by_correctness(name: str) -> dict[str, str]:
    return {name: "all", f"{name}/correct": "correct", f"{name}/incorrect": "incorrect"}


def _outcomes(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    shown = {f"outcome/{name}": name.replace("_", " ") for name in OUTCOME_COLORS}
    shown = {name: label for name, label in shown.items() if any(row.values.get(name) for row in rows)}
    colors = [OUTCOME_COLORS[name.removeprefix("outcome/")] for name in shown]
    return _chart("outcome/", rows, options, shown, ChartStyle(colors, kind="stack"))


def _yield(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    key = "distill/acceptance_rate"
    names = [name for name in names_of(rows) if name.startswith(f"{key}/")]
    parts = {name: name.removeprefix(f"{key}/") for name in names} if len(names) > 1 else {}
    return _chart(key, rows, options, {key: "all"} | parts)


def _loss(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    demonstrated = [row for row in rows if row.stage in options.off_policy]
    return _chart("loss/ce", demonstrated, options, {"loss/ce": "loss/ce"})


def _time(rows: Sequence[MetricRow], options: PlotOptions) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("time/")]
    weights = {name: sum(value or 0.0 for value in column(rows, name)) for name in names}
    shown = {name: name.partition("/")[2] for name in sorted(names, key=lambda name: -weights[name])}
    total = sum(weights.values())
    note = f"{next(iter(shown.values()))} takes {weights[next(iter(shown))] / total:.0%}" if total else ""
    return _chart("time/", rows, options, shown, ChartStyle(kind="stack"), note=note)


OVERVIEW: Sequence[tuple[Maker, bool]] = (
    (_fixed("reward", REWARD, ChartStyle(["--rl-student", "--rl-leak"], ["solid", "dot"])), False),
    (_solved, False),
    (_parts, False),
    (_fixed("revisions", REVISIONS, ChartStyle(REVISION_COLORS, ["solid", "dash", "dot", "dashdot"])), False),
    (_groups, False),
    (_outcomes, False),
    (_level, True),
    (_fixed("curriculum/solve_rate", LEVEL_SOLVED, ChartStyle(dashes=["solid", "dash"])), True),
    (_fixed("hint_bits", INFORMATION, ChartStyle(["--rl-student", "--rl-plot-3"], ["solid", "dash"])), False),
    (_fixed("efficiency", EFFICIENCY, ChartStyle(["--rl-student", "--rl-muted"], ["solid", "dash"])), False),
    (_fixed("leak_rate", LEAKS, ChartStyle(["--rl-leak", "--rl-muted"], ["solid", "dash"])), False),
    (_yield, True),
    (_length, False),
    (_reflection, False),
    (_fixed("approx_kl"), False),
    (_fixed("off_context/masked_frac", {"off_context/masked_frac": "masked"}), False),
    (_fixed("value/explained_variance", {"value/explained_variance": "explained variance"}), False),
    (_fixed("entropy"), True),
    (_loss, True),
    (_time, True),
    (_fixed("system/cpu_cores", {"system/cpu_cores": "CPU"}), True),
    (_fixed("system/memory_gb", {"system/memory_gb": "processes", "system/gpu_memory_gb": "GPU"}), True),
    (_fixed("system/gpu_utilization", {"system/gpu_utilization": "GPU"}), True),
)
"""The charts in their order, and whether they include the stages that learn from demonstrations."""


# -- shared --------------------------------------------------------------------------------------------------------
def _chart(
    key: str,
    rows: Sequence[MetricRow],
    options: PlotOptions,
    shown: Mapping[str, str],
    style: ChartStyle | None = None,
    sizes: Mapping[str, Sequence[Number] | None] | None = None,
    note: str = "",
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
        drawn = line(shown[name], values, along, weight=options.weight, sizes=(sizes or {}).get(name),
                     raw=len(present) == 1, gaps=style.kind == "lines", look=look)  # fmt: skip
        lines.append(drawn if options.sizes is None else _mark_unstored(drawn, options.sizes, options.off_policy))
    info = chart_info(key)
    marks = along.marks()
    plot = Plot(
        lines,
        x_title=along.title,
        format=info.format,
        kind=style.kind,
        marks=marks if len(marks) <= 8 else [],
        limit=style.limit,
        x_ticks=along.values if options.x == "step" and len(along.values) <= MAX_STEP_TICKS else (),
    )
    return Chart(key, info.title, info.unit, present, figure(plot), note, info.help, info.formula)


def _mark_unstored(drawn: Line, stored: Sizes, off_policy: Collection[str]) -> Line:
    """Return a line whose steps without stored dialogues say so and have no dialogues to open."""
    missing = [at is not None and at[0] not in off_policy and tuple(at[:2]) not in stored for at in drawn.at]
    at = [None if absent else at for at, absent in zip(drawn.at, missing, strict=True)]
    return replace(drawn, at=at, note=["(dialogues not stored)" if absent else "" for absent in missing])


def _sizes(rows: Sequence[MetricRow], turn: int, options: PlotOptions) -> list[Number] | None:
    """Return effective sizes."""
    if options.sizes is None:
        return None
    return [options.sizes.get((row.stage, row.step), {}).get(turn) for row in rows]


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


def check_metrics(names: Iterable[str], available: Iterable[str]) -> None:
    """Raise `NotFoundError` for a metric or group that is neither available nor documented."""
    known = [*available]
    for name in names:
        is_documented = name.partition("/")[0] in METRICS or name.partition("/")[0] in METRIC_GROUPS
        is_group = name.endswith("/") and any(item.startswith(name) for item in known)
        if name not in known and not is_documented and not is_group:
            raise NotFoundError("Unknown metric.", value=name, known=known)


def describe(chart: Chart) -> str:
    """Describe a chart for screen readers."""
    parts = []
    for trace in chart.figure["data"]:
        if trace.get("meta") == "row":
            cells = zip(trace["x"], trace["text"], strict=True)
            parts.append(f"{trace['name']} {', '.join(f'{x} {text}'.replace('<br>', ' ') for x, text in cells)}")
        if trace.get("meta") == "line":
            texts = [text for text, y in zip(trace["text"], trace["y"], strict=True) if y is not None]
            parts.append(f"{trace['name']} {texts[-1] if texts else '–'}")
    return f"{chart.title} ({chart.unit}): newest {'; '.join(parts)}"
