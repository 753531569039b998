"""Run kinds that need the database or the workspace: one module each."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Register the run kinds by importing all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
