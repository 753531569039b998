"""Test parameters for every registered environment."""

from __future__ import annotations

import pytest

from rl2f_core import registry

WORKERS = ("math", "gsm_symbolic", "reasoning_gym")
"""Environments that judge in worker processes: their tests share one test process, which starts the workers once."""
ENVIRONMENTS = [
    pytest.param(name, marks=pytest.mark.xdist_group("workers")) if name in WORKERS else name
    for name in registry.names("environment")
]
