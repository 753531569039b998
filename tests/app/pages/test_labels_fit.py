"""The view *Fit* of the page Labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from detector_report_data import Truth, add_truth
from workspace_copies import restore_workspace

from app.common.context import Context
from app.endpoints.studio import Studio
from app.pages.labels.desk import LabelForm
from app.pages.labels.fit import fit_view, start_fit, start_rescoring
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.labels import annotation_queue
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.label_queries import LabelAnswer, put
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

FIT = LabelForm(view="fit")


@pytest.fixture
def studio(workspace: Workspace, db: Database) -> Studio:
    return Studio(Context(workspace, db, Queue(db, workspace)))


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> tuple[Path, Truth]:
    """A workspace with a run of 60 hints, of which a stratified sample of 40 is labeled truly."""
    workspace = Workspace(tmp_path_factory.mktemp("labeled") / "workspace").create()
    workspace.database.write_bytes(empty_database)
    db = Database(workspace.database_url())
    made = add_truth(db, workspace, hints=60, flagged=0.4, precise=0.9, missed=0.3)
    sample = QueueFilter(selection="stratified", run=made.run.id, size=40)
    for item in annotation_queue.queue(db, "anna", sample, 40):
        put(db, *item.key, "anna", LabelAnswer(label=made.label(item.key)), sample)
    db.close()
    return workspace.root, made


@pytest.fixture
def truth(workspace: Workspace, labeled: tuple[Path, Truth], studio: Studio) -> Truth:
    """The labeled run in the workspace of the test."""
    folder, made = labeled
    restore_workspace(folder, workspace.root)
    return made


def text(nodes: Any) -> str:
    return json.dumps(nodes, ensure_ascii=False)


@pytest.mark.slow
def test_the_view_counts_the_labels_of_the_chosen_run(studio: Studio, truth: Truth) -> None:
    shown = text(fit_view(studio, FIT, ""))
    assert "40 labeled hints" in shown and "1 run" in shown and "None yet." in shown
    unlabeled = add_truth(studio.context.db, studio.context.workspace, "unlabeled", hints=2)
    other = text(fit_view(studio, LabelForm(view="fit", run=str(unlabeled.run.id)), ""))
    assert "0 labeled hints" in other and '"data-action": "fit"' not in other


def test_the_button_fits_and_the_version_is_shown_with_old_and_new_quality(studio: Studio, truth: Truth) -> None:
    message = start_fit(studio, FIT)
    (fitted,) = studio.fitting.list_fitted_detectors().detectors
    assert fitted.blind
    assert message.startswith(f"mentions/v1 is fitted. On {fitted.blind.hints} blind random draws, old → new: ")
    shown = text(fit_view(studio, FIT, message))
    assert message in shown and "Rescore labeled runs" in shown
    for row in ("all labels", "blind draws", "blind draws, default weights"):
        assert f"mentions/v1 {row}" in shown
    assert "Rescore labeled runs" not in text(fit_view(studio, FIT, "", writable=False))


def test_without_blind_random_draws_precision_and_recall_are_unknown(studio: Studio) -> None:
    made = add_truth(studio.context.db, studio.context.workspace, hints=30)
    for name, turn in list(made.leaks)[:20]:
        put(studio.context.db, made.run.id or 0, name, turn, "anna", LabelAnswer(label="leak"))
    assert "unknown, there are none" in start_fit(studio, FIT)
    assert text(fit_view(studio, FIT, "")).count('"unknown"') == 4


def test_the_other_button_queues_a_rescoring_of_all_labeled_runs_or_the_chosen_one(
    studio: Studio, truth: Truth
) -> None:
    second = add_truth(studio.context.db, studio.context.workspace, "second", hints=2)
    event, turn = next(iter(second.leaks))
    put(studio.context.db, second.run.id or 0, event, turn, "anna", LabelAnswer(label="leak"))
    start_fit(studio, FIT)
    path = studio.fitting.list_fitted_detectors().detectors[0].path
    assert "Rescoring is queued as run" in start_rescoring(studio, FIT, path)
    assert "queued" in start_rescoring(studio, LabelForm(view="fit", run=str(second.run.id)), path)
    queued = [yaml.safe_load(row.config)["run"] for row in runs.page(studio.context.db, limit=3).rows]
    assert queued == [second.run.folder, truth.run.folder, second.run.folder]


def test_an_error_is_shown_in_place(studio: Studio) -> None:
    assert "Label more hints" in start_fit(studio, FIT)
    assert "not a fitted detector" in start_rescoring(studio, FIT, "/etc")


def test_the_comparison_has_a_row_per_source_with_the_same_labels(studio: Studio, truth: Truth) -> None:
    shown = text(fit_view(studio, FIT, ""))
    report = studio.detectors.detector_report().report
    precision = report.total.estimates.precision.value
    assert '"data-source": "run"' in shown or '"data_source": "run"' in shown
    assert f"{precision:.2f}".lstrip("0") in shown
