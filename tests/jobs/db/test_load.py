"""Four writers and a reader at once, as processes: nothing is locked out, lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from db_load import check

from jobs.workspace import Workspace


@pytest.mark.slow
def test_four_writers_and_a_reader_for_two_seconds(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    check(workspace.database_url(), workspace, 2)


@pytest.mark.slow
def test_four_writers_and_a_reader_for_two_minutes(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    check(workspace.database_url(), workspace, 120)
