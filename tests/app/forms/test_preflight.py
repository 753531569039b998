"""State of a preflight that the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from preflight_report import report

from app.forms import preflight
from jobs.db.models import Run as Row


def test_while_it_runs_a_preflight_says_how_far_it_is(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="running", phase="old", done=1.0)
    (tmp_path / "progress.json").write_text('{"phase": "preflight", "done": 12, "total": 128, "note": "", "time": 1}')
    shown = preflight.view(run, tmp_path)
    assert (shown.phase, shown.done, shown.total, shown.verdict) == ("preflight", 12.0, 128, None)
    (tmp_path / "progress.json").write_text("torn")
    assert preflight.view(run, tmp_path).phase == "old"


def test_a_finished_preflight_has_a_verdict_numbers_and_a_histogram(tmp_path: Path) -> None:
    import plotly.graph_objects

    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="succeeded")
    (tmp_path / "preflight.json").write_text(report().model_dump_json())
    (tmp_path / "preflight.txt").write_text(report().to_text())
    shown = preflight.view(run, tmp_path)
    assert shown.verdict.ok and shown.verdict.text == "Worth starting."
    facts = {fact.label: fact.value for fact in shown.facts}
    assert facts["parsable"].startswith("88% (") and facts["mixed groups"] == "50%" and facts["time"] == "≈ 2 min"
    bars = {bar["name"]: dict(zip(bar["x"], bar["y"], strict=True)) for bar in shown.figure["data"]}
    assert bars == {"all incorrect": {0: 1}, "mixed": {1: 2}, "all correct": {2: 1}}
    drawn = json.loads(re.sub(r"--rl-\w+", "#123456", json.dumps(shown.figure)))
    assert len(plotly.graph_objects.Figure(drawn).data) == 3


def test_a_failed_preflight_says_why_and_what_to_do(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="failed", detail="PreflightError: …")
    (tmp_path / "preflight.json").write_text(report(passed=False).model_dump_json())
    verdict = preflight.view(run, tmp_path).verdict
    assert not verdict.ok and "Too hard." in verdict.text and verdict.fix == "Choose an easier level."
    (tmp_path / "preflight.json").write_text("{}")
    shown = preflight.view(run, tmp_path)
    assert shown.verdict is None and shown.detail == "PreflightError: …"
