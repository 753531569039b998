"""State of a preflight that the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app.forms import preflight
from jobs.db.models import Run as Row
from rl2f_core.stats.intervals import wilson
from rl2f_core.training.preflight import PreflightReport


def report(passed: bool = True) -> PreflightReport:
    """Return a report of 4 groups of 2: one all incorrect, two mixed, one all correct."""
    return PreflightReport(
        stage="rl",
        tasks=4,
        samples=2,
        turns=3,
        parsable=wilson(7, 8),
        solved_first=wilson(1, 8),
        solved=wilson(4, 8),
        outcomes={"groups/frac_mixed": 0.5, "groups/frac_all_correct": 0.25, "groups/frac_all_incorrect": 0.25},
        histogram=[1, 2, 1],
        expected_mixed_groups=2.0,
        attempt_tokens=5.0,
        max_attempt_tokens=8,
        cut_attempts=wilson(0, 12),
        hint_tokens=4.0,
        dialogue_tokens=40,
        max_seq_len=64,
        truncated=wilson(0, 8),
        failed=0,
        seconds_per_step=1.5,
        total_seconds=90.0,
        memory_gib=1.25,
        most_common_answer="7",
        passed=passed,
        reason="" if passed else "Too hard.",
        fix="" if passed else "Choose an easier level.",
    )


def test_while_it_runs_a_preflight_says_how_far_it_is(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="running", phase="old", done=1.0)
    (tmp_path / "progress.json").write_text('{"phase": "preflight", "done": 12, "total": 128, "note": "", "time": 1}')
    shown = preflight.view(run, tmp_path)
    assert (shown["phase"], shown["done"], shown["total"], shown["verdict"]) == ("preflight", 12.0, 128, None)
    (tmp_path / "progress.json").write_text("torn")
    assert preflight.view(run, tmp_path)["phase"] == "old"


def test_a_finished_preflight_has_a_verdict_numbers_and_a_histogram(tmp_path: Path) -> None:
    import plotly.graph_objects

    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="succeeded")
    (tmp_path / "preflight.json").write_text(report().model_dump_json())
    (tmp_path / "preflight.txt").write_text(report().to_text())
    shown = preflight.view(run, tmp_path)
    assert shown["verdict"]["ok"] and shown["verdict"]["text"] == "Worth starting."
    facts = {fact["label"]: fact["value"] for fact in shown["facts"]}
    assert facts["parsable"].startswith("88% (") and facts["mixed groups"] == "50%" and facts["time"] == "≈ 2 min"
    bars = {bar["name"]: dict(zip(bar["x"], bar["y"], strict=True)) for bar in shown["figure"]["data"]}
    assert bars == {"all wrong": {0: 1}, "mixed": {1: 2}, "all right": {2: 1}}
    drawn = json.loads(re.sub(r"--rl-\w+", "#123456", json.dumps(shown["figure"])))
    assert len(plotly.graph_objects.Figure(drawn).data) == 3


def test_a_failed_preflight_says_why_and_what_to_do(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="failed", detail="PreflightError: …")
    (tmp_path / "preflight.json").write_text(report(passed=False).model_dump_json())
    verdict = preflight.view(run, tmp_path)["verdict"]
    assert not verdict["ok"] and "Too hard." in verdict["text"] and verdict["fix"] == "Choose an easier level."
    (tmp_path / "preflight.json").write_text("{}")
    shown = preflight.view(run, tmp_path)
    assert shown["verdict"] is None and shown["detail"] == "PreflightError: …"
