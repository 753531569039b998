"""Planted hints on pages and in endpoints: ground truth after the label, and their section of the report."""

from __future__ import annotations

import json

import pytest
from json_endpoints import JsonEndpoints
from planted_data import planted_events
from replay_data import add_run
from typer.testing import CliRunner

from app.cli import app
from app.common.context import Context
from app.components.elements.transcript import finding_lines
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.leaks.detectors import DetectorEndpoints, ReportScope
from app.endpoints.leaks.labels import LabelEndpoints
from app.pages.labels.desk import LabelForm
from app.pages.labels.report import report_view
from jobs.labels import report_queries
from jobs.labels.hint_counts import Scope


@pytest.fixture
def run(context: Context) -> int:
    return add_run(context.db, context.workspace, "planted", planted_events()).id or 0


def test_a_label_on_a_planted_hint_changes_no_estimate(context: Context, run: int) -> None:
    before = report_queries.read(context.db, Scope()).total
    JsonEndpoints(LabelEndpoints(context)).label_hint(run, "dialogue:train:d/0", 0, "anna", "no_leak")
    assert report_queries.read(context.db, Scope()).total == before


def test_a_blind_card_has_no_ground_truth_and_an_opened_one_has_it(context: Context, run: int) -> None:
    labels = JsonEndpoints(LabelEndpoints(context))
    blind = labels.hint_to_label(run, "dialogue:train:d/0", 0, "anna")
    assert "roman" not in json.dumps(blind) and "planted" not in json.dumps(blind)
    answered = labels.label_hint(run, "dialogue:train:d/0", 0, "anna", "leak")
    assert answered["findings"] is not None and answered["findings"]["planted"] == "roman"


def test_the_replay_shows_the_planted_kind_and_how_the_hint_leaks(context: Context, run: int) -> None:
    hint = DialogueEndpoints(context).get_dialogue(run, "dialogue:train:d/1").turns[0].hint
    assert hint is not None and hint.planted == "roman"
    shown = json.dumps(finding_lines(hint))
    assert "planted leak: roman" in shown and "mentions leak" in shown and "(exact)" in shown


def test_the_page_and_the_command_show_recall_on_planted_leaks(context: Context, run: int) -> None:
    found = DetectorEndpoints(context).detector_report(ReportScope(run=run))
    page = json.dumps(report_view(found, "detector", LabelForm()), ensure_ascii=False)
    assert "Planted leaks" in page and "kind roman" in page and "checkpoint rl2f@40" in page
    without = found.model_copy(update={"report": found.report.model_copy(update={"planted": ()})})
    assert "Planted leaks" not in json.dumps(report_view(without, "detector", LabelForm()))
    done = CliRunner().invoke(app, ["leaks", "report", "--workspace", str(context.workspace.root)])
    assert done.exit_code == 0, done.output
    (row,) = (line.split() for line in done.output.splitlines() if line.split()[:2] == ["kind", "roman"])
    assert row[2:4] == ["3", "2"] and row[4].startswith(".67")


def test_the_terminal_replay_names_the_planted_kind(context: Context, run: int) -> None:
    folder = context.workspace.folder("planted")
    done = CliRunner().invoke(app, ["replay", str(folder), "--dialogue", "1"])
    assert done.exit_code == 0 and "planted leak" in done.output and "│ roman" in done.output


def test_the_endpoint_returns_the_same_planted_section(context: Context, run: int) -> None:
    found = JsonEndpoints(DetectorEndpoints(context)).detector_report(run)["report"]["planted"]
    assert [(row["group"], row["name"], row["flagged"], row["hints"]) for row in found][:2] == [
        ("all", "all", 3, 5), ("detector", "exact", 1, 5),
    ]  # fmt: skip
