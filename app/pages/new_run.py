"""Page New run: a form and its YAML side by side, from a preset or a past run, to check, start or schedule.

The widget is `app/static/new_run.js` with `form.js`; both are fed by `/api/form`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context

PATH = "new"
TITLE = "New run"
ORDER = 20
SCRIPTS = ("charts.js", "form.js")
STYLES = ("charts.css",)


def build(context: Context) -> None:
    """The place of the widget. What the form is made of is prepared here, so that the first visit does not wait."""
    import gradio as gr

    from app import forms
    from app.api.plotly import url

    for kind in forms.kinds():
        forms.spec(kind)
    gr.HTML(
        f'<div class="rl-page" data-rl-widget="new_run" data-plotly="{url()}">'
        '<div class="rl-skeleton" style="height: 220px"></div></div>',
        apply_default_css=False,
        padding=False,
    )
