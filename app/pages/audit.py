"""Page Audit log: what people and programs did, newest first."""

from __future__ import annotations

import time

import gradio as gr

from app.components.address import Replacement
from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, handler
from app.pages._frame import page_frame
from rl2f_core.types import JsonObject

PATH, TITLE, ORDER = "audit", "Audit log", 90
COLUMNS = ("time", "caller", "action", "arguments", "outcome", "detail")
WIDTHS: list[str | int] = ["12%", "12%", "14%", "28%", "8%", "26%"]
DESCRIPTION = (
    "The newest 1,000 actions in the browser and of programs with a token, and those that were refused. "
    "Queries are not recorded. Of texts and configurations, only lengths and keys are stored."
)


def build(studio: Studio) -> None:
    """Build the table and its filter, which is in the address."""
    address = page_frame(studio, TITLE)
    View(el("div", el("h1.rl-title", TITLE), el("p.rl-muted", DESCRIPTION)))
    hint = "Filter by token, endpoint, argument or outcome"
    search = gr.Textbox(label="Filter", placeholder=hint, show_label=False, container=False, max_lines=1)
    table = gr.Dataframe(
        headers=list(COLUMNS),
        datatype="str",
        interactive=False,
        wrap=True,
        column_widths=WIDTHS,
        buttons=[],
        label="Actions",
        show_label=False,
        elem_id="audit-log",
    )

    def rows(text: str) -> list[list[str]]:
        listed: list[JsonObject] = [{**row} for row in studio.audit.list_actions(text)]
        for row in listed:
            row["time"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"]))
        return [[row[name] for name in COLUMNS] for row in listed]

    @handler
    def open_page(query: dict[str, str]) -> tuple[str, list[list[str]]]:
        text = query.get("search", "")
        return text, rows(text)

    @handler
    def filter_rows(text: str) -> tuple[Replacement, list[list[str]]]:
        return Replacement(search=text), rows(text)

    address.input(open_page, address, [search, table], **FAST)
    search.change(filter_rows, search, [address, table], **LATEST)
