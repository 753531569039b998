"""The pure parts of the page benchmark: limits, table, JSON, command line, and the driver without a browser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.benchmarks import pages
from tests.benchmarks.page_driver import STEPS, PageDriver


def test_every_kind_of_step_has_a_limit() -> None:
    assert {step.kind for steps in STEPS.values() for step in steps} == set(pages.LIMITS)


def test_the_table_marks_what_is_beyond_its_limit_and_names_failures() -> None:
    rows = [
        pages.Row("runs", "sort", 99, 100),
        pages.Row("runs", "next page", math.inf, 100, notes=["no button"]),
    ]
    lines = pages.table(rows).splitlines()
    assert lines[1].split() == ["runs", "sort", "99", "100", "ms", "✓"]
    assert lines[2].split()[-4:] == ["failed", "100", "ms", "✗"]
    assert lines[3].strip() == "no button"
    assert lines[4] == "1 of 2 measures are within their limits"


def test_a_failed_step_is_null_in_the_json() -> None:
    row = pages.Row("runs", "sort", math.inf, 100.0, samples=[math.inf])
    found = json.loads(pages.as_json([row], {"size": "small"}))
    assert found["size"] == "small"
    assert found["rows"][0]["value"] is None and found["rows"][0]["samples"] == [None]
    assert found["rows"][0]["passed"] is False


def test_pages_are_selected_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.arguments([]).pages == list(STEPS)
    assert pages.arguments(["--pages", "runs,new"]).pages == ["runs", "new"]
    with pytest.raises(SystemExit):
        pages.arguments(["--pages", "nowhere"])
    assert "unknown page nowhere; known: audit, api, exports" in capsys.readouterr().err


def test_every_step_is_a_method_of_the_driver_and_every_page_begins_with_its_load() -> None:
    steps = [step for listed in STEPS.values() for step in listed]
    assert all(callable(getattr(PageDriver, step.method)) for step in steps)
    assert all(listed[0].kind == "load" for listed in STEPS.values())
    own = [step.method for step in steps if step.method != "change"]  # the change of pages is that of all pages
    assert len(set(own)) == len(own)


def test_a_workspace_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text('{"size": "small"}')
    with pytest.raises(SystemExit, match="is small, not large"):
        pages.generated(tmp_path, "large")
