"""A page of 30 lines, as a user would add it: a table and a plot of a metric."""

import gradio as gr

from app.components.charts import Charts
from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._events import FAST, handler
from app.pages._frame import page_frame
from jobs.db.queries.runs import RunFilter

PATH, TITLE, ORDER = "speed", "Speed", 90


def build(studio: Studio) -> None:
    address = page_frame(studio, TITLE)
    gr.Markdown("# Tokens per second")
    table, charts = View(), Charts()

    @handler
    def show(query):
        rows = studio.runs.list_runs(RunFilter(search=query.get("search", ""))).rows
        cells = [el("tr", el("td", run.name), el("td", str(run.tokens_per_second))) for run in rows]
        drawn = studio.run.run_charts(rows[0].id, names=["reward"]).charts if rows else []
        return [query, el("table", cells, class_="rl-table"), drawn]

    address.input(show, address, [address, table, charts], **FAST)
