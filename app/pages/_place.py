"""The place of a page's widget, with a skeleton that is seen until the widget stands."""

from __future__ import annotations

from typing import Any


def place(widget: str, height: int, style: str = "", *, plots: bool = False, **options: Any) -> None:
    """Put a place on the page that is being built.

    Args:
        widget: Name under which the script calls `rl2f.widget`.
        height: Of the skeleton, in pixels.
        style: A further class for the page's own style sheet.
        plots: The widget draws plots, so it is told where the library lies.
        options: Further arguments of `gradio.HTML`.
    """
    import gradio as gr

    from app.api.plotly import url

    library = f' data-plotly="{url()}"' if plots else ""
    gr.HTML(
        f'<div class="{f"rl-page {style}".strip()}" data-rl-widget="{widget}"{library}>'
        f'<div class="rl-skeleton" style="height: {height}px"></div></div>',
        apply_default_css=False,
        **options,
    )
