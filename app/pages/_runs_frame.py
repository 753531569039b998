"""Sections and tables of the page Runs, and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.components.nodes import Element, Node, action, el, time_ago

if TYPE_CHECKING:
    from app.endpoints.runs import JobProblem, Schedule


def stack(*children: Node) -> Element:
    """Return parts below each other."""
    return el("div", *children, class_="rl-page")


def section(title: str, part: str, *children: Node, tools: Sequence[Node] = ()) -> Element:
    """Return a section with a heading; `tools` are beside the heading."""
    head = el("div", el("h2", title), *tools, class_="rl-row")
    return el("section", head, *children, class_="rl-stack", data_part=part, aria_label=title)


def table(header: Element | None, rows: Sequence[Element]) -> Element:
    """Return a table in a card."""
    return el(
        "div",
        el("table", el("thead", header) if header else None, el("tbody", rows), class_="rl-table"),
        class_="rl-card runs-table",
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
    off = el("span", "never" if schedule["enabled"] else "off", class_="rl-muted")
    remove = action("Delete…", "delete_schedule", style="rl-small rl-quiet", schedule=key,
                    confirm=f"Delete the schedule {name}? Its runs remain.")  # fmt: skip
    return el(
        "tr",
        el("td", box, class_="runs-box"),
        el("td", name, el("div", when(schedule), class_="rl-muted rl-small rl-mono"), class_="runs-main"),
        el("td", time_ago(schedule["next_run"]) if schedule["next_run"] else off),
        el("td", time_ago(schedule["last_run"]), class_="rl-muted"),
        el("td", remove if writable else None, class_="runs-tools"),
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
        el("td", time_ago(problem["time"]), class_="rl-muted runs-when"),
        el("td", el("span", "✗ failed" if failed else "! missed", class_="rl-wrong" if failed else "rl-leak")),
        el("td", problem["job"]),
        el("td", el("div", problem["detail"], class_="runs-note"), class_="runs-main rl-muted"),
        data_key=f"problem{problem['id']}",
    )
