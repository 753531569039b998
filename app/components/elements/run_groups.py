"""Rows of groups of runs, and cells of settings and metrics, in the table of runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.common.quantities import number, plural
from app.common.urls import page_url
from app.components.nodes import Element, el, time_ago
from app.endpoints.compare import MAX_RUNS
from jobs.db.queries.run_groups import GroupMean, RunGroup


def value_cell(name: str, value: float | str | GroupMean | None) -> Element:
    """Return the cell of a setting or metric; of a group with mean and standard deviation."""
    text, title = value if isinstance(value, str) else "–", None
    if isinstance(value, GroupMean):
        spread = f" ± {_short(value.sd)}" if value.sd else ""
        text, title = f"{_short(value.mean)}{spread}", f"mean ± standard deviation of {plural(value.count, 'run')}"
    elif isinstance(value, int | float):
        text = _short(value)
    return el("td.rl-num", text, title=title, data_label=column_title(name))


def _short(value: float) -> str:
    return f"{value:.3g}" if 0 < abs(value) < 0.01 else number(value)


def _count(status: str, size: int) -> Element:
    return el("span.rl-badge", str(size), data_status=status, title=f"{size} {status}")


def column_title(name: str) -> str:
    """Return the end of a setting's path, with its parent if it alone says little."""
    parts = name.split(".")
    return ".".join(parts[-2:] if parts[-1] in ("type", "name") else parts[-1:])


def group_row(group: RunGroup, selected: Collection[int], columns: Sequence[str], opened: bool) -> Element:
    """Return the row of a group, whose name unfolds its runs."""
    ids, count = ",".join(map(str, group.runs)), len(group.runs)
    box = el("input", type="checkbox", checked=all(run in selected for run in group.runs), data_change="select",
             aria_label=f"Select the {count} runs of {group.name}", data_run=ids)  # fmt: skip
    seeds = f"seed{'' if len(group.seeds) == 1 else 's'} {', '.join(map(str, group.seeds[:8]))}"
    more = "…" if len(group.seeds) > 8 else ""
    _, is_value, value = group.key.partition("=")
    title = (value or "no value") if is_value else group.name
    name = el("button.runs-sort.runs-name.runs-group", f"{'▾' if opened else '▸'} {title}", data_action="unfold",
              data_group=group.key, data_trigger="select", aria_expanded="true" if opened else "false")  # fmt: skip
    link = el("a.rl-button.rl-small", "Compare", href=page_url("compare", runs=ids, seeds=1))
    facts = [el("td.runs-wide", text or "–") for text in (group.environment, group.method, group.model)]
    return el(
        "tr",
        el("td.runs-box", box),
        el("td.runs-status", [_count(status, size) for status, size in group.statuses.items()]),
        el("td.runs-main", name, " ", el("span.rl-chip", f"×{count}"), " ", el("span.rl-muted.rl-small", seeds, more)),
        [value_cell(column, group.values.get(column)) for column in columns] if columns else facts,
        value_cell("reward", group.values.get("reward")),
        el("td.runs-spark"),
        None if columns else [el("td.runs-wide"), el("td.runs-wide")],
        el("td.rl-muted.runs-when", time_ago(group.ended)),
        el("td.runs-tools", link if 1 < count <= MAX_RUNS else None),
        data_key=f"group{group.key}",
    )
