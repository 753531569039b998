"""A queue over a workspace of its own, and kinds of runs that only count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_helpers import a_queue, counting_kinds

from jobs.queue.queue import Queue
from jobs.workspace import Workspace


@pytest.fixture(scope="module")
def counts() -> Iterator[None]:
    """The kinds that count are known while a module's tests run."""
    with counting_kinds():
        yield


@pytest.fixture
def queue(tmp_path: Path, empty_database: bytes) -> Iterator[Queue]:
    """A queue on a workspace of its own; what still runs at the end is aborted."""
    Workspace(tmp_path / "workspace").create().database.write_bytes(empty_database)  # at the newest schema
    with a_queue(tmp_path / "workspace") as made:
        yield made
