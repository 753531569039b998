"""Page Run: one run as it goes on, or as it ended. The widget `app/static/run.js` draws it from `/api/run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = "run"
TITLE = "Run"
ORDER = 30
SCRIPTS = ("charts.js", "evaluation.js")
STYLES = ("charts.css",)


def build(context: Context) -> None:
    """The place of the widget."""
    import gradio as gr

    from app.api.plotly import url

    gr.HTML(
        f'<div class="rl-page" data-rl-widget="run" data-plotly="{url()}">'
        '<div class="rl-skeleton" style="height: 160px"></div></div>',
        apply_default_css=False,
    )
