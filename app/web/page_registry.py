"""Discovery of pages: each module of `app.pages` without an underscore, and `page` of each package."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

import app.pages
from rl2f_core.common.paths import ROOT

STATIC = ROOT / "app" / "static"


@dataclass(frozen=True)
class PageInfo:
    """A page of the studio."""

    path: str
    title: str
    module: ModuleType
    in_navigation: bool = True


def describe_page(module: ModuleType) -> PageInfo:
    """Return the page of a module; see `app.pages`."""
    return PageInfo(module.PATH, module.TITLE, module, getattr(module, "IN_NAVIGATION", True))


def pages() -> list[PageInfo]:
    """Return all pages in the order of the navigation; it imports Gradio."""
    found = [info for info in pkgutil.iter_modules(app.pages.__path__) if not info.name.startswith("_")]
    names = [f"app.pages.{info.name}.page" if info.ispkg else f"app.pages.{info.name}" for info in found]
    modules = [importlib.import_module(name) for name in names]
    return [describe_page(m) for m in sorted(modules, key=lambda m: (getattr(m, "ORDER", 100), m.TITLE))]
