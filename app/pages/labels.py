"""Page Labels: hints one by one, to be called leak or no leak, and how far people and detectors agree.

The widget `app/static/labels.js` draws it, `board.js` and `benchmark.js` its boards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "labels"
TITLE = "Labels"
ORDER = 50
SCRIPTS = ("transcript.js", "board.js", "benchmark.js")
STYLES = ("transcript.css", "board.css")


def build(context: Context) -> None:
    """The place of the widget."""
    place("labels", 320, "lb")
