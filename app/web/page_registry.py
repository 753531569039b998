"""Discovery of pages and routers: each module of `app.pages` and `app.api` is one."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

import app.api
import app.pages
from rl2f_core.paths import ROOT

STATIC = ROOT / "app" / "static"


@dataclass(frozen=True)
class PageInfo:
    """A page of the navigation."""

    path: str
    title: str
    module: ModuleType
    scripts: tuple[str, ...]
    styles: tuple[str, ...]
    in_navigation: bool = True


def _modules(package: ModuleType) -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in sorted(names)]


def pages() -> list[PageInfo]:
    """Return all pages in the order of the navigation."""
    modules = sorted(_modules(app.pages), key=lambda module: (getattr(module, "ORDER", 100), module.TITLE))
    return [
        PageInfo(
            m.PATH,
            m.TITLE,
            m,
            _files(m, "js", "SCRIPTS"),
            _files(m, "css", "STYLES"),
            getattr(m, "IN_NAVIGATION", True),
        )
        for m in modules
    ]


def _files(module: ModuleType, suffix: str, constant: str) -> tuple[str, ...]:
    """Return the static files that a page names, and the one that is named after it."""
    default = f"{module.__name__.rpartition('.')[2]}.{suffix}"
    defaults = [default] if (STATIC / default).is_file() else []
    return tuple(dict.fromkeys([*getattr(module, constant, ()), *defaults]))


def routers() -> list[ModuleType]:
    """Return all modules of `app.api` that have a `router`."""
    return [module for module in _modules(app.api) if hasattr(module, "router")]
