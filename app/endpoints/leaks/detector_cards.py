"""Detector cards: how far a flag of a detector can be trusted, by recorded benchmarks and by human labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.common import benchmark_scores
from jobs.db.engine import Database
from jobs.labels import report_queries
from jobs.labels.detector_report import DetectorReport
from jobs.labels.hint_counts import RUN
from rl2f_core.common.file_io import checked_path
from rl2f_core.common.stats.intervals import Interval, wilson
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel, JsonObject

if TYPE_CHECKING:
    from rl2f_core.leaks.benchmark.comparison import CascadeResult

SETS = {
    "tutors": "real tutors (public set)",
    "handwritten": "our hand-written hints",
    "teacher_written": "our hints of a model teacher",
    "generated": "our generated hints",
}
"""Benchmarks in the order of a card."""
LABELS = "labels of this workspace"
UNKNOWN = Interval(value=None, low=None, high=None, n=0)


class CardRow(FrozenModel):
    """Quality of a detector on one set of hints."""

    name: str
    """The set of hints."""
    hints: int = 0
    """Number of hints, or of the labels that count; 0 if the quality is unknown."""
    precision: Interval = UNKNOWN
    """Leaks among the hints that this detector flags."""
    recall: Interval = UNKNOWN
    """Flagged hints among all leaks, by `detectors` together."""
    detectors: str = ""
    """The cascade that was measured, e.g. `exact,mentions`."""
    split: str = ""
    """`test`, or `dev`, on which detectors are tuned; empty for labels."""


class DetectorCard(FrozenModel):
    """How far a flag of one detector can be trusted."""

    detector: str
    """Name of the detector."""
    rows: list[CardRow]
    """Its quality on each set of hints."""


def configured_detectors(db: Database, folder: RunDir, source: str) -> list[JsonObject]:
    """Return the configurations of the detectors that made a source's findings about a run.

    Args:
        db: The database.
        folder: The run.
        source: `run`, or the id of a rescore run.

    Raises `DataError` if a link leaves the run directory.
    """
    checked_path(folder.path, "config.yaml")
    try:
        if source != RUN:
            return list(json.loads(report_queries.source(db, source).detectors))
        config = folder.config()
        own = config.leak_detection.detectors if isinstance(config, BaseRun) else getattr(config, "detectors", ())
        return [detector.model_dump(mode="json") for detector in own]  # kind rescore has detectors, exports have none
    except (RL2FError, ValueError):  # a detector is not installed, or its settings were not recorded
        return []


def detector_cards(configs: Sequence[JsonObject], report: DetectorReport) -> list[DetectorCard]:
    """Return one card per detector.

    Args:
        configs: The detectors; without any, the cards are those of all detectors in the report.
        report: The report on the workspace's labels, by detector.
    """
    by_name = {config["type"]: config for config in configs} or dict.fromkeys(row.name for row in report.rows)
    recorded = benchmark_scores.recorded()
    cards: list[DetectorCard] = []
    for name, config in by_name.items():
        found = {key: _measured(recorded, key, config, configs) for key in SETS} if config else {}
        rows = [_recorded_row(title, name, found.get(key)) for key, title in SETS.items()]
        cards.append(DetectorCard(detector=name, rows=[*rows, _label_row(name, report)]))
    return cards


def _measured(
    recorded: Sequence[CascadeResult], benchmark: str, config: JsonObject, cascade: Sequence[JsonObject]
) -> CascadeResult | None:
    """Return the recorded result of a detector with its settings; None if there is none.

    The order of preference is: the same cascade, the detector without others, the shortest cascade; test before dev,
    and more hints before fewer.
    """
    results = [result for result in recorded if result.benchmark == benchmark and config in result.configs]
    return min(
        results,
        key=lambda result: (
            list(result.configs) != list(cascade),
            len(result.configs),
            result.split != "test",
            -result.hints,
        ),
        default=None,
    )


def _recorded_row(title: str, detector: str, result: CascadeResult | None) -> CardRow:
    if result is None:
        return CardRow(name=title)
    counts = result.report.by_detector.get(detector)
    return CardRow(
        name=title,
        hints=result.hints,
        precision=wilson(counts.tp, counts.tp + counts.fp) if counts else UNKNOWN,
        recall=result.report.overall.recall,
        detectors=result.detectors,
        split=result.split,
    )


def _label_row(detector: str, report: DetectorReport) -> CardRow:
    precision = next((row.estimates.precision for row in report.rows if row.name == detector), UNKNOWN)
    recall = report.total.estimates.recall
    return CardRow(name=LABELS, hints=report.usage.counted, precision=precision, recall=recall)
