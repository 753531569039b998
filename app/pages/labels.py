"""Page Labels: hints one by one, to be called leak or no leak, and how far people and detectors agree.

The widget `app/static/labels.js` draws it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = "labels"
TITLE = "Labels"
ORDER = 50
SCRIPTS = ("transcript.js",)
STYLES = ("transcript.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    import gradio as gr

    gr.HTML(
        '<div class="rl-page lb" data-rl-widget="labels"><div class="rl-skeleton" style="height: 320px"></div></div>',
        apply_default_css=False,
    )
