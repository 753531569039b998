"""Four writers and a reader at once, as processes: nothing is locked out, lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_load import check

from jobs.studio import Studio


@pytest.mark.slow
def test_four_writers_and_a_reader_for_two_seconds(tmp_path: Path) -> None:
    studio = Studio(tmp_path / "studio").create()
    check(studio.database_url(), studio, 2)


@pytest.mark.slow
def test_four_writers_and_a_reader_for_two_minutes(tmp_path: Path) -> None:
    studio = Studio(tmp_path / "studio").create()
    check(studio.database_url(), studio, 120)
