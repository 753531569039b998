"""The model process that the tests of its protocol share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs.model_server.process import ModelProcess


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProcess]:
    """One process for the tests that leave it alive."""
    process = ModelProcess(tmp_path_factory.mktemp("log") / "chat.log")
    yield process
    process.close()
