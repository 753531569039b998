"""Base models that are loaded once in each process, because copying a tiny one takes a fifth of the time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MAX_BYTES = 10_000_000
"""Larger models are loaded each time."""
_HELD: dict[Any, Any] = {}
"""Models by folder, dtype, device, and size and time of each file."""


@contextmanager
def copied_models() -> Iterator[None]:
    """Let backends and learners copy the model that the first of them has loaded from the same files."""
    from rl2f_core.learning.learner import trainable_adapter
    from rl2f_core.models.modeling import loading

    load = loading.load_base_model

    def copied(folder: str, dtype: Any, device: Any) -> Any:
        files = [(path.name, path.stat()) for path in sorted(Path(folder).iterdir())]
        if sum(stat.st_size for _, stat in files) > MAX_BYTES:
            return load(folder, dtype, device)
        key = folder, dtype, device, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
        if key not in _HELD:
            _HELD[key] = load(folder, dtype, device)
        return copy.deepcopy(_HELD[key])

    with pytest.MonkeyPatch.context() as patch:
        for module in (loading, trainable_adapter):
            patch.setattr(module, "load_base_model", copied)
        yield
