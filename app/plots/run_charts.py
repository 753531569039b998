"""Charts of a run: a curated overview, and any other metric by name.

The metrics of a stage that learns from demonstrations describe the demonstrations. The overview therefore contains
only its loss, entropy and speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from app.plots.series import Look, MetricRow, XKind, axis, column, line, names_of, turns_of
from rl2f_core.evaluation.plotting import SERIES, Format, Number, Plot, figure
from rl2f_core.metrics.dialogues import OUTCOMES
from rl2f_core.stats.intervals import effective_number
from rl2f_core.types import JsonObject

Sizes = Mapping[tuple[str, int], Mapping[int, float]]
"""Effective number of independent dialogues by stage and step, then by turn."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Description of a metric."""

    title: str
    unit: str
    format: Format = "number"
    help: str = ""
    """One sentence."""
    formula: str = ""


OUTCOME_COLORS = {
    "truncated": "--rl-plot-4",
    "unparsable": "--rl-plot-2",
    "incorrect_format_error": "--rl-plot-3",
    "incorrect": "--rl-wrong",
    "correct_format_error": "--rl-plot-5",
    "correct": "--rl-right",
}
"""Colors in the order of the stack, from the bottom."""


def _fraction(title: str, text: str = "", of: str = "fraction", formula: str = "") -> MetricInfo:
    return MetricInfo(title, of, "share", text, formula)


METRICS: dict[str, MetricInfo] = {
    "reward": MetricInfo(
        "Reward", "mean per dialogue", "number", "Sum of all reward terms over a dialogue's turns.", "mean of Σₜ rₜ"
    ),
    "reward_std": MetricInfo(
        "Reward std",
        "standard deviation",
        "number",
        "Standard deviation of the dialogues' rewards.",
        "√(Σ (R − mean R)² / (n − 1))",
    ),
    "gain": _fraction(
        "Multi-turn gain", "Solved after the first turn.", "fraction of dialogues", "cum_acc/T − cum_acc/1"
    ),
    "correction_rate": _fraction(
        "Correction success rate",
        "Solved later, of those not solved at the first turn.",
        formula="P(correct at the end | incorrect at first)",
    ),
    "conditional_solve_rate": _fraction(
        "Conditional solve rate",
        "Correct at this turn, if no earlier attempt is.",
        formula="P(first correct at t | attempt t exists, none before is correct)",
    ),
    "plasticity": _fraction(
        "Plasticity", "The answer changed after feedback.", "fraction of revisions", "changed answers / revisions"
    ),
    "repeated_answer_rate": _fraction(
        "Repeated answers",
        "The dialogue already contained the answer.",
        "fraction of revisions",
        "answers given before / revisions",
    ),
    "improving_change_rate": _fraction(
        "Improving changes",
        "Of the changed answers, those correct or closer.",
        "fraction of changes",
        "P(correct or closer | changed)",
    ),
    "retention": _fraction(
        "Retention",
        "Correct answer parts that the next attempt retains.",
        "fraction of correct parts",
        "retained correct parts / correct parts",
    ),
    "regression_rate": _fraction(
        "Regressions",
        "The answer moved away or lost a correct part.",
        "fraction of revisions",
        "P(distance grew or a correct part was lost)",
    ),
    "misled_rate": _fraction(
        "Misled",
        "Regressions after a misleading hint.",
        "fraction of revisions",
        "regression_rate after misleading hints",
    ),
    "leak_rate": _fraction(
        "Leaks",
        "Hints that leak the answer, by the detectors.",
        "fraction of checked hints",
        "leaking hints / checked hints",
    ),
    "correct_abandoned_rate": _fraction(
        "Abandoned correct answers",
        "Incorrect after a correct attempt.",
        "fraction of attempts",
        "P(incorrect at t + 1 | correct at t)",
    ),
    "attempt_tokens": MetricInfo(
        "Attempt length",
        "tokens per attempt",
        "number",
        "Sampled tokens of an attempt.",
        "tokens of attempts / attempts",
    ),
    "constant_baseline": _fraction(
        "Constant baseline",
        "Solve rate of the best constant answer.",
        "fraction of dialogues",
        "max over answers a of P(a is correct)",
    ),
    "truncated_rate": _fraction(
        "Truncated",
        "Attempts truncated by the token limit.",
        "fraction of attempts",
        "attempts at max_new_tokens / attempts",
    ),
    "parse_failure_rate": _fraction(
        "Parse failures",
        "Attempts without a parsable answer.",
        "fraction of attempts",
        "outcome/unparsable + outcome/truncated",
    ),
    "format_error_rate": _fraction(
        "Format errors", "Attempts with a format error.", "fraction of attempts", "malformed attempts / attempts"
    ),
    "reflection_words": MetricInfo(
        "Reflection words",
        "per 1,000 tokens",
        "number",
        "check, verify, wait, however, re-evaluate, let me …",
        "1000 · words / tokens of attempts",
    ),
    "entropy": MetricInfo(
        "Entropy",
        "nats per token",
        "number",
        "Entropy of the student's next-token distribution.",
        "mean of −Σᵥ π(v) log π(v)",
    ),
    "sampling/kl": MetricInfo(
        "KL of sampler and learner",
        "nats per token",
        "number",
        "sampling/kl: 0 if both agree.",
        "mean of ρ − 1 − log ρ, ρ = π_old / μ",
    ),
    "approx_kl": MetricInfo(
        "KL of old and new policy",
        "nats per token",
        "number",
        "approx_kl: 0 if both agree.",
        "mean of ρ − 1 − log ρ, ρ = π / π_old",
    ),
    "kl": MetricInfo(
        "KL to the reference", "nats per token", "number", "Distance to the reference policy.", "KL(π ‖ π_ref)"
    ),
    "ratio/mean": MetricInfo(
        "Importance ratio", "mean", "number", "Probability under the new and the old policy.", "mean of π / π_old"
    ),
    "clip_ratio": _fraction(
        "Clipped", "Tokens whose ratio was clipped.", "fraction of tokens", "clipped tokens / tokens"
    ),
    "loss": MetricInfo("Loss", "mean per token", "number", "Weighted sum of the loss terms."),
    "grad_norm": MetricInfo(
        "Gradient norm", "before clipping", "number", "Length of the gradient of all trained weights.", "‖∇loss‖₂"
    ),
    "learning_rate": MetricInfo("Learning rate", "", "number", "Step size of the optimizer, by its schedule."),
    "temperature": MetricInfo("Temperature", "of sampling", "number", "Temperature of the sampled attempts."),
    "group_size": MetricInfo("Group size", "dialogues per task", "count", "Dialogues of one task in a step."),
    "curriculum/level": MetricInfo("Level", "of the curriculum", "count", "Difficulty of the newest tasks."),
    "curriculum/solve_rate": _fraction(
        "Solve rate on the level",
        "Over the curriculum's window.",
        "fraction of dialogues",
        "solved dialogues / dialogues",
    ),
    "curriculum/replay_solve_rate": _fraction(
        "Solve rate on earlier levels",
        "Over this step's dialogues.",
        "fraction of dialogues",
        "solved dialogues / dialogues",
    ),
    "off_context/masked_frac": _fraction(
        "Masked off context",
        "Tokens with a too low probability without the critique.",
        "fraction of tokens",
        "1 − tokens after masking / tokens before",
    ),
    "value/explained_variance": MetricInfo(
        "Value head",
        "explained variance",
        "number",
        "1: exact returns; 0: no better than their mean; below 0: worse.",
        "1 − Var(G − V) / Var(G)",
    ),
    "value/loss": MetricInfo("Loss of the value head", "mean per token", "number", "Error of the predicted returns."),
    "value/return": MetricInfo("Return", "mean per token", "number", "Target of the value head."),
    "optimizer_updates": MetricInfo("Optimizer updates", "per step", "count", "Steps of the optimizer."),
    "frac_reward_zero_std": _fraction(
        "Groups with equal reward",
        "TRL's frac_reward_zero_std.",
        "fraction of groups",
        "groups with equal returns / groups",
    ),
    "groups/frac_mixed": _fraction(
        "Mixed groups",
        "Tinker's frac_mixed: their dialogues have different returns.",
        "fraction of groups",
        "1 − frac_reward_zero_std",
    ),
    "groups/frac_all_correct": _fraction(
        "All-correct groups",
        "Tinker's frac_all_good: equal returns, all dialogues solved.",
        "fraction of groups",
        "all-correct groups / groups",
    ),
    "groups/frac_all_incorrect": _fraction(
        "All-incorrect groups",
        "Tinker's frac_all_bad: equal returns, no dialogue solved.",
        "fraction of groups",
        "all-incorrect groups / groups",
    ),
    "groups/resampled": MetricInfo(
        "Resampled groups", "per step", "count", "Groups that were discarded and sampled again."
    ),
    "distill/acceptance_rate": _fraction(
        "Acceptance rate", "Tasks with an accepted answer, so far.", "fraction of tasks", "accepted tasks / tasks"
    ),
    "distill/frac_incorrect": _fraction(
        "Incorrect answers of the source", "", "fraction of samples", "incorrect samples / samples"
    ),
    "distill/frac_unparsable": _fraction(
        "Unparsable answers of the source", "", "fraction of samples", "unparsable samples / samples"
    ),
    "distill/frac_duplicate": _fraction(
        "Duplicate answers of the source", "", "fraction of samples", "duplicates / samples"
    ),
    "distill/frac_too_long": _fraction(
        "Answers longer than allowed", "Too long.", "fraction of samples", "too long samples / samples"
    ),
    "distill/frac_failed": _fraction(
        "Failed answers of the source", "", "fraction of samples", "failed samples / samples"
    ),
    "source/cost": MetricInfo(
        "Cost of the source", "US dollars so far", "number", "By the configured prices.", "Σ tokens · price"
    ),
    "teacher/error_rate": _fraction(
        "Failed hints", "The teacher returned no message.", "fraction of hints", "failed hints / hints"
    ),
    "teacher/cost": MetricInfo(
        "Cost of the teacher", "US dollars per step", "number", "By the configured prices.", "Σ tokens · price"
    ),
    "effect": MetricInfo(
        "Hint effect",
        "difference of fractions",
        "number",
        "Solve rate minus that under contentless feedback, paired over tasks.",
        "cum_acc/T(condition) − cum_acc/T(contentless)",
    ),
    "consistency": _fraction(
        "Consistency",
        "Solved originals that are solved as variants too.",
        formula="P(variant solved | original solved)",
    ),
    "memorization": _fraction("LiMem", "Tasks solved in the original, but not as variants.", formula="Acc · (1 − CR)"),
    "memorization_above_resample": MetricInfo(
        "LiMem beyond chance",
        "difference of fractions",
        "number",
        "LiMem minus that of the same text sampled again.",
        "LiMem(variant) − LiMem(resample)",
    ),
}
METRIC_GROUPS: dict[str, MetricInfo] = {
    "cum_acc": _fraction(
        "Solved within t turns",
        "Cumulative accuracy: the last answer within t turns is correct.",
        "fraction of dialogues",
        "cum_acc/t = dialogues solved within t turns / dialogues",
    ),
    "stop": _fraction(
        "Stop reasons", "Why dialogues ended.", "fraction of dialogues", "dialogues by reason / dialogues"
    ),
    "outcome": _fraction(
        "Attempt outcomes",
        "Exclusive fractions that add up to 1.",
        "fraction of attempts",
        "attempts by outcome / attempts",
    ),
    "groups": _fraction(
        "Groups",
        "Only mixed groups give a gradient: equal returns have zero advantage.",
        "fraction of groups",
        "groups by outcome / groups",
    ),
    "time": MetricInfo("Time", "seconds per step", "number", "Wall time of each phase."),
    "tokens": MetricInfo("Tokens", "per step", "count", "Tokens of each kind."),
    "tokens_per_second": MetricInfo("Speed", "tokens per second", "number", "Throughput.", "tokens / seconds"),
    "tasks": MetricInfo("Tasks", "per step", "count", "Tasks of each kind."),
    "solved": _fraction("Solved within all turns", "", "fraction of dialogues", "cum_acc/T"),
    "solved_first": _fraction("Solved at the first turn", "", "fraction of dialogues", "cum_acc/1"),
    "distill": MetricInfo("Distillation", "so far", "count"),
    "source": MetricInfo("Source", "so far", "count", "Messages of a model source."),
    "teacher": MetricInfo("Teacher", "per step", "count", "Messages of a model teacher."),
    "loss": MetricInfo("Loss term", "mean per token", "number", "One term of the loss."),
    "kl": MetricInfo("KL", "nats per token"),
    "advantage": MetricInfo(
        "Advantage", "per token", "number", "Return minus the baseline of its group or value head."
    ),
    "value": MetricInfo("Value head", ""),
    "off_context": MetricInfo("Off-context samples", "", "number", "Training samples without the critique."),
}


def metric_info(name: str) -> MetricInfo:
    """Return the description of a metric; an unknown metric is a number."""
    if name in METRICS:
        return METRICS[name]
    head, _, tail = name.partition("/")
    known = METRIC_GROUPS.get(head) or METRICS.get(head)
    if known is None or not tail:
        return MetricInfo(name, "")
    end = f"turn {tail}" if tail.isdigit() else tail.replace("_", " ")
    if head == "cum_acc":
        return replace(known, title=f"Solved within {tail} turn{'' if tail == '1' else 's'}")
    return replace(known, title=f"{known.title}: {end}")


def group_info(name: str) -> MetricInfo:
    """Return the description of all metrics that start with `name`, e.g. `time/`."""
    head = name.rstrip("/")
    return METRIC_GROUPS.get(head) or metric_info(head)


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
