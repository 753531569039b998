"""Comparison of runs: overlaid metrics, differences of checkpoints and of configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.plots.evaluation import Difference, Outcomes, cell, effect_difference, incompatible_keys
from app.plots.evaluation import difference as task_difference
from app.plots.run_charts import Chart, metric_info
from app.plots.series import Look, MetricRow, XKind, axis, column, line, smooth
from rl2f_core.evaluation.across_seeds import SeedSummary
from rl2f_core.evaluation.plotting import DASHES, SERIES, Line, Number, Plot, figure
from rl2f_core.evaluation.report import number, verdict_text
from rl2f_core.stats.intervals import t_interval

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
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointOutcomes:
    """A checkpoint of a run with the outcomes of its evaluation."""

    run: int
    checkpoint: str
    outcomes: Outcomes
    config: Mapping[str, Any]
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
    held = [(member, [row for row in member.rows if name in row.values]) for member in members]
    held = [(member, rows) for member, rows in held if rows]
    if not held:
        return None
    single = all(len({row.stage for row in rows}) == 1 for _, rows in held)
    position = {member.id: i for i, member in enumerate(members)}
    lines: list[Line] = []
    title = ""
    groups = seed_groups([member for member, _ in held]) if merge else [[member] for member, _ in held]
    rows_of = {member.id: rows for member, rows in held}
    unit = _time_scale([(member, rows_of[member.id]) for member, _ in held]) if x == "time" else None
    for group in groups:
        style = line_style(position[group[0].id])
        if len(group) == 1:
            member, rows = group[0], rows_of[group[0].id]
            along = axis(rows, x, member.began, unit)
            title = along.title
            drawn = line(f"{member.id} {member.name}", column(rows, name), along, weight=weight, raw=len(held) == 1,
                         look=style)  # fmt: skip
            at = [None if a is None else [member.id, *a] for a in drawn.at]
            lines.append(replace(drawn, at=at))
        else:
            title = axis(rows_of[group[0].id], x, group[0].began, unit).title
            lines.append(_seeds(group, rows_of, name, x, weight, unit, style))
    if x == "step":
        title = "step of the stage" if single else "step"
    info = metric_info(name)
    plot = Plot(lines, x_title=title, format=info.format, height=320)
    return Chart(name, info.title, info.unit, [name], figure(plot), help=info.help,
                 note="mean of seeds, bands: 95 % t intervals" if any(len(g) > 1 for g in groups) else "")  # fmt: skip


def _time_scale(held: Sequence[tuple[ComparedRun, Sequence[MetricRow]]]) -> float:
    """Return the longest duration, so that all runs share a unit."""
    longest = 0.0
    for member, rows in held:
        began = min([rows[0].time] + ([member.began] if member.began is not None else []))
        longest = max(longest, rows[-1].time - began)
    return longest


def _seeds(
    group: Sequence[ComparedRun],
    rows_of: Mapping[int, Sequence[MetricRow]],
    name: str,
    x: XKind,
    weight: float,
    unit: float | None,
    style: Look,
) -> Line:
    """Return the mean of smoothed runs at each common step, with a t interval over runs."""
    found: list[dict[tuple[str, int], tuple[float, float]]] = []
    for member in group:
        rows = rows_of[member.id]
        along = axis(rows, x, member.began, unit)
        values = smooth(column(rows, name), weight, along.starts)
        found.append(
            {
                (row.stage, row.step): (at, v)
                for row, at, v in zip(rows, along.values, values, strict=True)
                if v is not None
            }
        )
    shared = [key for key in found[0] if all(key in other for other in found)]
    xs: list[Number] = []
    ys: list[Number] = []
    low: list[Number] = []
    high: list[Number] = []
    support = (0.0, 1.0) if metric_info(name).format == "share" else None
    for key in shared:
        points = [other[key] for other in found]
        interval = t_interval([value for _, value in points], support)
        xs.append(math.fsum(at for at, _ in points) / len(points))
        ys.append(interval.value)
        low.append(interval.low)
        high.append(interval.high)
    label = f"{group[0].name} ×{len(group)}"
    return Line(label, xs, ys, style.color, low=low, high=high, dash=style.dash,
                at=[[group[0].id, stage, step, f"{stage} step {step}"] for stage, step in shared])  # fmt: skip


# -- seeds ---------------------------------------------------------------------------------------------------------
def seed_groups(members: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Group runs whose configurations differ only in seed and name."""
    groups: dict[str, list[ComparedRun]] = {}
    for member in members:
        same = {key: value for key, value in member.config.items() if key not in ("seed", "name")}
        groups.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(member)
    found: list[list[ComparedRun]] = []
    for group in groups.values():
        by_seed: dict[str, ComparedRun] = {}
        for member in group:  # a repeated seed is not another seed
            if str(member.config.get("seed")) in by_seed:
                found.append([member])
            else:
                by_seed[str(member.config.get("seed"))] = member
        found.append(list(by_seed.values()))
    order = {member.id: i for i, member in enumerate(members)}
    return sorted(found, key=lambda group: order[group[0].id])


# -- configurations ------------------------------------------------------------------------------------------------
def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return all values by path, e.g. `rollout.temperature`; list items by `name` or position."""
    if isinstance(config, Mapping):
        items = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and any(isinstance(item, Mapping | list) for item in config):
        names = [item.get("name") if isinstance(item, Mapping) else None for item in config]
        usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
        items = [(str(names[i]) if usable else str(i), item) for i, item in enumerate(config)]
    else:
        return {prefix: config}
    found: dict[str, Any] = {}
    for key, value in items:
        found |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return found if found or not prefix else {prefix: config}


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys whose values differ, with the values as text."""
    flat = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        texts = [_plain(config[key]) if key in config else MISSING for config in flat]
        if len(set(texts)) > 1:
            rows.append({"key": key, "values": texts})
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value if value else "''"
    return json.dumps(value, ensure_ascii=False, default=str)


# -- checkpoints ---------------------------------------------------------------------------------------------------
def checkpoint_difference(
    speaker: CheckpointOutcomes, base: CheckpointOutcomes, resamples: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Compare a checkpoint with `base`: solve rates with hints and hint effects, paired over tasks.

    If the dialogues cannot be paired, the row contains the differing keys.
    """
    differing = incompatible_keys(base.config, speaker.config)
    row: dict[str, Any] = {"speaker": speaker.name, "against": base.name, "unlike": differing, "quantities": []}
    if row["unlike"]:
        return row
    found: list[Difference] = []
    a, b = speaker.outcomes.get((speaker.checkpoint, "hints")), base.outcomes.get((base.checkpoint, "hints"))
    if a is not None and b is not None:
        solved = task_difference(a, b, base.turns, resamples, seed)
        found.append(Difference("cum_acc", speaker.name, base.name, solved))
    effect = effect_difference(speaker.outcomes, speaker.checkpoint, base.outcomes, base.checkpoint, base.turns,
                               resamples, seed)  # fmt: skip
    if effect is not None:
        found.append(Difference("hint_effect", speaker.name, base.name, effect))
    row["quantities"] = [_quantity(d) for d in found]
    return row


def _quantity(found: Difference) -> dict[str, Any]:
    interval = found.difference
    finding = "no task in common" if interval.value is None else verdict_text(interval, "higher", "lower")
    return {"quantity": found.quantity, "cell": cell(interval, signed=True), "tasks": interval.n, "finding": finding}


def seed_table(summary: SeedSummary) -> dict[str, Any]:
    """Return the values and mean of several seeds by row, with findings."""
    rows = [
        {
            "checkpoint": row.checkpoint,
            "control": row.condition,
            "quantity": row.quantity,
            "values": [number(value, row.above_zero is not None) for value in row.values],
            "mean": cell(row.mean, signed=row.above_zero is not None),
            "above": None if row.above_zero is None else f"{row.above_zero} of {len(summary.seeds)}",
        }
        for row in summary.rows
    ]
    return {"title": f"{summary.environment} {summary.level}".strip(), "seeds": list(summary.seeds), "rows": rows,
            "findings": summary.findings()}  # fmt: skip
