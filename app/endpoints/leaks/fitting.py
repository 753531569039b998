"""Fits of the leak detector `mentions` to labels: labeled runs, fitted versions, and rescoring with one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import QueuedRun, RunId, RunsOrOldIds, ShortText
from app.forms.allowlist import refusal
from jobs.db.errors import NotFoundError
from jobs.db.queries import runs as queries
from jobs.labels import label_queries
from jobs.labels.fitting import DEFAULT_ON_DRAWS, ON_DRAWS, fit_labels
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import RL2FError
from rl2f_core.leaks.mentions.model import MentionWeights, SourceQuality, read_weights
from rl2f_core.leaks.mentions.training import LABELS
from rl2f_core.types import FrozenModel


class LabeledRun(FrozenModel):
    """A run with human labels."""

    id: RunId
    name: str
    labels: int
    """Labeled hints."""


class FittedDetector(FrozenModel):
    """A fitted version of detector `mentions`."""

    name: str
    """E.g. `mentions/v2`."""
    path: str
    """Value of `path` in the configuration of the detector."""
    threshold: float
    """Probability from which a hint is flagged."""
    labels: int
    """Labeled hints that it was fitted to."""
    quality: SourceQuality
    """Quality on all labels, cross-validated."""
    blind: SourceQuality | None
    """The same on blind random draws; None if there are none."""
    blind_default: SourceQuality | None
    """The same with the default weights."""


class FitOverview(FrozenModel):
    """The labels that can be fitted, and what was fitted."""

    labeled_runs: list[LabeledRun]
    """Runs with labels."""
    detectors: list[FittedDetector]
    """Newest version first."""


class FittingEndpoints(Endpoints):
    """Endpoints of the view *Fit* of the page Labels."""

    @endpoint("read")
    def list_fitted_detectors(self) -> FitOverview:
        """List the runs with labels, and the versions of detector `mentions` that were fitted to labels."""
        db = self._context.db
        labeled = label_queries.labels_per_run(db)
        fitted: list[FittedDetector] = []
        for path in reversed(self._context.workspace.fitted_detectors()):
            with contextlib.suppress(RL2FError, KeyError):  # of another version of the features
                fitted.append(_describe(path, read_weights(path)))
        listed = [LabeledRun(id=id, name=queries.get(db, id).name, labels=n) for id, n in labeled.items()]
        return FitOverview(labeled_runs=listed, detectors=fitted)

    @endpoint("run")
    def fit_detector(self, runs: RunsOrOldIds) -> FittedDetector:
        """Fit detector `mentions` to the human labels of runs, which takes about a second.

        The result is a new version in the workspace. It states precision and recall on blind random draws, of the new
        and of the default weights.

        Args:
            runs: Runs whose labels on tasks of the dev set are used.
        """
        workspace = self._context.workspace
        weights = fit_labels(workspace, self._context.db, runs)
        return _describe(workspace.detectors / f"{weights.name}.json", weights)

    @endpoint("run")
    def rescore_with_detector(self, runs: RunsOrOldIds, path: ShortText) -> list[QueuedRun]:
        """Queue a rescoring of each run with a fitted version.

        The detector report then compares the sources of findings on the same blind labels.

        Args:
            runs: Runs to rescore.
            path: `path` of a fitted version, see `list_fitted_detectors`.
        """
        if message := refusal("detectors", path, self._context.workspace):
            known = map(str, self._context.workspace.fitted_detectors())
            raise NotFoundError(f"The path {message}.", value=path, known=known)
        queued: list[QueuedRun] = []
        for run in [queries.get(self._context.db, number) for number in runs]:
            config = parse_config({
                "kind": "rescore", "name": f"rescore {run.id} {Path(path).stem}", "run": run.folder,
                "detectors": [{"type": "mentions", "path": path}],
            })  # fmt: skip
            queued.append(self._queue(config, run.id))
        return queued


def _describe(path: Path, weights: MentionWeights) -> FittedDetector:
    return FittedDetector(
        name=weights.name,
        path=str(path),
        threshold=weights.threshold,
        labels=weights.report[LABELS].hints,
        quality=weights.report[LABELS],
        blind=weights.report.get(ON_DRAWS),
        blind_default=weights.report.get(DEFAULT_ON_DRAWS),
    )
