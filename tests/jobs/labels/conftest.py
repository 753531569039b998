"""A workspace of a run with labels, which a module prepares once and each test copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace_copies import copied, opened

from jobs.db.engine import Database
from jobs.workspace import Workspace


@pytest.fixture
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    """A copy of the first item of `prepared` for a test that uses this fixture of its module, else an empty one."""
    folder = tmp_path / "workspace"
    if "prepared" in request.fixturenames:
        return copied(request.getfixturevalue("prepared")[0], folder)
    return Workspace(folder).create()


@pytest.fixture
def db(workspace: Workspace, empty_database: bytes) -> Iterator[Database]:
    """The database of the workspace."""
    with opened(workspace, empty_database) as database:
        yield database
