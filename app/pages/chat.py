"""Page Chat: base and checkpoints side by side, or a task played by hand. The widget `app/static/chat.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pages._place import place

if TYPE_CHECKING:
    from app.common.context import Context

PATH = "chat"
TITLE = "Chat"
ORDER = 60
SCRIPTS = ("transcript.js", "chat_view.js")
STYLES = ("transcript.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    place("chat", 320, "ch")
