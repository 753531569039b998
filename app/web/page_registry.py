"""Pages and routers are found, not listed: a new one is one file."""

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


def _modules(package: ModuleType) -> list[ModuleType]:
    names = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in sorted(names)]


def pages() -> list[PageInfo]:
    """All pages in the order of the navigation."""
    found = sorted(_modules(app.pages), key=lambda module: (getattr(module, "ORDER", 100), module.TITLE))
    return [_page(module) for module in found]


def _page(module: ModuleType) -> PageInfo:
    name = module.__name__.rpartition(".")[2]

    def files(kind: str, extra: tuple[str, ...]) -> tuple[str, ...]:
        own = (f"{name}.{kind}",) if (STATIC / f"{name}.{kind}").is_file() else ()
        return tuple(dict.fromkeys([*extra, *own]))

    return PageInfo(
        path=module.PATH,
        title=module.TITLE,
        module=module,
        scripts=files("js", tuple(getattr(module, "SCRIPTS", ()))),
        styles=files("css", tuple(getattr(module, "STYLES", ()))),
    )


def routers() -> list[ModuleType]:
    """All modules of `app.api` that have a `router`."""
    return [module for module in _modules(app.api) if hasattr(module, "router")]
