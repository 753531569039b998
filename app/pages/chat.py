"""Page Chat: base and checkpoints side by side, or a task played by hand. The widget `app/static/chat.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = "chat"
TITLE = "Chat"
ORDER = 60
SCRIPTS = ("transcript.js", "chat_view.js")
STYLES = ("transcript.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    import gradio as gr

    gr.HTML(
        '<div class="rl-page ch" data-rl-widget="chat"><div class="rl-skeleton" style="height: 320px"></div></div>',
        apply_default_css=False,
    )
