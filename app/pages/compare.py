"""Page Compare: runs overlaid. The widget `app/static/compare.js` draws it from `/api/compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "compare"
TITLE = "Compare"
ORDER = 70
SCRIPTS = ("charts.js", "evaluation.js")
STYLES = ("charts.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    place("compare", 160, plots=True)
