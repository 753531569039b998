"""Heading and tabs of a run, on the pages Run and Dialogues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from app.common.urls import page_url
from app.components.nodes import Element, badge, el

if TYPE_CHECKING:
    from app.endpoints.runs import RunSummary

RunTab = Literal["Overview", "Dialogues", "Evaluation", "Checkpoints", "Config", "Log"]
TABS: tuple[RunTab, ...] = ("Overview", "Dialogues", "Evaluation", "Checkpoints", "Config", "Log")


def run_tabs(run: RunSummary, current: RunTab) -> Element:
    """Return the name, facts and status of a run, and links to its tabs."""
    facts = " · ".join(text for text in (run["environment"], run["method"], run["model"]) if text)
    heading = el(
        "div",
        el("h1", run["name"], title=f"run {run['id']}"),
        el("span", f"run {run['id']} · {facts}", class_="rl-muted rl-small rl-cut"),
        badge(run["status"], run["detail"]),
        class_="rl-head",
    )
    links = [
        el("a", tab, href=run_tab_url(run["id"], tab), aria_current="page" if tab == current else None) for tab in TABS
    ]
    return el("div", heading, el("nav", links, class_="rl-tabs", aria_label="run"), class_="rl-stack rl-run-head")


def run_tab_url(run: int, tab: RunTab) -> str:
    """Return the address of a tab of a run."""
    if tab == "Dialogues":
        return page_url("dialogues", run=run)
    return page_url("run", run=run, tab=tab.lower() if tab != "Overview" else None)
