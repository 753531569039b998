"""Leak detectors: the report against human labels, scores on benchmarks, and a recommended cascade.

Results on the test set are returned only by `unlock_test_set`, which logs the access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field

from app.common import benchmark_scores
from app.common.context import Context
from app.common.known_values import check_environment, check_known
from app.endpoints.dialogues import EventId
from app.endpoints.endpoint import Endpoints, Flat, endpoint
from app.endpoints.leaks.detector_cards import DetectorCard, configured_detectors, detector_cards
from app.endpoints.leaks.labels import Annotator, Source
from app.endpoints.types import RunId
from app.plots.run_data import VersionedCache
from jobs.db.models import TestSetAccess
from jobs.db.queries import runs
from jobs.labels import hint_counts, report_queries
from jobs.labels.detector_report import GROUP_BY, DetectorReport, Disagreement, GroupBy, MetricsRow
from jobs.labels.estimation import SUFFICIENT_LABELS, labels_needed
from jobs.labels.hint_counts import RUN, HintScope, Scope
from rl2f_core.leaks.benchmark.comparison import BENCHMARKS, CascadeResult, latest, recommend
from rl2f_core.run.events import Text
from rl2f_core.types import FrozenModel, JsonObject

NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
MAX_DISAGREEMENTS = 200
MAX_ACCESSES = 5


class ReportScope(HintScope):
    """The hints of a detector report, and the grouping of its rows."""

    group_by: GroupBy = "detector"
    """Grouping of the rows."""


class DisagreementRow(Disagreement):
    """A hint on which annotators differ, or their majority and the detector."""

    model_config = ConfigDict(serialize_by_alias=True)
    event: EventId = Field(serialization_alias="event_id")


class LabelsNeeded(FrozenModel):
    """Number of further labels for intervals of ± .05."""

    precision: int | None
    """Flagged hints to label."""
    recall: int | None
    """Hints to label."""
    without_labels: int
    """Flagged hints to label if there are no labels yet."""


class Accesses(FrozenModel):
    """The accesses to the test set."""

    count: int
    """Number of accesses."""
    newest: list[TestSetAccess]
    """The newest ones."""


class ReportResult(FrozenModel):
    """A detector report."""

    is_test_set: bool
    """The report is on the test set."""
    report: DetectorReport
    """The report; its `disagreements` are empty."""
    disagreements: list[DisagreementRow]
    """The newest ones."""
    disagreement_count: int
    """Number of all disagreements."""
    labels_needed: LabelsNeeded
    """Number of further labels for narrow intervals."""
    accesses: Accesses
    """The accesses to the test set."""


class ReportRows(FrozenModel):
    """The rows of a report under one grouping."""

    rows: list[MetricsRow]
    """The rows."""
    hidden: int
    """Number of omitted rows."""


class UnlockedReport(ReportResult):
    """A detector report on the test set."""

    groupings: dict[GroupBy, ReportRows]
    """The rows under every grouping."""


class Recommendation(FrozenModel):
    """The recommended cascade of detectors."""

    candidates: int
    """Number of recorded cascades on the benchmark."""
    result: CascadeResult | None
    """None if no cascade is within the budget."""


class DetectorEndpoints(Endpoints):
    """Endpoints of the detector report and the leak benchmark."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._by_detector = VersionedCache[DetectorReport]()

    @endpoint("read")
    def detector_report(self, scope: Flat[ReportScope] = ReportScope()) -> ReportResult:
        """Compare detector findings with human labels, on the dev set."""
        return self._result(self._reports(scope, (scope.group_by,))[scope.group_by])

    @endpoint("read")
    def detector_cards(self, run: RunId, source: Source = RUN) -> list[DetectorCard]:
        """Return how far the flags of a run's detectors can be trusted: results on benchmarks and by human labels."""
        db = self._context.db
        configs = configured_detectors(db, self._folder(runs.get(db, run)), source)
        report = self._by_detector.get(
            source, runs.version(db), lambda _: self._reports(ReportScope(source=source), ("detector",))["detector"]
        )
        return detector_cards(configs, report)

    @endpoint("label")
    def unlock_test_set(self, annotator: Annotator, scope: Flat[ReportScope] = ReportScope()) -> UnlockedReport:
        """Log an access to the test set and return the report on it.

        Args:
            annotator: Name of the person who looks at the test set.
            scope: The hints.
        """
        reports = self._reports(scope, GROUP_BY, test=True)
        report_queries.unlock_test_set(self._context.db, _scope(scope, test=True), annotator)
        groupings = {name: ReportRows(rows=report.rows, hidden=report.hidden) for name, report in reports.items()}
        result = self._result(reports[scope.group_by], is_test_set=True)
        return UnlockedReport(**dict(result), groupings=groupings)

    @endpoint("read")
    def list_finding_sources(self) -> list[hint_counts.Source]:
        """List the sources of findings: the runs' own detectors and every rescore, newest first."""
        return report_queries.sources(self._context.db)

    @endpoint("read")
    def detector_benchmark(self) -> JsonObject:
        """Return precision, recall and F1 of the default detectors on the synthetic benchmark."""
        return benchmark_scores.figures()

    @endpoint("read")
    def compare_detectors(self) -> list[CascadeResult]:
        """Return the recorded results of cascades of detectors; `rl2f leaks benchmark --json FILE` records results."""
        return benchmark_scores.recorded()

    @endpoint("read")
    def recommend_detectors(
        self,
        usd_per_1000_hints: NonNegative = 0.0,
        min_hints_per_second: NonNegative = 0.0,
        min_precision: Fraction = 0.9,
        benchmark: Text = "tutors",
    ) -> Recommendation:
        """Return the recorded cascade with the highest recall within a budget.

        The test split of the benchmark decides, or dev if test was not recorded.

        Args:
            usd_per_1000_hints: Maximum price in US dollars; 0 admits only cascades without a model.
            min_hints_per_second: Minimum speed.
            min_precision: Minimum of the measured precision.
            benchmark: `tutors` (replies of real tutors), `handwritten`, `teacher_written` or `generated`.
        """
        recorded = benchmark_scores.recorded()
        check_known("benchmark", benchmark, {"tutors", *BENCHMARKS, *(result.benchmark for result in recorded)})
        results = latest(recorded, benchmark)
        found = recommend(
            results,
            usd_per_1000_hints=usd_per_1000_hints,
            min_hints_per_second=min_hints_per_second,
            min_precision=min_precision,
        )
        return Recommendation(candidates=len(results), result=found)

    def _reports(self, asked: ReportScope, groupings: Sequence[str], test: bool = False) -> dict[str, DetectorReport]:
        check_environment(self._context.db, asked.environment)
        return report_queries.read_all(self._context.db, _scope(asked, test=test), groupings)

    def _result(self, report: DetectorReport, *, is_test_set: bool = False) -> ReportResult:
        total = report.total.estimates
        accesses = report_queries.list_accesses(self._context.db)
        return ReportResult(
            is_test_set=is_test_set,
            report=report.model_copy(update={"disagreements": []}),
            disagreements=[
                DisagreementRow(**dict(disagreement))
                for disagreement in report.disagreements[-MAX_DISAGREEMENTS:][::-1]
            ],
            disagreement_count=len(report.disagreements),
            labels_needed=LabelsNeeded(
                precision=labels_needed(total.precision, total.n_flagged),
                recall=labels_needed(total.recall, total.n_flagged + total.n_unflagged),
                without_labels=SUFFICIENT_LABELS,
            ),
            accesses=Accesses(count=len(accesses), newest=accesses[:MAX_ACCESSES]),
        )


def _scope(scope: ReportScope, *, test: bool) -> Scope:
    return Scope(**scope.model_dump(exclude={"group_by"}), test=test)
