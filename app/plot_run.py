"""The plots of a run: a curated overview, and any other metric by name.

A stage that learns from demonstrations has metrics of what it was shown, not of what the student can do, so they are
left out of the overview; its loss, entropy and speed are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.plot_series import Axis, MetricRow, XKind, axis, column, effective_size, line, names_of, turns_of
from app.plots import SERIES, Format, Number, Plot, figure
from rl2f_core.evaluation.metrics import OUTCOMES

Sizes = Mapping[tuple[str, int], Mapping[int, float]]
"""By stage and step: how many independent dialogues lie behind the share solved within t turns."""


@dataclass(frozen=True, slots=True)
class About:
    """What a metric is."""

    title: str
    unit: str
    format: Format = "number"
    help: str = ""


OUTCOME_COLORS = {"cut_off": "--rl-plot-4", "unparsable": "--rl-plot-2", "wrong_ill_formed": "--rl-plot-3",
                  "wrong": "--rl-wrong", "right_ill_formed": "--rl-plot-5", "right": "--rl-right"}  # fmt: skip
"""From the bottom of the stack to its top."""


def _share(title: str, text: str = "", of: str = "share") -> About:
    return About(title, of, "share", text)


ABOUT: dict[str, About] = {
    "reward": About("Reward", "mean of a dialogue", "number", "The sum of all reward terms over a dialogue's turns."),
    "reward_std": About("Spread of rewards", "standard deviation"),
    "gain": _share("Gain", "Solved after the first turn.", "share of dialogues"),
    "correction_rate": _share("Corrections", "Solved later, of those not solved at the first turn."),
    "hazard": _share("Hazard", "Right at this turn, of the attempts made at it."),
    "plasticity": _share("Plasticity", "The answer changed after feedback.", "share of revisions"),
    "repeat_rate": _share("Repeats", "The answer had been given before in this dialogue.", "share of revisions"),
    "useful_change": _share("Useful change", "Of the changed answers, those right or closer.", "share of changes"),
    "retention": _share("Retention", "Parts that were right before and were kept.", "share of right parts"),
    "away_rate": _share("Away", "The answer moved away or a right part was lost.", "share of revisions"),
    "misled_rate": _share("Misled", "Moved away after a misleading hint.", "share of revisions"),
    "leak_rate": _share("Leaks", "Hints that gave the answer away, by the detectors.", "share of checked hints"),
    "length": About("Length", "tokens an attempt"),
    "floor": _share("Best constant answer", "What always giving the same answer solves.", "share of dialogues"),
    "truncated": _share("Truncated", "Attempts cut off by the token limit.", "share of attempts"),
    "unparsable": _share("Unparsable", "Attempts without an answer that can be read.", "share of attempts"),
    "ill_formed": _share("Ill-formed", "Attempts that break the answer format.", "share of attempts"),
    "reflection_words": About("Reflection words", "per 1,000 tokens"),
    "entropy": About("Entropy", "nats a token", "number", "Of the student's next-token distribution."),
    "mismatch_kl": About("KL of sampler and learner", "nats a token", "number", "mismatch_kl: 0 where both agree."),
    "kl": About("KL to the reference", "nats a token"),
    "ratio": About("Importance ratio", "mean"),
    "clip_frac": _share("Clipped", "Tokens whose ratio was clipped.", "share of tokens"),
    "loss": About("Loss", "mean of a token"),
    "grad_norm": About("Gradient norm", "before clipping"),
    "learning_rate": About("Learning rate", ""),
    "temperature": About("Temperature", "of sampling"),
    "group_size": About("Group size", "dialogues a task", "count"),
    "curriculum/level": About("Level", "of the curriculum", "count"),
    "curriculum/solve_rate": _share("Solved on the level", "Over the curriculum's window.", "share of dialogues"),
    "curriculum/old_solve_rate": _share("Solved on earlier levels", "", "share of dialogues"),
    "off_context/masked_frac": _share("Masked off context", "Too improbable without the critique.", "share of tokens"),
    "value/explained_variance": About(
        "Value head",
        "explained variance",
        "number",
        "1: it tells every return; 0: no better than their mean; below 0: worse.",
    ),
    "value/loss": About("Loss of the value head", "mean of a token"),
    "value/return": About("Return", "mean of a token"),
    "updates": About("Updates", "a step", "count"),
    "frac_reward_zero_std": _share("Groups of equal reward", "TRL's frac_reward_zero_std.", "share of groups"),
    "groups/frac_mixed": _share("Mixed groups", "Tinker's frac_mixed.", "share of groups"),
    "groups/frac_all_right": _share("All-right groups", "Tinker's frac_all_good.", "share of groups"),
    "groups/frac_all_wrong": _share("All-wrong groups", "Tinker's frac_all_bad.", "share of groups"),
    "groups/frac_zero_variance": _share("Groups of equal return", "", "share of groups"),
    "groups/redrawn": About("Groups drawn again", "a step", "count"),
    "distill/yield": _share("Yield", "Asked tasks of which a right answer was kept, so far.", "share of tasks"),
    "distill/frac_wrong": _share("Wrong answers of the source", "", "share of samples"),
    "distill/frac_unparsable": _share("Unparsable answers of the source", "", "share of samples"),
    "distill/frac_duplicate": _share("Duplicate answers of the source", "", "share of samples"),
    "distill/frac_too_long": _share("Answers that the student may not write", "Too long.", "share of samples"),
    "distill/frac_failed": _share("Failed answers of the source", "", "share of samples"),
    "source/cost": About("Cost of the source", "US dollars so far", "number", "By the configured prices."),
    "teacher/error_rate": _share("Failed hints", "The teacher had no message.", "share of hints"),
    "teacher/cost": About("Cost of the teacher", "US dollars a step", "number", "By the configured prices."),
}
FAMILIES: dict[str, About] = {
    "cum_acc": _share("Solved within t turns", "Cumulative accuracy.", "share of dialogues"),
    "stop": _share("Why dialogues end", "", "share of dialogues"),
    "outcome": _share("What attempts came to", "Exclusive shares that add up to 1.", "share of attempts"),
    "groups": _share("Groups", "", "share of groups"),
    "seconds": About("Time", "seconds a step"),
    "tokens": About("Tokens", "a step", "count"),
    "tokens_per_second": About("Speed", "tokens a second"),
    "tasks": About("Tasks", "a step", "count"),
    "solved": _share("Solved within all turns", "", "share of dialogues"),
    "solved_first": _share("Solved at the first turn", "", "share of dialogues"),
    "distill": About("Distillation", "so far", "count"),
    "source": About("Source", "so far", "count", "Of the messages of a model source."),
    "teacher": About("Teacher", "a step", "count", "Of the messages of a model teacher."),
    "loss": About("Loss term", "mean of a token"),
    "kl": About("KL", "nats a token"),
    "advantage": About("Advantage", "of a token"),
    "value": About("Value head", ""),
    "off_context": About("Revision under the first prompt", "", "number", "Of rows that leave the critique out."),
}


def about(name: str) -> About:
    """What is known of a metric; one of an unknown name is a number by that name."""
    if name in ABOUT:
        return ABOUT[name]
    head, _, tail = name.partition("/")
    known = FAMILIES.get(head) or ABOUT.get(head)
    if known is None or not tail:
        return About(name, "")
    end = f"turn {tail}" if tail.isdigit() else tail.replace("_", " ")
    if head == "cum_acc":
        return replace(known, title=f"Solved within {tail} turn{'' if tail == '1' else 's'}")
    return replace(known, title=f"{known.title}: {end}")


def family(name: str) -> About:
    """What is known of all metrics that begin with `name`, e.g. `seconds/`."""
    head = name.rstrip("/")
    return FAMILIES.get(head) or about(head)


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its words, as the page gets it."""

    key: str
    title: str
    unit: str
    names: Sequence[str]
    """The metrics in it."""
    figure: dict[str, Any]
    note: str = ""
    help: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the newest numbers in words."""
        return {**asdict(self), "words": describe(self)}


@dataclass(frozen=True, slots=True)
class View:
    """What the reader asked for, and what is known of the run beyond its metrics."""

    x: XKind = "step"
    weight: float = 0.0
    """β of the smoothing, 0 ≤ β < 1."""
    began: float | None = None
    sizes: Sizes | None = None
    off_policy: frozenset[str] = frozenset()
    """Stages that learn from demonstrations."""
    max_new_tokens: int | None = None


def overview(rows: Sequence[MetricRow], view: View) -> list[Chart]:
    """The plots that matter, in order; one without data is left out."""
    played = [row for row in rows if row.stage not in view.off_policy]
    if view.x == "tokens" and not played:  # demonstrations are not sampled
        view = replace(view, x="step")
    everything = played if view.x == "tokens" else list(rows)
    makers: list[tuple[Callable[[Sequence[MetricRow], View], Chart | None], Sequence[MetricRow]]] = [
        (_reward, played), (_solved, played), (_parts, played), (_revisions, played), (_groups, played),
        (_outcomes, played), (_level, everything), (_level_solved, everything), (_leaks, played), (_yield, everything),
        (_length, played), (_reflection, played), (_divergence, played), (_masked, played), (_value, played),
        (_entropy, everything), (_loss, everything), (_speed, everything),
    ]  # fmt: skip
    charts = [make(chosen, view) for make, chosen in makers if chosen]
    return [chart for chart in charts if chart is not None]


def series(rows: Sequence[MetricRow], names: Sequence[str], view: View) -> list[Chart]:
    """One plot for each of the metrics that exist; a name that ends in `/` stands for all its turns or parts."""
    there = names_of(rows)
    charts = []
    for name in names:
        chosen = [n for n in there if n.startswith(name)] if name.endswith("/") else [n for n in there if n == name]
        chart = _chart(name, rows, view, {n: n.removeprefix(name) or n for n in chosen})
        if chart is not None:
            charts.append(chart)
    return charts


# -- the curated ones ----------------------------------------------------------------------------------------------
def _reward(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("reward", rows, view, {"reward": "reward"}, colors=["--rl-student"])


def _solved(rows: Sequence[MetricRow], view: View) -> Chart | None:
    turns = turns_of(names_of(rows), "cum_acc")
    banded = turns if len(turns) <= 3 else turns[:1] + turns[-1:]
    sizes = {f"cum_acc/{t}": _sizes(rows, t, view) for t in banded}
    floor = {"floor": "constant answer"} if turns and any("floor" in row.values for row in rows) else {}
    shares = [1.0] if len(turns) == 1 else [0.4 + 0.6 * i / (len(turns) - 1) for i in range(len(turns))]
    chart = _chart(
        "cum_acc/", rows, view, {f"cum_acc/{t}": f"t = {t}" for t in turns} | floor,
        colors=[*(f"mix(--rl-surface,--rl-student,{share:.2f})" for share in shares), "--rl-muted"],
        dashes=[*("solid" for _ in turns), "dash"], sizes=sizes,
    )  # fmt: skip
    if chart is None:
        return None
    known = any(any(held) for held in sizes.values() if held)
    words = "Cumulative accuracy, one line a turn, and what the best constant answer solves."
    note = "bands: 95 % intervals" if known else ""
    return replace(chart, title="Solved within t turns", help=words, note=note)


def _parts(rows: Sequence[MetricRow], view: View) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("solved/")]
    chart = _chart("solved/", rows, view, {name: name.partition("/")[2] for name in names})
    return chart and replace(chart, title="Solved by environment", help="Solved within all turns, one line a part.")


def _level(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("curriculum/level", rows, replace(view, weight=0.0), {"curriculum/level": "level"})


def _level_solved(rows: Sequence[MetricRow], view: View) -> Chart | None:
    shown = {"curriculum/solve_rate": "this level", "curriculum/old_solve_rate": "earlier levels"}
    chart = _chart("curriculum/solve_rate", rows, view, shown, dashes=["solid", "dash"])
    return chart and replace(chart, help="Over the curriculum's window; of earlier levels, this step's dialogues.")


def _masked(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("off_context/masked_frac", rows, view, {"off_context/masked_frac": "masked"})


def _value(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("value/explained_variance", rows, view, {"value/explained_variance": "explained variance"})


def _revisions(rows: Sequence[MetricRow], view: View) -> Chart | None:
    shown = {"plasticity": "changed", "useful_change": "useful", "retention": "kept", "repeat_rate": "repeats"}
    chart = _chart("revisions", rows, view, shown,
                   colors=["--rl-student", "--rl-plot-3", "--rl-plot-5", "--rl-plot-2"],
                   dashes=["solid", "dash", "dot", "dashdot"])  # fmt: skip
    return chart and replace(
        chart, title="Changes after feedback", unit="share",
        help="changed: plasticity, the answer is another one; useful: of those, right or closer; kept: retention of "
        "right parts; repeats: repeat_rate, the answer had been given before.",
    )  # fmt: skip


def _groups(rows: Sequence[MetricRow], view: View) -> Chart | None:
    shown = {
        "groups/frac_all_wrong": "all wrong ✗",
        "groups/frac_mixed": "mixed",
        "groups/frac_all_right": "all right ✓",
    }
    chart = _chart("groups", rows, view, shown, colors=["--rl-wrong", "--rl-student", "--rl-right"], kind="stack")
    return chart and replace(
        chart, title="Groups", unit="share of groups", names=[*chart.names, "frac_reward_zero_std"],
        note="frac_mixed | all_good | all_bad; frac_reward_zero_std = 1 − mixed",
        help="Only mixed groups teach: where all dialogues of a group earn the same, there is no gradient.",
    )  # fmt: skip


def _leaks(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("leak_rate", rows, view, {"leak_rate": "leak_rate"}, colors=["--rl-leak"])


def _length(rows: Sequence[MetricRow], view: View) -> Chart | None:
    limit = (float(view.max_new_tokens), f"limit {view.max_new_tokens}") if view.max_new_tokens else None
    shown = {"length": "all", "length/right": "right", "length/wrong": "wrong"}
    return _chart("length", rows, view, shown if _split(rows, "length") else {"length": "length"}, limit=limit,
                  colors=["--rl-student", "--rl-right", "--rl-wrong"], dashes=["solid", "dash", "dot"])  # fmt: skip


def _reflection(rows: Sequence[MetricRow], view: View) -> Chart | None:
    name = "reflection_words"
    if not any(row.values.get(name) for row in rows):  # a student that never reflects has no curve
        return None
    shown = {name: "all", f"{name}/right": "right", f"{name}/wrong": "wrong"}
    chart = _chart(name, rows, view, shown, colors=["--rl-student", "--rl-right", "--rl-wrong"],
                   dashes=["solid", "dash", "dot"])  # fmt: skip
    return chart and replace(chart, help="check, verify, wait, however, re-evaluate, let me …, by right and wrong.")


def _split(rows: Sequence[MetricRow], name: str) -> bool:
    return any(f"{name}/right" in row.values or f"{name}/wrong" in row.values for row in rows)


def _outcomes(rows: Sequence[MetricRow], view: View) -> Chart | None:
    shown = {f"outcome/{name}": name.replace("_", " ") for name in OUTCOME_COLORS}
    known = {name for name in shown if any(row.values.get(name) for row in rows)}
    chart = _chart("outcome/", rows, view, {name: label for name, label in shown.items() if name in known},
                   colors=[color for name, color in OUTCOME_COLORS.items() if f"outcome/{name}" in known],
                   kind="stack")  # fmt: skip
    words = "; ".join(f"{name.replace('_', ' ')}: {text}" for name, text in OUTCOMES.items())
    return chart and replace(chart, help=f"Every attempt is in one share, so they add up to 1. {words}.")


def _yield(rows: Sequence[MetricRow], view: View) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("distill/yield/")]
    shown = {"distill/yield": "all"} | ({n: n.removeprefix("distill/yield/") for n in names} if len(names) > 1 else {})
    return _chart("distill/yield", rows, view, shown)


def _divergence(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("mismatch_kl", rows, view, {"mismatch_kl": "mismatch_kl"})


def _entropy(rows: Sequence[MetricRow], view: View) -> Chart | None:
    return _chart("entropy", rows, view, {"entropy": "entropy"})


def _loss(rows: Sequence[MetricRow], view: View) -> Chart | None:
    chosen = [row for row in rows if row.stage in view.off_policy]
    chart = _chart("loss/ce", chosen, view, {"loss/ce": "loss/ce"})
    return chart and replace(chart, title="Loss on demonstrations", unit="cross-entropy, nats a token", help="loss/ce")


def _speed(rows: Sequence[MetricRow], view: View) -> Chart | None:
    names = [name for name in names_of(rows) if name.startswith("seconds/")]
    weights = {name: sum(value or 0.0 for value in column(rows, name)) for name in names}
    ordered = sorted(names, key=lambda name: -weights[name])
    chart = _chart("seconds/", rows, view, {name: name.partition("/")[2] for name in ordered},
                   colors=[SERIES[i % len(SERIES)] for i in range(len(ordered))], kind="stack")  # fmt: skip
    return chart and replace(
        chart, title="Time by phase", help="rollout: sampling; update: training; sync: new weights."
    )


# -- shared --------------------------------------------------------------------------------------------------------
def _chart(
    key: str,
    rows: Sequence[MetricRow],
    view: View,
    shown: Mapping[str, str],
    *,
    colors: Sequence[str] = (),
    dashes: Sequence[str] = (),
    kind: Any = "lines",
    sizes: Mapping[str, Sequence[Number] | None] | None = None,
    limit: tuple[float, str] | None = None,
) -> Chart | None:
    """A chart of `shown` (metric → label); None where no row has any of them. Rows before and after them are cut."""
    held = [name for name in shown if any(name in row.values for row in rows)]
    if not held:
        return None
    chosen = [row for row in rows if not row.values.keys().isdisjoint(held)]
    along = axis(chosen, view.x, view.began)
    lines = []
    for i, name in enumerate(held):
        color = colors[i] if colors else ("--rl-student" if len(held) == 1 else SERIES[i % len(SERIES)])
        values = column(chosen, name)
        if kind == "stack":
            values = [value if value is not None else 0.0 for value in values]
        counts = (sizes or {}).get(name)
        lines.append(
            line(shown[name], values, along, weight=view.weight, sizes=counts, raw=len(held) == 1, gaps=kind == "lines",
                 color=color, dash=dashes[i] if dashes else "solid")
        )  # fmt: skip
    known = family(key) if key.endswith("/") else about(key if key in ABOUT else held[0])
    plot = Plot(lines, x_title=along.title, format=known.format, kind=kind, marks=_marks(along), limit=limit)
    return Chart(key, known.title, known.unit, held, figure(plot), help=known.help)


def _marks(along: Axis) -> list[Any]:
    marks = along.marks()
    return marks if len(marks) <= 8 else []


def _sizes(rows: Sequence[MetricRow], turn: int, view: View) -> list[Number] | None:
    """Not known where a group was drawn again: the metrics leave out the replaced one, the dialogues do not."""
    if view.sizes is None:
        return None
    sizes: list[Number] = []
    for row in rows:
        known = view.sizes.get((row.stage, row.step), {}).get(turn)
        sizes.append(None if row.values.get("groups/redrawn") else known)
    return sizes


def sizes_of(
    groups: Iterable[tuple[str, int, str, int | None, int]], turns: int
) -> dict[tuple[str, int], dict[int, float]]:
    """`Sizes` from counts of dialogues by (stage, step, group, solved at, number)."""
    held: dict[tuple[str, int], dict[str, dict[int | None, int]]] = {}
    for stage, step, group, solved_at, count in groups:
        outcomes = held.setdefault((stage, step), {}).setdefault(group, {})
        outcomes[solved_at] = outcomes.get(solved_at, 0) + count
    found: dict[tuple[str, int], dict[int, float]] = {}
    for key, by_group in held.items():
        counts = [float(sum(outcomes.values())) for outcomes in by_group.values()]
        found[key] = {}
        for turn in range(1, turns + 1):
            hits = [
                float(sum(n for at, n in outcomes.items() if at is not None and at <= turn))
                for outcomes in by_group.values()
            ]
            found[key][turn] = effective_size(hits, counts)
    return found


def catalogue(names: Sequence[str]) -> list[dict[str, str]]:
    """Words for every metric, and for the families of those that have turns or parts, for the search box."""
    heads = dict.fromkeys(name.rpartition("/")[0] for name in names if "/" in name)
    families = [f"{head}/" for head in heads if sum(name.startswith(f"{head}/") for name in names) > 1]
    entries = []
    for name in [*names, *families]:
        known = family(name) if name.endswith("/") else about(name)
        title = f"{known.title}, all" if name.endswith("/") else known.title
        entries.append({"name": name, "title": title, "unit": known.unit, "help": known.help})
    return entries


def describe(chart: Chart) -> str:
    """What a chart shows, in words, for readers who do not see it."""
    parts = []
    for trace in chart.figure["data"]:
        if trace.get("meta") == "line":
            last = next(
                (t for t, y in zip(reversed(trace["text"]), reversed(trace["y"]), strict=True) if y is not None), "–"
            )
            parts.append(f"{trace['name']} {last}")
    return f"{chart.title} ({chart.unit}): newest {'; '.join(parts)}"
