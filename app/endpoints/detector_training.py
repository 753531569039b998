"""Training of leak detectors: labeled runs, trained versions, the training job, and rescoring with a version."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from app.common.context import Context
from app.common.urls import page_url
from app.endpoints.endpoint import endpoint
from app.endpoints.types import QueuedRun, RunIds, ShortText, validated
from app.forms.allowlist import check_detector, check_model
from jobs.db.models import ACTIVE, Run
from jobs.db.queries import runs
from jobs.db.queries.runs import RunFilter
from jobs.labels import label_queries
from jobs.run_kinds.train_detector import TrainDetectorRun
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.leaks.classifier.stored import DetectorFile, read_detector, trained_detectors
from rl2f_core.types import JsonObject


class LabeledRun(TypedDict):
    """A run with human labels."""

    id: int
    name: str
    labels: int
    """Labeled hints."""


class TrainedDetector(TypedDict):
    """A version of a trained detector."""

    name: str
    """E.g. `leaks/v2`."""
    path: str
    """Value of `path` in the configuration of detector `classifier`."""
    model: str
    layers: int | None
    threshold: float
    examples: int
    """Training examples, augmented ones included."""
    labels: int
    """Training examples from human labels, augmented ones included."""
    quality: dict[str, JsonObject]
    """Precision, recall and area under the ROC curve on held-out tasks by source, with a cross-fitted threshold."""


class TrainingJob(TypedDict):
    """A training that waits or runs."""

    run: int
    name: str
    status: str
    url: str


class TrainingOverview(TypedDict):
    """What can be trained on, what is in training, and what was trained."""

    labeled_runs: list[LabeledRun]
    active: list[TrainingJob]
    detectors: list[TrainedDetector]
    """Newest version first."""


class DetectorTrainingEndpoints:
    """Endpoints of the view *Train* of the page Labels.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @endpoint("read")
    def list_detector_training(self) -> TrainingOverview:
        """List the runs with labels, the active trainings, and the trained detectors of the workspace."""
        db = self._context.db
        counts = label_queries.labels_per_run(db)
        active = runs.page(db, RunFilter(kind="train_detector", status=ACTIVE), limit=50).rows
        trained: list[TrainedDetector] = []
        for folder in reversed(trained_detectors(self._context.workspace.detectors)):
            try:
                trained.append(_describe(folder, read_detector(folder)))
            except RL2FError:  # of an older version
                continue
        return {
            "labeled_runs": [{"id": id, "name": runs.get(db, id).name, "labels": n} for id, n in counts.items()],
            "active": [
                {"run": row.id or 0, "name": row.name, "status": row.status, "url": page_url("run", run=row.id)}
                for row in active
            ],
            "detectors": trained,
        }

    @endpoint("run")
    def train_detector(self, run_ids: RunIds, settings: JsonObject | None = None) -> QueuedRun:
        """Queue the training of a leak detector.

        Args:
            run_ids: Runs whose human labels are used; the dev halves of the benchmarks are in `settings`.
            settings: Further fields of `jobs.run_kinds.train_detector.TrainDetectorRun`: detector, model, layers, …
        """
        config = validated(TrainDetectorRun, {**(settings or {}), "runs": run_ids, "kind": "train_detector"})
        if message := check_model(config.model.name):
            raise ConfigError(f"The model {message}.")
        if config.out is not None:
            raise ConfigError("Detectors are stored in the workspace.", value=config.out, fix="Omit `out`.")
        for number in config.runs:
            runs.get(self._context.db, number)
        return _queued(self._context.queue.add(config))  # type: ignore[arg-type]  # a run kind without a model

    @endpoint("run")
    def rescore_with_detector(self, run_ids: RunIds, path: ShortText) -> list[QueuedRun]:
        """Queue a rescoring of each run with exact, equivalent and a trained detector.

        The detector report then compares the sources of findings on the same blind labels.

        Args:
            run_ids: Runs to rescore.
            path: `path` of a trained detector, see `list_detector_training`.
        """
        if message := check_detector(path, self._context.workspace):
            raise ConfigError(f"The path {message}.")
        name = f"{Path(path).parent.name} {Path(path).name}"
        queued = []
        for run in [runs.get(self._context.db, number) for number in run_ids]:
            config = parse_config({
                "kind": "rescore", "name": f"rescore {run.id} {name}"[:100], "run": run.folder,
                "detectors": ["exact", "equivalent", {"type": "classifier", "path": path}],
            })  # fmt: skip
            queued.append(_queued(self._context.queue.add(config, parent=run.id)))
        return queued


def _queued(run: Run) -> QueuedRun:
    return {"run": run.id or 0, "name": run.name, "url": page_url("run", run=run.id)}


def _describe(folder: Path, stored: DetectorFile) -> TrainedDetector:
    return {
        "name": stored.name,
        "path": str(folder),
        "model": stored.model,
        "layers": stored.layers,
        "threshold": stored.threshold,
        "examples": sum(stored.data.values()),
        "labels": sum(n for name, n in stored.data.items() if name.split("/")[0] == "labels"),
        "quality": {
            source: each.model_dump(mode="json", include={"precision", "recall", "area"})
            for source, each in stored.report.cross_fitted.items()
        },
    }
