"""`Charts`: a grid of Plotly figures that keep their zoom when they are updated."""

from __future__ import annotations

from typing import Any

from app.components.component import Component
from app.components.module import plotly_url
from rl2f_core.types import JsonObject


class Charts(Component):
    """Plotly figures, drawn in place.

    The value is a list of charts as `app.plots.series.Chart.as_json` makes them: `key`, `title`, `unit`, `note`,
    `help`, `words` (description for screen readers) and `figure`. Colors that name a CSS variable follow the page's
    theme. A click on a point triggers `select` with `{"key": …, "point": customdata}`; with `closable`, the cross of a
    chart triggers `delete` with its key. Plotly's mode bar enlarges a chart, makes its y axis logarithmic, and saves
    it as PNG, SVG or CSV; with `arrange`, it pins and hides charts, and their titles can be dragged.

    Args:
        value: The charts.
        closable: Each chart has a cross.
        arrange: Name under which the browser stores pinned, hidden and ordered charts; empty if they are fixed.
        options: Further arguments of `gr.HTML`.
    """

    MODULE = "charts.js"

    def __init__(
        self, value: list[JsonObject] | None = None, *, closable: bool = False, arrange: str = "", **options: Any
    ) -> None:
        super().__init__(value, closable=closable, arrange=arrange, library=plotly_url(), **options)
