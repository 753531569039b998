"""Page Runs: what runs, what waits, what ended, and what is scheduled. The widget `app/static/runs.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = ""
TITLE = "Runs"
ORDER = 10


def build(context: Context) -> None:
    """The place of the widget."""
    place("runs", 120)
