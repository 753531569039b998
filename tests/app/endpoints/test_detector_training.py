"""Endpoints of detector training: labeled runs, the queued job, trained versions, rescoring with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from detector_report_data import add_truth

from app.common.context import Context
from app.endpoints.detector_training import DetectorTrainingEndpoints
from app.forms.allowlist import check_detector, list_options
from jobs.db.queries import runs
from jobs.labels.label_queries import LabelAnswer, put
from jobs.run_kinds.train_detector import labeled_examples
from rl2f_core.errors import ConfigError
from rl2f_core.leaks.classifier.stored import new_version
from rl2f_core.leaks.classifier.train import TrainingConfig, train


@pytest.fixture
def endpoints(context: Context) -> DetectorTrainingEndpoints:
    return DetectorTrainingEndpoints(context)


def label_all(context: Context, hints: int = 80) -> int:
    made = add_truth(context.db, context.workspace, hints=hints, flagged=0.3, precise=0.9, missed=0.3)
    for (event, turn), leak in made.leaks.items():
        put(context.db, made.run.id or 0, event, turn, "anna", LabelAnswer("leak" if leak else "no_leak"))
    return made.run.id or 0


def test_labeled_runs_are_listed_with_their_labeled_hints(
    endpoints: DetectorTrainingEndpoints, context: Context
) -> None:
    add_truth(context.db, context.workspace, "unlabeled", hints=4)
    made = add_truth(context.db, context.workspace, "labeled", hints=4)
    events = list(made.leaks)
    for annotator, (event, turn) in [("anna", events[0]), ("bob", events[0]), ("anna", events[1])]:
        put(context.db, made.run.id or 0, event, turn, annotator, LabelAnswer("leak"))
    assert endpoints.list_detector_training()["labeled_runs"] == [{"id": made.run.id, "name": "labeled", "labels": 2}]


def test_a_training_is_queued_with_the_chosen_data(endpoints: DetectorTrainingEndpoints, context: Context) -> None:
    run = label_all(context, hints=4)
    queued = endpoints.train_detector([run], {"benchmarks": ["handwritten"], "layers": 4})
    config = yaml.safe_load(runs.get(context.db, queued["run"]).config)
    assert (config["kind"], config["runs"], config["benchmarks"]) == ("train_detector", [run], ["handwritten"])
    assert [each["run"] for each in endpoints.list_detector_training()["active"]] == [queued["run"]]


@pytest.mark.parametrize(
    "settings", [{"model": {"name": "/etc"}}, {"out": "/tmp/x"}, {"benchmarks": ["unheard"]}, {"epochs": 0}]
)
def test_a_training_outside_of_the_workspace_or_with_invalid_settings_is_refused(
    endpoints: DetectorTrainingEndpoints, settings: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        endpoints.train_detector([], settings)


def test_a_trained_version_is_listed_offered_to_new_runs_and_rescores_a_run(
    endpoints: DetectorTrainingEndpoints, context: Context, tiny: Path
) -> None:
    run = label_all(context)
    folder = new_version(context.workspace.detectors, "leaks")
    settings = {"model": {"name": str(tiny)}, "layers": 1, "benchmarks": (), "copies": 0,
                "num_operations": 0, "num_scripted": 0, "epochs": 1, "max_tokens": 200}  # fmt: skip
    train(TrainingConfig.model_validate(settings), folder, list(labeled_examples(context.workspace.root, [run])))
    (found,) = endpoints.list_detector_training()["detectors"]
    assert (found["name"], found["path"], found["labels"]) == ("leaks/v1", str(folder), found["examples"])
    assert set(found["quality"]) == {"labels"} and set(found["quality"]["labels"]) == {"precision", "recall", "area"}
    offered = list_options(context.db, context.workspace)["detectors"]
    assert [(each["value"], each["label"]) for each in offered] == [(str(folder), "leaks/v1")]
    assert check_detector(str(folder), context.workspace) is None
    assert check_detector(str(tiny), context.workspace) is not None
    (queued,) = endpoints.rescore_with_detector([run], str(folder))
    config = yaml.safe_load(runs.get(context.db, queued["run"]).config)
    assert [each["type"] for each in config["detectors"]] == ["exact", "equivalent", "classifier"]
    with pytest.raises(ConfigError, match="no trained detector"):
        endpoints.rescore_with_detector([run], str(tiny))
