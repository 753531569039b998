"""The dataset type `attempts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export_builders import leaky_events, rows_of, write_run

from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource


def test_each_attempt_is_a_row_with_its_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    settings: Any = ExportSettings(formats=("attempts",), files=("jsonl", "parquet"))
    manifest = export([FolderSource(run)], settings, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "attempts.jsonl")
    assert manifest and manifest["formats"]["attempts"]["rows"] == len(rows) > 0
    assert list(rows[0]) == list(FORMATS["attempts"].columns)
    assert {row["correct"] for row in rows} <= {True, False, None}
