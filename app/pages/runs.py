"""Page Runs: what runs, what waits, what ended, and what is scheduled. The widget `app/static/runs.js` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = ""
TITLE = "Runs"
ORDER = 10


def build(context: Context) -> None:
    """The place of the widget."""
    import gradio as gr

    gr.HTML(
        '<div class="rl-page" data-rl-widget="runs"><div class="rl-skeleton" style="height: 120px"></div></div>',
        apply_default_css=False,
    )
