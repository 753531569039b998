"""Page Dialogues: a list with filters, and one dialogue turn by turn. The widget `app/static/dialogues.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "dialogues"
TITLE = "Dialogues"
ORDER = 40
SCRIPTS = ("transcript.js", "dialogue_view.js")
STYLES = ("transcript.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    place("dialogues", 320, "dl")
