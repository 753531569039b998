"""Page Audit log: what people and programs did, newest first."""

from __future__ import annotations

import time

import gradio as gr

from app.components.browser.address import Replacement
from app.components.nodes import Element, el, table
from app.components.view import View
from app.endpoints.audit import AuditRow
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, handler
from app.pages._frame import page_frame

PATH, TITLE, ORDER = "audit", "Audit log", 90
COLUMNS = ("time", "caller", "action", "arguments", "outcome", "detail")
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
    listed = View(elem_id="audit-log")

    def rows(text: str) -> Element:
        return table(COLUMNS, map(_row, studio.audit.list_actions(text)))

    @handler
    def open_page(query: dict[str, str]) -> tuple[str, Element]:
        text = query.get("search", "")
        return text, rows(text)

    @handler
    def filter_rows(text: str) -> tuple[Replacement, Element]:
        return Replacement(search=text), rows(text)

    address.input(open_page, address, [search, listed], **FAST)
    search.change(filter_rows, search, [address, listed], **LATEST)


def _row(row: AuditRow) -> Element:
    """Return an entry, whose action links to its run, dialogue or chat."""
    action = el("a", row.action, href=row.url) if row.url else row.action
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    texts = (when, row.caller, action, row.arguments, row.outcome, row.detail)
    return el("tr", *(el("td", text, data_title=title) for title, text in zip(COLUMNS, texts, strict=True)))
