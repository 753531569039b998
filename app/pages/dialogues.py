"""Page Dialogues: a list with filters, and one dialogue turn by turn. The widget `app/static/dialogues.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = "dialogues"
TITLE = "Dialogues"
ORDER = 40
SCRIPTS = ("transcript.js", "dialogue_view.js")
STYLES = ("transcript.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    import gradio as gr

    gr.HTML(
        '<div class="rl-page dl" data-rl-widget="dialogues">'
        '<div class="rl-skeleton" style="height: 320px"></div></div>',
        apply_default_css=False,
    )
