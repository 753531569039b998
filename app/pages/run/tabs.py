"""Heading and tabs of a run, on the pages Run and Dialogues."""

from __future__ import annotations

from typing import Literal

from app.common.urls import page_url
from app.components.nodes import Element, badge, el
from app.endpoints.runs import RunSummary

RunTab = Literal["Overview", "Dialogues", "Evaluation", "Checkpoints", "Config", "Log"]
TABS: tuple[RunTab, ...] = ("Overview", "Dialogues", "Evaluation", "Checkpoints", "Config", "Log")


def run_tabs(run: RunSummary, current: RunTab) -> Element:
    """Return the name, facts and status of a run, and links to its tabs."""
    facts = " · ".join(text for text in (run["environment"], run["method"], run["model"]) if text)
    heading = el(
        "div.rl-head",
        el("h1", run["name"], title=f"run {run['id']}"),
        el("span.rl-muted.rl-small.rl-cut", f"run {run['id']} · {facts}"),
        badge(run["status"], run["detail"]),
    )
    return el("div.rl-stack.rl-run-head", heading, tab_links(run["id"], current))


def tab_links(run: int, current: RunTab, switch: bool = False) -> Element:
    """Return links to the tabs of a run.

    Args:
        run: The run.
        current: The open tab.
        switch: The tabs of the page Run are actions `tab`, which the `View` triggers instead of opening a page.
    """
    return el("nav.rl-tabs", (_tab_link(run, tab, current, switch) for tab in TABS), aria_label="run")


def _tab_link(run: int, tab: RunTab, current: RunTab, switch: bool) -> Element:
    is_action = switch and tab != "Dialogues"
    return el(
        "a",
        tab,
        href=run_tab_url(run, tab),
        aria_current="page" if tab == current else None,
        data_show=True if tab == current else None,
        data_action="tab" if is_action else None,
        data_tab=tab.lower(),
    )


def run_tab_url(run: int, tab: RunTab) -> str:
    """Return the address of a tab of a run."""
    if tab == "Dialogues":
        return page_url("dialogues", run=run)
    return page_url("run", run=run, tab=tab.lower())
