"""Page Audit log: what people and programs did, newest first."""

from __future__ import annotations

import time

import gradio as gr

from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._events import FAST, handler
from app.pages._frame import page_frame

PATH, TITLE, ORDER = "audit", "Audit log", 90
COLUMNS = ("time", "caller", "action", "arguments", "outcome", "detail")
WIDTHS = ["12%", "12%", "14%", "28%", "8%", "26%"]
DESCRIPTION = (
    "The newest 1,000 actions in the browser and of programs with a token, and those that were refused. "
    "Queries are not recorded; texts and values of configurations neither."
)


def build(studio: Studio) -> None:
    """Build the table; its toolbar filters by text and by column."""
    address = page_frame(studio, TITLE)
    View(el("div", el("h1.rl-title", TITLE), el("p.rl-muted", DESCRIPTION)))
    table = gr.Dataframe(
        headers=list(COLUMNS),
        datatype="str",
        interactive=False,
        wrap=True,
        show_search="filter",
        column_widths=WIDTHS,
        label="Actions",
        show_label=False,
        elem_id="audit-log",
    )

    @handler
    def show() -> list[list[str]]:
        return [
            [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"])), *(str(row[n]) for n in COLUMNS[1:])]  # type: ignore[literal-required]
            for row in studio.audit.list_actions()
        ]

    address.input(show, None, table, **FAST)
