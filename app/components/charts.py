"""`Charts`: a grid of Plotly figures that keep their zoom when they are updated."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from app.components.module import load_module, plotly_url


class Charts(gr.HTML):
    """Plotly figures, drawn in place.

    The value is a list of charts as `app.plots.series.Chart.as_json` makes them: `key`, `title`, `unit`, `note`,
    `help`, `words` (description for screen readers) and `figure`. Colors that name a CSS variable follow the page's
    theme. A click on a point triggers `select` with `{"key": …, "point": customdata}`; with `closable`, the cross of a
    chart triggers `delete` with its key.

    Args:
        value: The charts.
        closable: Each chart has a cross.
        options: Further arguments of `gr.HTML`.
    """

    def __init__(self, value: list[Any] | None = None, *, closable: bool = False, **options: Any) -> None:
        super().__init__(
            value,
            html_template="",
            js_on_load=load_module("charts.js"),
            apply_default_css=False,
            closable=closable,
            library=plotly_url(),
            **options,
        )

    def postprocess(self, value: Any) -> str | None:
        """Return the charts as JSON text."""
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
