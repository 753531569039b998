"""Page Fork: a dialogue goes on under other hints. The widget `app/static/fork.js` draws it from `/api/fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "fork"
TITLE = "Fork"
ORDER = 45
SCRIPTS = ("transcript.js", "fork_result.js")
STYLES = ("transcript.css", "charts.css")


def build(context: Context) -> None:
    """The place of the widget."""
    place("fork", 320, "fk")
