"""Base models that are loaded once in each process, because copying a tiny one takes a fifth of the time."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USERS = ("rl2f_core.models.modeling.loading", "rl2f_core.learning.learner.trainable_adapter")
"""Modules with a function `load_base_model`."""
MAX_BYTES = 10_000_000
"""Larger models are loaded each time."""
_HELD: dict[Any, Any] = {}
"""Models by folder, dtype, device, and size and time of each file."""


@contextmanager
def copied_models() -> Iterator[None]:
    """Let backends and learners copy the model that the first of them has loaded from the same files.

    Has no effect if no test has imported them yet, because the import takes seconds.
    """
    if any(name not in sys.modules for name in USERS):
        yield
        return
    modules = [sys.modules[name] for name in USERS]
    load = modules[0].load_base_model

    def copied(folder: str, dtype: Any, device: Any) -> Any:
        files = [(path.name, path.stat()) for path in sorted(Path(folder).iterdir())]
        if sum(stat.st_size for _, stat in files) > MAX_BYTES:
            return load(folder, dtype, device)
        key = folder, dtype, device, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
        if key not in _HELD:
            _HELD[key] = load(folder, dtype, device)
        return copy.deepcopy(_HELD[key])

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "load_base_model", copied)
        yield
