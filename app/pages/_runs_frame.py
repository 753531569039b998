"""Sections and tables of the page Runs, and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.components.nodes import Element, Node, action, el, time_ago

if TYPE_CHECKING:
    from app.endpoints.runs import JobProblem, Schedule


def stack(*children: Node) -> Element:
    """Return parts below each other."""
    return el("div.rl-page", *children)


def section(title: str, part: str, *children: Node, tools: Sequence[Node] = ()) -> Element:
    """Return a section with a heading; `tools` are beside the heading."""
    head = el("div.rl-row", el("h2", title), *tools)
    return el("section.rl-stack", head, *children, data_part=part, aria_label=title)


def table(header: Element | None, rows: Sequence[Element]) -> Element:
    """Return a table in a card."""
    return el(
        "div.rl-card.runs-table", el("table.rl-table", el("thead", header) if header else None, el("tbody", rows))
    )


def scheduler(schedules: Sequence[Schedule], problems: Sequence[JobProblem], writable: bool) -> Element:
    """Return the schedules, and the errors of the scheduler."""
    titles = ("On", "Schedule", "Next", "Last", "")
    header = el("tr", [el("th", title or None, scope="col" if title else None) for title in titles])
    return stack(
        section("Schedules", "schedules", table(header, [_schedule(each, writable) for each in schedules]))
        if schedules
        else None,
        section("Scheduler errors", "trouble", table(None, [_problem(each) for each in problems]))
        if problems
        else None,
    )


def _schedule(schedule: Schedule, writable: bool) -> Element:
    name, key = schedule["name"], schedule["id"]
    box = el("input", type="checkbox", checked=schedule["enabled"], disabled=not writable, value=key,
             aria_label=f"{name} is on", data_change="schedule", data_schedule=key)  # fmt: skip
    off = el("span.rl-muted", "never" if schedule["enabled"] else "off")
    remove = action("Delete…", "delete_schedule", style="rl-small rl-quiet", schedule=key,
                    confirm=f"Delete the schedule {name}? Its runs remain.")  # fmt: skip
    return el(
        "tr",
        el("td.runs-box", box),
        el("td.runs-main", name, el("div.rl-muted.rl-small.rl-mono", when(schedule))),
        el("td", time_ago(schedule["next_run"]) if schedule["next_run"] else off),
        el("td.rl-muted", time_ago(schedule["last_run"])),
        el("td.runs-tools", remove if writable else None),
        data_schedule=key,
        data_key=f"schedule{key}",
    )


def when(schedule: Schedule) -> str:
    """Return the times of a schedule."""
    texts = {"date": f"once, at {schedule['when']}", "nightly": f"evaluates the newest checkpoint, {schedule['when']}"}
    return f"{texts.get(schedule['trigger'], schedule['when'])} {schedule['timezone']}"


def _problem(problem: JobProblem) -> Element:
    failed = problem["outcome"] == "failed"
    return el(
        "tr",
        el("td.rl-muted.runs-when", time_ago(problem["time"])),
        el("td", el("span", "✗ failed" if failed else "! missed", class_="rl-wrong" if failed else "rl-leak")),
        el("td", problem["job"]),
        el("td.runs-main.rl-muted", el("div.runs-note", problem["detail"])),
        data_key=f"problem{problem['id']}",
    )
