"""How Gradio is loaded: silent towards the network, and without the work that only its developers need."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

META = "gradio.component_meta"


def quiet_gradio(cache: Path) -> None:
    """Settings that Gradio reads when it is imported: nothing is sent anywhere, and its files lie in `cache`."""
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


@contextlib.contextmanager
def without_apps() -> Iterator[None]:
    """Gradio makes a whole web app after each page, and throws all but the last away; here it makes none of them."""
    from gradio.routes import App

    made = App.create_app
    App.create_app = staticmethod(_nothing)  # type: ignore[assignment]
    try:
        yield
    finally:
        App.create_app = staticmethod(made)  # type: ignore[method-assign]


class _NoStubs(MetaPathFinder):
    """Gradio writes type stubs beside its own sources at every import, which takes half of the import's time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != META:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            module.create_or_modify_pyi = _nothing  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _nothing(*_: Any, **__: Any) -> None:
    return None
