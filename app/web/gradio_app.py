"""The pages as one Gradio app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.web.gradio_setup import without_apps
from app.web.page_registry import PageInfo, pages

if TYPE_CHECKING:
    from app.common.context import Context


def build(context: Context, found: list[PageInfo] | None = None) -> Any:
    """All pages, each in its own route. Returns the `gr.Blocks`."""
    import gradio as gr

    found = pages() if found is None else found
    blocks = gr.Blocks(title="RL2F Studio", analytics_enabled=False, fill_width=True)
    blocks.pages[0] = ("", "Runs", False)  # the navigation is the shell's; Gradio shows its own bar for one entry
    with without_apps():
        for page in sorted(found, key=lambda page: page.path != ""):  # the first page is the root; routes come after it
            inside = blocks if page.path == "" else blocks.route(page.title, page.path, show_in_navbar=False)
            with inside:
                page.module.build(context)
        blocks.queue(default_concurrency_limit=8, api_open=False)
    return blocks
