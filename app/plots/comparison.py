"""Comparison of runs: overlaid metrics, differences of checkpoints and of configurations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.plots.evaluation import Outcomes, cell, difference, effect_difference, incompatible_keys
from app.plots.metric_info import metric_info
from app.plots.run_charts import Chart
from app.plots.series import Look, MetricRow, XKind, axis, column, line, smooth
from jobs.db.queries.run_values import SEED, flatten
from rl2f_core.common.stats.intervals import Interval, correct_families, t_interval
from rl2f_core.evaluation.across_seeds import SeedSummary
from rl2f_core.evaluation.formatting import number, verdict_text
from rl2f_core.evaluation.plotting import DASHES, SERIES, Line, Plot, figure
from rl2f_core.types import FrozenModel, JsonObject

SHOULD_BE_EQUAL = {
    "thinking mode and prompts": r".*\.think(ing)?\b.*|rollout\.(prompting|reprompt_template|reflector.*)",
    "token limits": r"(rollout|teacher)\..*max_(new_tokens|seq_len)",
    "retry budget": r"(rollout|evaluation)\.max_turns",
    "tasks": r"environment\..*|evaluation\.(split|seed|num_tasks|samples_per_task)",
    "the teacher's context": r"teacher\..*|stages\.[^.]*\.teacher.*",
}
"""What runs have in common if their results are to be compared → pattern of its settings."""
MISSING = "–"
"""Text for a missing configuration key."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run in a comparison."""

    id: int
    name: str
    rows: Sequence[MetricRow]
    """Its training steps in order; for metrics of dialogues without the stages that learn from demonstrations."""
    began: float | None
    config: JsonObject
    group_key: str
    """Equal for runs whose configurations differ only in seed and name, see `run_values.group_key`."""


@dataclass(frozen=True, slots=True)
class CheckpointOutcomes:
    """A checkpoint of a run with the outcomes of its evaluation."""

    run: int
    checkpoint: str
    outcomes: Outcomes
    config: JsonObject
    turns: int

    @property
    def name(self) -> str:
        """As in addresses: `17:rl2f@24`."""
        return f"{self.run}:{self.checkpoint}"


def line_style(position: int) -> Look:
    """Return color and dash of the run at a position; distinct for up to 48 runs."""
    return Look(SERIES[position % len(SERIES)], DASHES[(position // len(SERIES)) % len(DASHES)])


def overlay(members: Sequence[ComparedRun], name: str, x: XKind, weight: float, merge: bool = False) -> Chart | None:
    """Return one metric of all runs; None if no run has it.

    With `merge`, the seeds of one configuration become their mean with a t interval.
    """
    position = {member.id: i for i, member in enumerate(members)}
    members = [replace(member, rows=[row for row in member.rows if name in row.values]) for member in members]
    members = [member for member in members if member.rows]
    if not members:
        return None
    groups = seed_groups(members) if merge else [[member] for member in members]
    unit = max(map(_duration, members)) if x == "time" else None
    lines: list[Line] = []
    for group in groups:
        first, style = group[0], line_style(position[group[0].id])
        along = axis(first.rows, x, first.began, unit)
        if len(group) > 1:
            lines.append(_mean_line(group, name, x, weight, unit, style))
            continue
        label, is_only = f"{first.id} {first.name}", len(members) == 1
        drawn = line(label, column(first.rows, name), along, weight=weight, raw=is_only, look=style)
        lines.append(replace(drawn, at=[None if a is None else [first.id, *a] for a in drawn.at]))
    title = along.title
    if x == "step":
        has_one_stage = all(len({row.stage for row in member.rows}) == 1 for member in members)
        title = "step of the stage" if has_one_stage else "step"
    info = metric_info(name)
    plot = Plot(lines, x_title=title, format=info.format, height=320)
    note = "mean of seeds, bands: 95 % t intervals" if any(len(group) > 1 for group in groups) else ""
    return Chart(name, info.title, info.unit, [name], figure(plot), help=info.help, note=note)


def _duration(member: ComparedRun) -> float:
    """Return the time of the last row in seconds since the start of the run."""
    began = min([member.rows[0].time] + ([member.began] if member.began is not None else []))
    return max(0.0, member.rows[-1].time - began)


def group_name(group: Sequence[ComparedRun]) -> str:
    """Return the name of runs that differ in their seed, without the seed."""
    return SEED.sub("", group[0].name)


def _mean_line(
    group: Sequence[ComparedRun], name: str, x: XKind, weight: float, unit: float | None, style: Look
) -> Line:
    """Return the mean of smoothed runs at each common step, with a t interval over runs."""
    points: list[dict[tuple[str, int], tuple[float, float]]] = []
    for member in group:
        along = axis(member.rows, x, member.began, unit)
        values = smooth(column(member.rows, name), weight, along.starts)
        rows = zip(member.rows, along.values, values, strict=True)
        points.append({(row.stage, row.step): (at, v) for row, at, v in rows if v is not None})
    shared = [key for key in points[0] if all(key in other for other in points)]
    support = (0.0, 1.0) if metric_info(name).format == "share" else None
    xs = [math.fsum(run[key][0] for run in points) / len(points) for key in shared]
    means = [t_interval([run[key][1] for run in points], support) for key in shared]
    label = f"{group_name(group)} ×{len(group)}"
    return Line(label, xs, [mean.value for mean in means], style.color, low=[mean.low for mean in means],
                high=[mean.high for mean in means], dash=style.dash,
                at=[[group[0].id, stage, step, f"{stage} step {step}"] for stage, step in shared])  # fmt: skip


# -- seeds ---------------------------------------------------------------------------------------------------------
def seed_groups(members: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Group runs whose configurations differ only in seed and name."""
    groups: dict[str, list[ComparedRun]] = {}
    for member in members:
        groups.setdefault(member.group_key, []).append(member)
    result: list[list[ComparedRun]] = []
    for group in groups.values():
        by_seed: dict[str, ComparedRun] = {}
        for member in group:
            if by_seed.setdefault(str(member.config.get("seed")), member) is not member:
                result.append([member])  # a repeated seed is not another seed
        result.append(list(by_seed.values()))
    order = {member.id: i for i, member in enumerate(members)}
    return sorted(result, key=lambda group: order[group[0].id])


# -- configurations ------------------------------------------------------------------------------------------------
class ConfigDifference(FrozenModel):
    """A configuration key whose values differ."""

    key: str
    """Path, e.g. `rollout.temperature`."""
    values: list[str]
    """Value of each run as text; `–` if the run has no such key."""


def config_differences(configs: Sequence[JsonObject]) -> list[ConfigDifference]:
    """Return the keys whose values differ, with the values as text."""
    flat = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config)
    texts = {key: [_format(config[key]) if key in config else MISSING for config in flat] for key in keys}
    return [ConfigDifference(key=key, values=values) for key, values in texts.items() if len(set(values)) > 1]


def unequal_settings(differing: Sequence[str]) -> dict[str, list[str]]:
    """Return the differing settings that should be equal, by what they determine."""
    unequal: dict[str, list[str]] = {}
    for key in differing:
        what = next((what for what, pattern in SHOULD_BE_EQUAL.items() if re.fullmatch(pattern, key)), None)
        if what is not None:
            unequal.setdefault(what, []).append(key)
    return unequal


def _format(value: object) -> str:
    if isinstance(value, str):
        return value if value else "''"
    return json.dumps(value, ensure_ascii=False, default=str)


# -- checkpoints ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CheckpointDifference:
    """Differences of a checkpoint to another one."""

    checkpoint: str
    against: str
    differing_keys: Sequence[str]
    """Configuration keys that prevent pairing."""
    quantities: Mapping[str, Interval]


def checkpoint_difference(checkpoint: CheckpointOutcomes, base: CheckpointOutcomes) -> CheckpointDifference:
    """Compare a checkpoint with `base`: solve rates with hints and hint effects, paired over tasks.

    If the dialogues cannot be paired, the result contains only the differing keys.
    """
    differing = incompatible_keys(base.config, checkpoint.config)
    differences: dict[str, Interval | None] = {}
    if not differing:
        a, b = checkpoint.outcomes, base.outcomes
        a_hints, b_hints = a.get((checkpoint.checkpoint, "hints")), b.get((base.checkpoint, "hints"))
        if a_hints is not None and b_hints is not None:
            differences["cum_acc"] = difference(a_hints, b_hints, base.turns)
        differences["hint_effect"] = effect_difference(a, checkpoint.checkpoint, b, base.checkpoint, base.turns)
    known = {name: interval for name, interval in differences.items() if interval is not None}
    return CheckpointDifference(checkpoint.name, base.name, differing, known)


def paired_rows(differences: Sequence[CheckpointDifference]) -> list[JsonObject]:
    """Return the differences as text, with findings after Holm's correction over all checkpoints."""
    names = [name for row in differences for name in row.quantities]
    corrected = iter(correct_families([d for row in differences for d in row.quantities.values()], names))
    return [
        {"checkpoint": row.checkpoint, "against": row.against, "unlike": list(row.differing_keys),
         "quantities": [_quantity(name, next(corrected)) for name in row.quantities]}
        for row in differences
    ]  # fmt: skip


def _quantity(name: str, interval: Interval) -> JsonObject:
    return {"quantity": name, "cell": cell(interval, signed=True), "tasks": interval.n,
            "finding": verdict_text(interval, "higher", "lower")}  # fmt: skip


def seed_table(summary: SeedSummary) -> JsonObject:
    """Return the values and mean of several seeds by row, with findings."""
    rows = [
        {
            "checkpoint": row.checkpoint,
            "control": row.condition,
            "quantity": row.name,
            "values": [number(value, row.above_zero is not None) for value in row.values],
            "mean": cell(row.mean, signed=row.above_zero is not None),
            "above": row.above_text or None,
        }
        for row in summary.rows
    ]
    return {"title": f"{summary.environment} {summary.level}".strip(), "seeds": list(summary.seeds), "rows": rows,
            "findings": summary.findings()}  # fmt: skip
