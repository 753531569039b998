"""Fixtures of all tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_copies import copied_models
from run_helpers import undrawn_figures


@pytest.fixture(scope="module", autouse=True)
def copied_base_models() -> Iterator[None]:
    """Backends and learners copy a base model that was loaded before."""
    with copied_models():
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Figures are not drawn; other tests of the same module draw them."""
    with undrawn_figures():
        yield
