"""Endpoints of fits: labeled runs, fitted versions, rescoring with one, and what stays of removed detectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from detector_report_data import Truth, add_truth
from json_endpoints import JsonEndpoints
from replay_data import PRIVILEGED, PUBLIC, add_run, event, hint, turn

from app.common.context import Context
from app.endpoints.leaks.fitting import FittingEndpoints
from app.endpoints.leaks.labels import LabelEndpoints
from app.endpoints.studio import Studio
from app.forms.allowlist import list_options, refusal
from jobs.db.errors import NotFoundError
from jobs.db.queries import runs
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.hint_counts import Scope
from jobs.labels.holdout import is_test, task_hash
from jobs.labels.label_queries import LabelAnswer, put
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import DataError
from rl2f_core.leaks.mentions.model import read_weights


@pytest.fixture
def endpoints(context: Context) -> Any:
    return JsonEndpoints(FittingEndpoints(context))


def label_sample(context: Context, hints: int = 60, size: int = 40) -> Truth:
    """A run whose stratified sample is labeled truly."""
    made = add_truth(context.db, context.workspace, hints=hints, flagged=0.4, precise=0.9, missed=0.3)
    sample = QueueFilter(selection="stratified", run=made.run.id, size=size)
    for item in annotation_queue.queue(context.db, "anna", sample, size):
        put(context.db, *item.key, "anna", LabelAnswer(label=made.label(item.key)), sample)
    return made


def test_labeled_runs_are_listed_with_their_labeled_hints(endpoints: FittingEndpoints, context: Context) -> None:
    add_truth(context.db, context.workspace, "unlabeled", hints=4)
    made = add_truth(context.db, context.workspace, "labeled", hints=4)
    events = list(made.leaks)
    for annotator, key in [("anna", events[0]), ("bob", events[0]), ("anna", events[1])]:
        put(context.db, made.run.id or 0, *key, annotator, LabelAnswer(label="leak"))
    found = endpoints.list_fitted_detectors()
    assert found == {"labeled_runs": [{"id": made.run.id, "name": "labeled", "labels": 2}], "detectors": []}


def test_a_fit_states_precision_and_recall_old_against_new_and_rescores_a_run(
    endpoints: FittingEndpoints, context: Context, tmp_path: Path
) -> None:
    run = label_sample(context).run.id or 0
    fitted = endpoints.fit_detector([run])
    assert fitted["name"] == "mentions/v1" and fitted["blind"] and fitted["blind_default"]
    assert fitted["labels"] == fitted["blind"]["hints"] == fitted["blind_default"]["hints"] > 10
    for quality in (fitted["blind"], fitted["blind_default"]):
        assert quality["precision"]["low"] <= quality["precision"]["value"] <= quality["precision"]["high"]
    assert endpoints.list_fitted_detectors()["detectors"] == [fitted]
    offered = list_options(context.db, context.workspace)["detectors"]
    assert [(each.value, each.label) for each in offered] == [(fitted["path"], "mentions/v1")]
    assert refusal("detectors", fitted["path"], context.workspace) is None
    assert refusal("detectors", str(tmp_path), context.workspace) is not None
    (queued,) = endpoints.rescore_with_detector([run], fitted["path"])
    (detector,) = yaml.safe_load(runs.get(context.db, queued["run"]).config)["detectors"]
    assert (detector["type"], detector["path"]) == ("mentions", fitted["path"])
    with pytest.raises(NotFoundError, match="not a fitted detector"):
        endpoints.rescore_with_detector([run], str(tmp_path))


def test_versions_of_other_features_are_not_listed(endpoints: FittingEndpoints, context: Context) -> None:
    fitted = endpoints.fit_detector([label_sample(context).run.id or 0])
    other = read_weights(fitted["path"]).model_copy(update={"weights": {"unknown": 1.0}})
    (context.workspace.detectors / "mentions" / "v2.json").write_text(other.model_dump_json())
    (context.workspace.detectors / "mentions" / "v3.json").write_text("{")
    assert endpoints.list_fitted_detectors()["detectors"] == [fitted]
    assert [each.label for each in list_options(context.db, context.workspace)["detectors"]] == ["mentions/v1"]


def test_a_fit_without_labels_is_refused(endpoints: FittingEndpoints) -> None:
    with pytest.raises(DataError, match="Label more hints"):
        endpoints.fit_detector([])


# -- removed detectors -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("removed", ["equivalent", "candidates", "classifier"])
def test_flags_labels_and_configurations_of_removed_detectors_stay_readable(context: Context, removed: str) -> None:
    said = hint("The code is A B A B.", (12, 19))
    assert said.leak
    said = said.model_copy(update={"leak": said.leak.model_copy(update={"detector": removed})})
    run = add_run(context.db, context.workspace, "old", [event("d", [turn(0, "x", None, said)])])
    config = yaml.safe_load(runs.get(context.db, run.id or 0).config)
    config["leak_detection"] = {"detectors": ["exact", {"type": removed}]}
    assert [each.type for each in parse_config(config).leak_detection.detectors] == ["exact", "mentions"]  # type: ignore[attr-defined]
    folder = context.workspace.folder(run.folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    put(context.db, run.id or 0, "dialogue:train:d", 0, "anna", LabelAnswer(label="leak"))
    reindex(context.db, context.workspace)
    test = is_test(task_hash("secret_code", PUBLIC, PRIVILEGED))
    report = report_queries.read(context.db, Scope(run=run.id, test=test))
    assert [row.name for row in report.rows] == [removed] and report.usage.hints == 1
    labeled = JsonEndpoints(LabelEndpoints(context)).hint_to_label(run.id or 0, "dialogue:train:d", 0, "anna")
    assert labeled["findings"] and removed in json.dumps(labeled["findings"])


def test_a_run_of_the_removed_kind_train_detector_stays_listed(context: Context) -> None:
    run = add_run(context.db, context.workspace, "old", [])
    config = "kind: train_detector\nname: train-detector\ndetector: leaks\n"
    with context.db.write() as session:
        row = runs.get_in_session(session, run.id or 0)
        row.kind, row.config, row.status = "train_detector", config, "succeeded"
    (context.workspace.folder(run.folder) / "config.yaml").write_text(config)
    (context.workspace.detectors / "leaks" / "v1").mkdir(parents=True)
    reindex(context.db, context.workspace)
    studio = JsonEndpoints(Studio(context))
    assert studio.fitting.list_fitted_detectors()["detectors"] == []
    assert studio.runs.list_runs(kind="train_detector")["rows"][0]["name"] == "old"
    assert studio.run.get_run(run.id or 0)["problem"] is None and studio.run.run_charts(run.id or 0)
