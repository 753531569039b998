"""Fit the weights of detector `mentions` to people's labels, and compare them with the default weights.

A fit adapts the default weights to the labels (`rl2f_core.leaks.mentions.model.fit` with a prior), so that twenty
labels move them a little, and takes about a second. It uses the labels on tasks of the dev set only; the test set
measures detectors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jobs.labels import detector_report, report_queries
from jobs.labels.annotation_queue import HintKey
from jobs.labels.detector_report import LabeledHint
from jobs.labels.estimation import Draw, precision_and_recall
from jobs.labels.hint_counts import Scope
from jobs.labels.holdout import is_test, task_hash
from rl2f_core.common.file_io import write_atomically
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.mentions.finder import MentionFinder
from rl2f_core.leaks.mentions.model import (
    Example,
    MentionWeights,
    SourceQuality,
    calibration_error,
    cross_validated,
    fitted,
    probabilities,
    read_weights,
)
from rl2f_core.leaks.mentions.training import LABELS, example_of

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.export.datasets.export_records import ExportRecord
    from jobs.workspace import Workspace

ON_DRAWS = "blind random draws"
"""Source in the report of fitted weights: their quality on blind random draws, cross-validated."""
DEFAULT_ON_DRAWS = "blind random draws, default weights"
"""Quality of the default weights on the same draws."""


def fit_labels(workspace: Workspace, db: Database, runs: Sequence[int]) -> MentionWeights:
    """Fit weights to the human labels of runs, and write them as a new version `detectors/mentions/vN.json`.

    The report has the quality on all labeled hints (`LABELS`) and, if some labels count as blind random draws, that of
    the new and of the default weights on these. Raises `DataError` unless labeled hints mention the answer.
    """
    examples, default = labeled_examples(workspace, db, runs), read_weights()
    hints = list(examples.values())
    held_out = cross_validated(hints, default)
    fit = fitted(hints, held_out, "mentions", [LABELS], default)
    draws = [stratum for run in runs for stratum in blind_draws(db, run, examples)]
    if draws:
        blind = {
            ON_DRAWS: draw_quality(draws, dict(zip(examples, held_out, strict=True)), fit.threshold),
            DEFAULT_ON_DRAWS: draw_quality(
                draws, dict(zip(examples, probabilities(default, hints), strict=True)), default.threshold
            ),
        }
        fit = fit.model_copy(update={"report": {**fit.report, **blind}})
    number = max((int(path.stem[1:]) for path in workspace.fitted_detectors()), default=0) + 1
    fit = fit.model_copy(update={"name": f"mentions/v{number}"})
    path = workspace.detectors / f"{fit.name}.json"
    write_atomically(path, fit.model_dump_json(indent=1) + "\n")
    return fit


# -- examples ----------------------------------------------------------------------------------------------------------
def labeled_examples(workspace: Workspace, db: Database, runs: Sequence[int]) -> dict[HintKey, Example]:
    """Return the hints with a decided human label on tasks of the dev set; the majority of the labels decides."""
    from jobs.export.datasets.export_records import TaskRenderer
    from jobs.export.datasets.resolve_sources import workspace_sources
    from jobs.export.datasets.settings import EXCLUSIONS, ExportFilter

    filter = ExportFilter(labeled_only=True, **dict.fromkeys(EXCLUSIONS, True))
    examples: dict[HintKey, Example] = {}
    for source in workspace_sources(db, workspace, runs):
        environment = TaskRenderer.of(source.config).environment
        if environment is not None:
            finder = MentionFinder(environment)
            for batch in source.batches(filter):
                for record in batch:
                    examples.update(_examples(record, finder))
    return examples


def _examples(record: ExportRecord, finder: MentionFinder) -> Iterator[tuple[HintKey, Example]]:
    from jobs.export.datasets.export_records import written
    from jobs.export.datasets.label_choice import decide

    task = record.event.task
    if is_test(task_hash(task.environment, task.public, task.privileged)):
        return
    attempts: list[str] = []
    hints: list[str] = []
    for turn in record.turns:
        attempts.append(turn.attempt)
        leak = decide(turn, record.labels.get(turn.index, ()), "human").leaks
        if leak is not None and (text := written(turn)):
            query = LeakQuery(task, text, tuple(attempts), tuple(hints))
            key = HintKey(int(record.run), record.event.id, turn.index)
            yield key, example_of(finder, query, leak, record.task_key, LABELS, 1.0)
        hints.append(turn.hint.text if turn.hint is not None else "")


# -- blind random draws ------------------------------------------------------------------------------------------------
Strata = list[tuple[int, list[LabeledHint]]]
"""Number of hints and blind random draws of each sampling stratum."""


def blind_draws(db: Database, run: int, examples: Collection[HintKey]) -> Strata:
    """Return the blind random draws of a run among examples; none if they leave out a stratum.

    As in the detector report without controls, draws are stratified by whether the run's detectors flagged the hint.
    """
    scope = Scope(run=run)
    scored = report_queries.source(db, scope.source)
    hints = report_queries.labeled_hints(db, scope, scored)
    labeled = [hint for hint in hints if hint.source.checked and _key(hint) in examples]
    return detector_report.sampled_strata(labeled, report_queries.population(db, scope, scored))


def _key(hint: LabeledHint) -> HintKey:
    return HintKey(hint.run, hint.event, hint.turn)


def draw_quality(strata: Strata, probability: Mapping[HintKey, float], threshold: float) -> SourceQuality:
    """Estimate the quality on all hints of strata from their draws; see `precision_and_recall`.

    Args:
        strata: Blind random draws; the majority of the blind labels decides.
        probability: Probability of a leak by hint.
        threshold: Probability from which a hint is flagged.
    """
    drawn = [hint for _, hints in strata for hint in hints]
    p, leaks = np.array([probability[_key(hint)] for hint in drawn]), np.array([bool(hint.is_leak) for hint in drawn])
    draws = [
        (size, [Draw(hint.task, probability[_key(hint)] >= threshold, bool(hint.is_leak)) for hint in hints])
        for size, hints in strata
    ]
    precision, recall = precision_and_recall(draws)
    total = (precision.value or 0.0) + (recall.value or 0.0)
    return SourceQuality(
        hints=len(drawn),
        leaks=int(leaks.sum()),
        precision=precision,
        recall=recall,
        f1=2 * (precision.value or 0.0) * (recall.value or 0.0) / total if total else None,
        calibration_error=calibration_error(p, leaks),
        resubstituted_f1=None,
    )
