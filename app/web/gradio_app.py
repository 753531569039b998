"""Gradio without network access and development work, and the pages as one Gradio app."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from unittest import mock

from app.web.page_registry import PageInfo

if TYPE_CHECKING:
    import gradio as gr

    from app.common.context import Context

COMPONENT_META = "gradio.component_meta"


def configure_gradio(cache: Path) -> None:
    """Disable telemetry and set Gradio's cache directory; call it before the first import of Gradio."""
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_SSR_MODE="False",
        GRADIO_MCP_SERVER="False",
        GRADIO_RUN_HISTORY="False",
        GRADIO_TEMP_DIR=str(cache),
        HF_HUB_DISABLE_TELEMETRY="1",
        DO_NOT_TRACK="1",
    )
    if "gradio" not in sys.modules and not any(isinstance(finder, _NoStubs) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoStubs())


def build(context: Context, pages: list[PageInfo]) -> gr.Blocks:
    """Build all pages, each with its own route."""
    import gradio as gr
    from gradio.routes import App

    blocks = gr.Blocks(title="RL2F Studio", analytics_enabled=False, fill_width=True)
    blocks.pages[0] = ("", "Runs", False)  # hides Gradio's navigation bar; the shell has its own
    # Gradio creates a web app after each page and uses only the last one, so none is created here
    with mock.patch.object(App, "create_app", staticmethod(_do_nothing)):
        for page in sorted(pages, key=lambda page: page.path != ""):  # routes must follow the root page
            with blocks if page.path == "" else blocks.route(page.title, page.path, show_in_navbar=False):
                page.module.build(context)
        blocks.queue(default_concurrency_limit=8, api_open=False)
    return blocks


class _NoStubs(MetaPathFinder):
    """Prevent Gradio from writing type stubs into its package at each import, which takes half of the import time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != COMPONENT_META:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            module.create_or_modify_pyi = _do_nothing  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _do_nothing(*_: object, **__: object) -> None:
    return None
