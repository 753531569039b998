"""Kinds of runs that need the database or the studio: one module each, registered when `load` is called.

A kind whose class has `light = True` needs no compute: the queue gives it no device slot.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package, so that the kinds it registers are known."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
