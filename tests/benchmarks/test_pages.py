"""The pure parts of the page benchmark: gates, table, JSON, command line, and drivers without a browser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.benchmarks import pages
from tests.benchmarks.native_pages import NewPages
from tests.benchmarks.page_drivers import STEPS


def test_a_load_may_take_200_ms_more_than_the_old_one_and_at_most_800_ms() -> None:
    assert pages.gate("load", 400, large=False) == 600
    assert pages.gate("load", 700, large=False) == 800


def test_an_interaction_may_take_a_quarter_more_or_100_ms() -> None:
    assert pages.gate("action", 20, large=False) == 100
    assert pages.gate("action", 200, large=False) == 250


def test_the_form_has_limits_of_its_own() -> None:
    assert pages.gate("type", 20, large=False) == 250
    assert pages.gate("yaml", 290, large=True) == 300


def test_lists_and_the_next_dialogue_are_limited_in_a_large_workspace_only() -> None:
    assert pages.gate("list", 400, large=False) == 500
    assert pages.gate("list", 400, large=True) == 300
    assert pages.gate("next", 90, large=True) == 100
    assert pages.gate("list", 20, large=True) == 100


def test_a_live_change_may_take_a_poll_interval() -> None:
    assert pages.gate("live", 900, large=False) == 2500
    assert pages.gate("live", 4000, large=True) == 5000


def test_the_table_marks_what_is_beyond_its_gate_and_names_failures() -> None:
    rows = [
        pages.Row("runs", "sort", 50, 99, 100),
        pages.Row("runs", "next page", 50, math.inf, 100, notes=["new: no button"]),
    ]
    lines = pages.table(rows).splitlines()
    assert lines[1].split() == ["runs", "sort", "50", "99", "100", "ms", "✓"]
    assert lines[2].split()[-4:] == ["failed", "100", "ms", "✗"]
    assert lines[3].strip() == "new: no button"
    assert lines[4] == "1 of 2 gates passed"


def test_a_failed_step_is_null_in_the_json() -> None:
    row = pages.Row("runs", "sort", 50.0, math.inf, 100.0, samples={"old": [50.0], "new": [math.inf]})
    found = json.loads(pages.as_json([row], {"size": "small"}))
    assert found["size"] == "small"
    assert found["rows"][0]["new"] is None and found["rows"][0]["samples"]["new"] == [None]
    assert found["rows"][0]["passed"] is False


def test_pages_are_selected_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.arguments(["--old", "x"]).pages == list(STEPS)
    assert pages.arguments(["--old", "x", "--pages", "runs,new"]).pages == ["runs", "new"]
    with pytest.raises(SystemExit):
        pages.arguments(["--old", "x", "--pages", "nowhere"])
    assert "unknown page nowhere; known: exports, runs" in capsys.readouterr().err


def test_every_step_is_a_method_of_the_drivers_and_every_page_begins_with_its_load() -> None:
    steps = [step for listed in STEPS.values() for step in listed]
    assert all(callable(getattr(NewPages, step.method)) for step in steps)
    assert all(listed[0].kind == "load" for listed in STEPS.values())
    assert len({step.method for step in steps}) == len(steps)


def test_a_workspace_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pages.json").write_text('{"size": "small"}')
    with pytest.raises(SystemExit, match="is small, not large"):
        pages.generated(tmp_path, "large", tmp_path)
