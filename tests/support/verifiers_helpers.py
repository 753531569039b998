"""Tests with the package verifiers, which has a virtual environment of its own."""

from __future__ import annotations

import functools
import subprocess

import pytest

from rl2f_core.environments.verifiers.taskset import python
from rl2f_core.errors import ConfigError


@functools.cache
def installed() -> bool:
    try:
        command = [str(python()), "-c", "import importlib.util as u; exit(u.find_spec('verifiers') is None)"]
    except ConfigError:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_verifiers = pytest.mark.skipif(
    "not __import__('verifiers_helpers').installed()", reason="verifiers is not installed: make setup-verifiers"
)
"""Skips a test; evaluated only if the test is selected."""
