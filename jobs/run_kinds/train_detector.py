"""Run kind `train_detector`: train the leak detector `classifier` on benchmarks and people's labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from jobs.labels.holdout import is_test, task_hash
from rl2f_core.config.fields import BASIC_FIELD, FILE_REF
from rl2f_core.file_io import write_atomically
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.classifier.examples import LABELS, Example
from rl2f_core.leaks.classifier.stored import DetectorFile, new_version
from rl2f_core.leaks.classifier.train import TrainingConfig, train
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run_kinds.base import Kind

if TYPE_CHECKING:
    from jobs.export.export_records import ExportRecord
    from jobs.export.sources import Source

SUMMARY = "train_detector.json"
DETECTORS = "detectors"
"""Folder of trained detectors, beside the runs."""


class TrainDetectorRun(TrainingConfig):
    """Training of a leak detector."""

    kind: Literal["train_detector"] = "train_detector"
    """Run kind."""
    name: str = Field("train-detector", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", json_schema_extra=BASIC_FIELD)
    """Display name."""
    detector: str = Field("leaks", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", json_schema_extra=BASIC_FIELD)
    """Name of the detector; each training writes a new version `NAME/vN`."""
    runs: tuple[int, ...] = Field((), max_length=1000, json_schema_extra=BASIC_FIELD)
    """Ids of runs of the workspace whose human labels are used, only of hints on tasks of the dev set."""
    out: str | None = Field(None, json_schema_extra=FILE_REF)
    """Folder of all detectors; None is `detectors` beside the folder of the runs."""


@register("run_kind")
class TrainDetector(Kind[TrainDetectorRun]):
    """Training of a leak detector."""

    config_class = TrainDetectorRun

    def execute(self, config: TrainDetectorRun, context: RunContext) -> bool:
        """Train and write `detectors/NAME/vN`; False if `context.stop` ended it early.

        A training that was stopped or killed leaves no detector, and starts again from the beginning.
        """
        workspace = context.run_dir.path.resolve().parent.parent
        labels = list(labeled_examples(workspace, config.runs)) if config.runs else []
        root = Path(config.out) if config.out else workspace / DETECTORS
        folder = new_version(root, config.detector)
        settings = TrainingConfig(**config.model_dump(include=set(TrainingConfig.model_fields)))
        stored = train(settings, folder, labels, context.progress.update, context.stop)
        if stored is None:
            return False
        summary = {"folder": str(folder), "detector": stored.name, "labels": len(labels), "threshold": stored.threshold}
        write_atomically(context.run_dir.path / SUMMARY, json.dumps(summary, indent=2))
        context.log("train_detector", sentence(stored))
        context.journal.commit({"done": True})
        return True


def sentence(stored: DetectorFile) -> str:
    """Summarize a trained detector in a sentence."""
    overall, cross = stored.report.overall, stored.report.cross_fitted
    parts = ", ".join(
        f"{source} {_format(q.precision.value)} / {_format(q.recall.value)}" for source, q in cross.items()
    )
    return (
        f"{stored.name}: {sum(stored.data.values()):,} training examples, threshold {stored.threshold:.3f}; "
        f"area under ROC {_format(overall.area.value)} on {overall.area.n:,} held-out hints; "
        f"precision / recall with cross-fitted threshold: {parts}."
    )


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def labeled_examples(root: Path, runs: Sequence[int]) -> Iterator[Example]:
    """Yield the hints with a decided human label on tasks of the dev set.

    The majority of the labels decides. The test set measures detectors, so no detector is trained on it.

    Args:
        root: The workspace.
        runs: Ids of runs.
    """
    from jobs.export.resolve_sources import open_workspace, workspace_sources
    from jobs.export.settings import EXCLUSIONS, ExportFilter

    with open_workspace(root) as (workspace, db):
        for source in workspace_sources(db, workspace, runs):
            for batch in source.batches(ExportFilter(labeled_only=True, **dict.fromkeys(EXCLUSIONS, True))):
                for record in batch:
                    yield from _examples(record, source)


def _examples(record: ExportRecord, source: Source) -> Iterator[Example]:
    """Yield the examples of a dialogue; none without the run's environment."""
    from jobs.export.export_records import TaskRenderer
    from jobs.export.label_choice import decide

    task, environment = record.event.task, TaskRenderer.of(source.config).environment
    if environment is None or is_test(task_hash(task.environment, task.public, task.privileged)):
        return
    attempts: list[str] = []
    hints: list[str] = []
    for step in record.steps:
        attempts.append(step.turn.attempt)
        decision = decide(step, "human")
        if decision.leaks is not None and step.written:
            query = LeakQuery(task, step.written, tuple(attempts), tuple(hints))
            yield Example(environment, query, decision.leaks, "", LABELS, f"{LABELS}/{record.task_key}")
        hints.append(step.hint or "")
