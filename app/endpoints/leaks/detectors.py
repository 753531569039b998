"""Leak detectors: the report against human labels, scores on benchmarks, and a recommended cascade.

Results on the test set are returned only by `unlock_test_set`, which logs the access.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict, cast, get_args

from pydantic import Field

from app.common import benchmark_scores
from app.common.context import Context
from app.common.known_values import check_environment, check_known
from app.endpoints.dialogues import Text
from app.endpoints.endpoint import endpoint
from app.endpoints.leaks.detector_cards import DetectorCard, configured_detectors, detector_cards
from app.endpoints.leaks.labels import Annotator, HintRef, Source
from app.endpoints.transcript import columns
from app.endpoints.types import RunId
from jobs.db.queries import runs
from jobs.labels import report_queries
from jobs.labels.detector_report import DetectorReport
from jobs.labels.estimation import labels_needed, sample_size_for
from jobs.labels.hint_counts import RUN, Scope
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

GroupBy = Literal["detector", "teacher", "environment", "checkpoint", "condition", "run"]
GROUPINGS: tuple[GroupBy, ...] = get_args(GroupBy)
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
MAX_DISAGREEMENTS = 200
MAX_ACCESSES = 5


class DisagreementRow(HintRef):
    """A hint on which annotators differ, or their majority and the detector."""

    labels: dict[str, str]
    """Label by annotator."""
    flagged: bool | None
    """None if the source did not check the hint."""
    detector: str | None
    among_annotators: bool
    with_detector: bool


class LabelsNeeded(TypedDict):
    """Number of further labels for intervals of ± .05."""

    precision: int | None
    recall: int | None
    without_labels: int
    """Flagged hints to label if there are no labels yet."""


class AccessRow(TypedDict):
    """A logged access to the test set."""

    annotator: str
    time: float
    source: str
    run: int | None
    environment: str


class Accesses(TypedDict):
    """The accesses to the test set."""

    count: int
    newest: list[AccessRow]


class ReportResult(TypedDict):
    """A detector report."""

    is_test_set: bool
    report: JsonObject
    """Fields of `jobs.labels.detector_report.DetectorReport` except `disagreements`."""
    disagreements: list[DisagreementRow]
    """The newest ones."""
    disagreement_count: int
    labels_needed: LabelsNeeded
    accesses: Accesses


class UnlockedReport(ReportResult):
    """A detector report on the test set."""

    groupings: dict[GroupBy, JsonObject]
    """`rows` and `hidden` of the report under every grouping."""


class FindingSource(TypedDict):
    """A source of findings."""

    name: str
    """`run`, or the id of a rescore run."""
    detectors: str
    time: float | None


class Recommendation(TypedDict):
    """The recommended cascade of detectors."""

    candidates: int
    """Number of recorded cascades on the benchmark."""
    result: JsonObject | None
    """Fields of `CascadeResult`; None if no cascade is within the budget."""


class DetectorEndpoints:
    """Endpoints of the detector report and the leak benchmark.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @endpoint("read")
    def detector_report(
        self,
        run: RunId | None = None,
        environment: Text = "",
        source: Source = RUN,
        group_by: GroupBy = "detector",
        include_controls: bool = False,
    ) -> ReportResult:
        """Compare detector findings with human labels, on the dev set.

        Args:
            run: Only hints of this run.
            environment: Only hints of this environment.
            source: Findings made during the runs (`run`), or by the rescore run with this id.
            group_by: Grouping of the rows.
            include_controls: Count the hints of control conditions too, e.g. shuffled ones.
        """
        scope = Scope(run, environment, source, with_controls=include_controls)
        report = self._reports(scope, (group_by,))[group_by]
        return self._result(report, is_test_set=False)

    @endpoint("read")
    def detector_cards(self, run: RunId, source: Source = RUN) -> list[DetectorCard]:
        """Return how far the flags of a run's detectors can be trusted: results on benchmarks and by human labels.

        Args:
            run: The run with the flags.
            source: Findings made during the run (`run`), or by the rescore run with this id.
        """
        folder = self._context.workspace.folder(runs.get(self._context.db, run).folder)
        configs = configured_detectors(self._context.db, RunDir(folder), source)
        scope = Scope(source=source, with_controls=False)
        return detector_cards(configs, self._reports(scope, ("detector",))["detector"])

    @endpoint("label")
    def unlock_test_set(
        self,
        annotator: Annotator,
        run: RunId | None = None,
        environment: Text = "",
        source: Source = RUN,
        group_by: GroupBy = "detector",
        include_controls: bool = False,
    ) -> UnlockedReport:
        """Log an access to the test set and return the report on it.

        Args:
            annotator: Name of the person who looks at the test set.
            run: Only hints of this run.
            environment: Only hints of this environment.
            source: See `detector_report`.
            group_by: Grouping of the rows of `report`.
            include_controls: Count the hints of control conditions too.
        """
        scope = Scope(run, environment, source, test=True, with_controls=include_controls)
        reports = self._reports(scope, GROUPINGS)
        report_queries.unlock_test_set(self._context.db, scope, annotator)
        groupings = {name: reports[name].model_dump(mode="json", include={"rows", "hidden"}) for name in GROUPINGS}
        return {**self._result(reports[group_by], is_test_set=True), "groupings": groupings}

    @endpoint("read")
    def list_finding_sources(self) -> list[FindingSource]:
        """List the sources of findings: the runs' own detectors and every rescore, newest first."""
        return [columns(each, FindingSource) for each in report_queries.sources(self._context.db)]

    @endpoint("read")
    def detector_benchmark(self) -> JsonObject:
        """Return precision, recall and F1 of the default detectors on the synthetic benchmark."""
        return benchmark_scores.figures()

    @endpoint("read")
    def compare_detectors(self) -> list[JsonObject]:
        """Return the recorded results of cascades of detectors.

        Each has the fields of `rl2f_core.leaks.benchmark.comparison.CascadeResult`. `rl2f leaks benchmark --json FILE`
        records results.
        """
        return [each.model_dump(mode="json") for each in benchmark_scores.recorded()]

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
        from rl2f_core.leaks.benchmark.comparison import BENCHMARKS, latest, recommend

        recorded = benchmark_scores.recorded()
        check_known("benchmark", benchmark, {"tutors", *BENCHMARKS, *(result.benchmark for result in recorded)})
        results = latest(recorded, benchmark)
        found = recommend(
            results,
            usd_per_1000_hints=usd_per_1000_hints,
            min_hints_per_second=min_hints_per_second,
            min_precision=min_precision,
        )
        return {"candidates": len(results), "result": None if found is None else found.model_dump(mode="json")}

    def _reports(self, scope: Scope, groupings: Sequence[GroupBy]) -> dict[str, DetectorReport]:
        check_environment(self._context.db, scope.environment)
        return report_queries.read_all(self._context.db, scope, groupings)

    def _result(self, report: DetectorReport, *, is_test_set: bool) -> ReportResult:
        total = report.total.estimates
        accesses = report_queries.list_accesses(self._context.db)
        return {
            "is_test_set": is_test_set,
            "report": report.model_dump(mode="json", exclude={"disagreements"}),
            "disagreements": [
                cast(DisagreementRow, {"event_id": each.event, **each.model_dump(exclude={"event"})})
                for each in report.disagreements[-MAX_DISAGREEMENTS:][::-1]
            ],
            "disagreement_count": len(report.disagreements),
            "labels_needed": {
                "precision": labels_needed(total.precision, total.n_flagged),
                "recall": labels_needed(total.recall, total.n_flagged + total.n_unflagged),
                "without_labels": sample_size_for(),
            },
            "accesses": {
                "count": len(accesses),
                "newest": [columns(each, AccessRow) for each in accesses[:MAX_ACCESSES]],
            },
        }
