"""The section in which data sets are made and taken away: a place for the widget `app/static/exports.js`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context


def build_export(context: Context) -> None:
    """Put the section on the page that is being built."""
    import gradio as gr

    gr.HTML(
        '<div class="rl-page ex" data-rl-widget="exports"><div class="rl-skeleton" style="height: 320px"></div></div>',
        apply_default_css=False,
    )
