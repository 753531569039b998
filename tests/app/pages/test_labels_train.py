"""The view *Train* of the page Labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from detector_report_data import Truth, add_truth, label_draw

from app.common.context import Context
from app.endpoints.studio import Studio
from app.pages._labels_desk import LabelForm
from app.pages._labels_train import start_rescoring, start_training, train_view
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.label_queries import LabelAnswer, put
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

TRAIN = LabelForm(view="train")


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    workspace = Workspace(tmp_path / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    yield Studio(Context(workspace, db, Queue(db, workspace)))
    db.close()


@pytest.fixture
def truth(studio: Studio) -> Truth:
    context = studio.context
    made = add_truth(context.db, context.workspace, hints=160)
    label_draw(context.db, made, QueueFilter("stratified", size=100))
    return made


def text(nodes: Any) -> str:
    return json.dumps(nodes, ensure_ascii=False)


def test_the_view_counts_the_labels_that_a_training_uses(studio: Studio, truth: Truth) -> None:
    shown = text(train_view(studio, TRAIN, ""))
    assert "100 labeled hints" in shown and "1 run" in shown and "None yet." in shown
    unlabeled = add_truth(studio.context.db, studio.context.workspace, "unlabeled", hints=2)
    other = text(train_view(studio, LabelForm(view="train", run=str(unlabeled.run.id)), ""))
    assert "0 labeled hints" in other


def test_the_button_queues_a_training_on_the_labels_of_all_runs_or_the_chosen_one(studio: Studio, truth: Truth) -> None:
    second = add_truth(studio.context.db, studio.context.workspace, "second", hints=2)
    event, turn = next(iter(second.leaks))
    put(studio.context.db, second.run.id or 0, event, turn, "anna", LabelAnswer("leak"))
    chosen = [TRAIN, LabelForm(view="train", run=str(second.run.id), benchmarks="", model="tiny-random")]
    configs = []
    for form in chosen:
        assert "Training is queued as run" in start_training(studio, form)
        configs.append(yaml.safe_load(runs.page(studio.context.db, limit=1).rows[0].config))
    assert [set(config["runs"]) for config in configs] == [{truth.run.id, second.run.id}, {second.run.id}]
    assert [config["benchmarks"] for config in configs] == [["generated", "handwritten", "teacher_written"], []]
    assert configs[1]["model"]["name"] == "tiny-random"
    assert "queued" in text(train_view(studio, TRAIN, ""))


def test_an_error_of_the_form_is_shown_in_place(studio: Studio) -> None:
    assert "no known model" in start_training(studio, LabelForm(view="train", model="/etc"))
    assert "no trained detector" in start_rescoring(studio, TRAIN, "/etc")


def test_the_comparison_has_a_row_per_source_with_the_same_labels(studio: Studio, truth: Truth) -> None:
    shown = text(train_view(studio, TRAIN, ""))
    report = studio.detectors.detector_report()["report"]
    precision = report["total"]["estimates"]["precision"]["value"]
    assert '"data-source": "run"' in shown or '"data_source": "run"' in shown
    assert f"{precision:.2f}".lstrip("0") in shown
