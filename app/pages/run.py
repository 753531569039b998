"""Page Run: one run as it goes on, or as it ended. The widget `app/static/run.js` draws it from `/api/run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "run"
TITLE = "Run"
ORDER = 30
SCRIPTS = ("charts.js", "evaluation.js")
STYLES = ("charts.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    place("run", 160, plots=True)
