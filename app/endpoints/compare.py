"""Comparison of runs: overlaid metrics, evaluations, paired differences, configuration differences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from app.common.context import Context
from app.common.known_values import check_known
from app.common.urls import page_url
from app.endpoints.endpoint import endpoint
from app.endpoints.run import RunDataEndpoints, Smoothing
from app.endpoints.types import OldName, RunId, ShortText, from_row
from app.plots import comparison, evaluation, run_charts
from app.plots.comparison import CheckpointOutcomes, ComparedRun
from app.plots.run_data import RunData, VersionedCache
from app.plots.series import XKind
from jobs import studies
from jobs.db.models import Run, RunSummary
from jobs.db.queries import runs as queries
from jobs.db.queries.run_values import flatten
from jobs.db.queries.runs import RunFilter
from rl2f_core.config.loading import parse_recorded
from rl2f_core.errors import DataError, RL2FError
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.evaluation.study.report import StudyReport
from rl2f_core.types import FrozenModel, JsonObject

MAX_RUNS = 20
"""Runs that are compared at once."""
MAX_FOUND_RUNS = 200
"""Runs that a search returns."""
COMPUTE_BUDGET_SECONDS = 0.4
"""Time that one call spends on paired differences; the next call continues."""
DIFFERENCE_CACHE_SIZE = 2000
ALL_STAGE_METRICS = ("loss", "time/", "system/", "tokens", "entropy", "learning_rate", "grad_norm", "updates")
"""Prefixes of metrics that are comparable in stages that learn from demonstrations."""
ComparedIds = Annotated[list[RunId], Field(max_length=MAX_RUNS, description="Numbers of runs."), OldName("run_ids")]
ComparedMetrics = Annotated[list[ShortText], Field(max_length=12)]


class ComparedRunRow(RunSummary):
    """A run with the style of its lines."""

    color: str
    """Name of a CSS variable."""
    dash: str
    """Dash of its lines, e.g. `solid`."""


class ConfigGroup(FrozenModel):
    """Differing keys of one section of the configuration."""

    section: str
    """E.g. `rollout` or `stage rl`; `run` for keys without a section."""
    differences: list[comparison.ConfigDifference]
    """Keys whose values differ."""


class RunComparison(FrozenModel):
    """Several runs, their metrics and configuration differences."""

    runs: list[ComparedRunRow]
    """The runs in the order of their colors."""
    missing: list[int]
    """Numbers of runs that do not exist."""
    metrics: list[dict[str, str]]
    """Name, title, unit and help of every metric of any run."""
    config: list[ConfigGroup]
    """Differences of the configurations by section."""
    unequal: dict[str, list[str]] = Field(default_factory=dict)
    """Differing settings that should be equal, by what they determine, e.g. `token limits`."""
    has_seeds: bool
    """Several runs differ only in their seed."""
    version: int
    """Increases with every change of a run."""


class FoundRuns(FrozenModel):
    """Runs that match a search."""

    runs: list[RunSummary]
    """The newest ones."""
    total: int
    """Number of all runs that match."""


class RunTables(FrozenModel):
    """The evaluation of one run."""

    run: RunId
    evaluation: JsonObject | None
    """As `run_evaluation`, without charts; None without an evaluation."""


class EvaluationComparison(FrozenModel):
    """Evaluations of several runs."""

    tables: list[RunTables]
    """The evaluation of each run."""
    checkpoints: list[str]
    """Evaluated checkpoints, e.g. `17:rl2f@24`."""
    base: str | None
    """Checkpoint that the others are compared with."""
    differences: list[JsonObject]
    """Differences of each checkpoint to the base as text, with the findings and the keys that prevent pairing."""
    pending: int
    """Number of differences that a further call computes."""
    merged: list[JsonObject]
    """Values and mean of several seeds by row, with findings, for each configuration; the first table compares
    the newest checkpoints of several configurations over their common seeds."""
    not_compared: str | None = None
    """Why the seeds of several configurations are not compared with each other."""


class PartState(FrozenModel):
    """The run of a part of a study."""

    run: RunId
    status: str


class StudyState(StudyReport):
    """What a study has shown so far, and its runs."""

    parts: dict[str, PartState]
    """Part → its run."""


class ResolvedConfig(NamedTuple):
    """A configuration with all defaults, by path."""

    values: JsonObject
    unknown: frozenset[str]
    """Keys that this version of the software does not know."""
    is_complete: bool
    """False if this version cannot read the configuration, so that defaults are missing."""


class CompareEndpoints(RunDataEndpoints):
    """Endpoints of the page *Compare*."""

    def __init__(self, context: Context, data: RunData | None = None) -> None:
        super().__init__(context, data)
        self._differences = VersionedCache[comparison.CheckpointDifference](DIFFERENCE_CACHE_SIZE)
        self._studies = VersionedCache[StudyReport]()
        self._resolved = VersionedCache[ResolvedConfig]()

    @endpoint("read")
    def search_runs(self, search: ShortText = "") -> FoundRuns:
        """Return the newest runs that match, without previews of their metrics.

        Args:
            search: Words that must all occur in name, environment, method, model, tags or notes; empty for all runs.
        """
        page = queries.page(self._context.db, RunFilter(search=search), limit=MAX_FOUND_RUNS)
        return FoundRuns(runs=page.rows, total=page.total or 0)

    @endpoint("read")
    def compare_runs(self, runs: ComparedIds) -> RunComparison:
        """Return runs with all their metrics, and the differences of their resolved configurations by section."""
        db = self._context.db
        version = queries.version(db)
        chosen, missing = self._data.existing(runs)
        names = sorted({name for run in chosen for name in self._data.names(run)})
        groups = comparison.seed_groups(self._members(chosen, []))
        config = config_differences([self._resolve(run) for run in chosen])
        return RunComparison(
            runs=[_row(run, i) for i, run in enumerate(chosen)],
            missing=missing,
            metrics=[entry for entry in run_charts.catalogue(names) if not entry["name"].endswith("/")],
            config=config,
            unequal=comparison.unequal_settings([row.key for group in config for row in group.differences]),
            has_seeds=any(len(group) > 1 for group in groups),
            version=version,
        )

    @endpoint("read")
    def compare_charts(
        self,
        runs: ComparedIds,
        names: ComparedMetrics,
        x: XKind = "step",
        smoothing: Smoothing = 0.0,
        merge_seeds: bool = False,
    ) -> list[JsonObject]:
        """Return one chart per metric with a line per run, as `app.plots.run_charts.Chart`.

        Args:
            runs: Runs in the order of their colors; those that do not exist are skipped (`compare_runs` lists them).
            names: Metrics; those of other runs are skipped.
            x: Quantity on the x axis.
            smoothing: Weight of the moving average; 0 disables it.
            merge_seeds: Draw the mean of runs that differ only in their seed.
        """
        chosen, _ = self._data.existing(runs)
        run_charts.check_metrics(names, [name for run in chosen for name in self._data.names(run)])
        charts = [comparison.overlay(self._members(chosen, [n]), n, x, smoothing, merge_seeds) for n in names]
        return [chart.as_json() for chart in charts if chart is not None]

    @endpoint("read")
    def compare_evaluations(
        self, runs: ComparedIds, base: ShortText = "", merge_seeds: bool = False
    ) -> EvaluationComparison:
        """Return evaluation tables, and the difference of every checkpoint to one of them, paired over tasks.

        Args:
            base: Checkpoint as `RUN:CHECKPOINT`; empty for the last one of the first run.
            merge_seeds: Merge the reports of runs that differ only in their seed.
        """
        chosen, _ = self._data.existing(runs)
        tables: list[RunTables] = []
        checkpoints: list[CheckpointOutcomes] = []
        for run in chosen:
            found = self._data.evaluation(run)
            table = {**evaluation.as_json(found), "charts": [], "parts": []} if found else None
            tables.append(RunTables(run=run.id, evaluation=table))
            checkpoints += self._checkpoints(run) if found else []
        check_known("checkpoint", base, [checkpoint.name for checkpoint in checkpoints])
        against = _base(checkpoints, base)
        rows, pending = self._paired(chosen, checkpoints, against)
        merged, not_compared = self._merged(chosen) if merge_seeds else ([], None)
        return EvaluationComparison(
            tables=tables,
            checkpoints=[checkpoint.name for checkpoint in checkpoints],
            base=against.name if against else None,
            differences=rows,
            pending=pending,
            merged=merged,
            not_compared=not_compared,
        )

    @endpoint("read")
    def study_report(self, name: ShortText) -> StudyState:
        """Return the hypotheses of a study with what its finished runs say about them.

        Args:
            name: Name of the study.
        """
        queue = self._context.queue
        study, runs = studies.load(queue, name), studies.runs_of(queue, name)
        version = (study.sha256, tuple((run.id, run.ended) for run in runs.values()))
        found = self._studies.get(name, version, lambda _: studies.report(queue, study, runs, _dialogues_url))
        parts = {part: PartState(run=run.id or 0, status=run.status) for part, run in runs.items()}
        return StudyState(**dict(found), parts=parts)

    @endpoint("read")
    def list_studies(self) -> list[str]:
        """List the names of the studies that were started in this workspace."""
        return studies.names(self._context.queue)

    def _members(self, chosen: Sequence[Run], names: Sequence[str]) -> list[ComparedRun]:
        data, all_stages = self._data, any(name.startswith(ALL_STAGE_METRICS) for name in names)
        return [
            ComparedRun(
                run.id,
                run.name,
                data.rows(run) if all_stages else data.on_policy_rows(run),
                run.started,
                data.config(run),
                run.group_key,
            )
            for run in chosen
        ]

    def _checkpoints(self, run: Run) -> list[CheckpointOutcomes]:
        outcomes, config, turns = self._data.outcomes(run), self._data.config(run), self._data.turns(run)
        names = dict.fromkeys(checkpoint for checkpoint, _ in outcomes)
        return [CheckpointOutcomes(run.id, name, outcomes, config, turns) for name in names]

    def _paired(
        self, chosen: Sequence[Run], checkpoints: Sequence[CheckpointOutcomes], base: CheckpointOutcomes | None
    ) -> tuple[list[JsonObject], int]:
        """Return the differences within the compute budget, and the number of remaining ones."""
        if base is None:
            return [], 0
        run_of = {run.id: run for run in chosen}
        others = [checkpoint for checkpoint in checkpoints if checkpoint.name != base.name]
        end = time.monotonic() + COMPUTE_BUDGET_SECONDS
        rows: list[comparison.CheckpointDifference] = []
        for checkpoint in others:
            sources = [run_of[side.run] for side in (checkpoint, base)]
            version = tuple((run.created, run.events_offset, run.config) for run in sources)
            make = partial(_difference, checkpoint, base)
            rows.append(self._differences.get((checkpoint.name, base.name), version, make))
            if time.monotonic() > end:
                break
        return comparison.paired_rows(rows), len(others) - len(rows)

    def _merged(self, chosen: Sequence[Run]) -> tuple[list[JsonObject], str | None]:
        """Return a table per configuration with several seeds and one that compares these; or why it is missing."""
        from rl2f_core.evaluation.across_seeds import compare_groups, merge_seeds

        run_of = {run.id: run for run in chosen}
        tables: list[JsonObject] = []
        groups: dict[str, dict[int, EvaluationReport]] = {}
        for group in comparison.seed_groups(self._members(chosen, [])):
            reports = {member.id: report for member in group if (report := self._report(run_of[member.id]))}
            if len(reports) > 1:
                named = {f"{run_of[run].seed} (run {run})": report for run, report in reports.items()}
                title = f"{comparison.group_name(group)} ×{len(reports)}"
                tables.append({**comparison.seed_table(merge_seeds(named)), "group": title})
                title = title if title not in groups else f"{title} (run {group[0].id})"
                groups[title] = {run_of[run].seed: report for run, report in reports.items()}
        if len(groups) < 2:
            return tables, None
        try:
            summary = compare_groups(dict(reversed(groups.items())))  # a difference is later − earlier
        except DataError as error:
            return tables, str(error)
        rows = tuple(row for row in summary.rows if row.quantity.startswith("difference"))
        compared = comparison.seed_table(summary.model_copy(update={"rows": rows, "constant_baseline": None}))
        return [{**compared, "group": " against ".join(groups)}, *tables], None

    def _report(self, run: Run) -> EvaluationReport | None:
        """Return the report of a run's evaluation; None if it is missing or damaged."""
        try:
            return read_report(self._context.workspace.folder(run.folder))
        except DataError:
            return None

    def _resolve(self, run: Run) -> ResolvedConfig:
        config = self._data.config(run)
        return self._resolved.get((run.id, run.created), run.config, lambda _: resolve_config(config))


def resolve_config(data: JsonObject) -> ResolvedConfig:
    """Return a configuration with this version's defaults, and its unknown keys with their values."""
    known = deepcopy(data)
    for _ in range(2):
        try:
            values, is_complete = parse_recorded(known).model_dump(mode="json"), True
            break
        except RL2FError as error:
            values, is_complete = known, False
            _remove_unknown_keys(known, error.__cause__)
    written = flatten(data)
    unknown = written.keys() - flatten(known).keys()
    resolved = flatten(values) | {key: written[key] for key in unknown}
    return ResolvedConfig(resolved, frozenset(unknown), is_complete)


def config_differences(configs: Sequence[ResolvedConfig]) -> list[ConfigGroup]:
    """Return the keys whose values differ, by section.

    Keys that this version does not know, and keys that a configuration of an unreadable version lacks, are excluded
    unless every configuration has them.
    """
    unknown = frozenset[str]().union(*(config.unknown for config in configs))
    comparable = [
        key
        for key in dict.fromkeys(key for config in configs for key in config.values)
        if all(key in config.values or (config.is_complete and key not in unknown) for config in configs)
    ]
    flat = [{key: config.values[key] for key in comparable if key in config.values} for config in configs]
    groups: dict[str, list[comparison.ConfigDifference]] = {}
    for row in comparison.config_differences(flat):
        groups.setdefault(_section(row.key), []).append(row)
    return [ConfigGroup(section=section, differences=rows) for section, rows in groups.items()]


def _section(key: str) -> str:
    head, *rest = key.split(".")
    return f"stage {rest[0]}" if head == "stages" and rest else head if rest else "run"


def _remove_unknown_keys(data: JsonObject, error: BaseException | None) -> None:
    """Remove the keys of nested mappings that a validation error calls unknown."""
    for item in error.errors() if isinstance(error, ValidationError) else []:
        if item["type"] == "extra_forbidden":
            *parents, key = item["loc"]
            parent: Any = data
            with suppress(KeyError, IndexError, TypeError):  # the location of a union includes names of types
                for part in parents:
                    parent = parent[part]
                del parent[key]


def _difference(checkpoint: CheckpointOutcomes, base: CheckpointOutcomes, _: object) -> comparison.CheckpointDifference:
    return comparison.checkpoint_difference(checkpoint, base)


def _base(checkpoints: Sequence[CheckpointOutcomes], name: str) -> CheckpointOutcomes | None:
    """Return the checkpoint with this name, else the last one of the first run."""
    named = next((checkpoint for checkpoint in checkpoints if checkpoint.name == name), None)
    first = [checkpoint for checkpoint in checkpoints if checkpoint.run == checkpoints[0].run]
    return named or (first[-1] if first else None)


def _row(run: Run, position: int) -> ComparedRunRow:
    style = comparison.line_style(position)
    return from_row(ComparedRunRow, run, color=style.color, dash=style.dash)


def _dialogues_url(run: int, checkpoint: str, condition: str) -> str:
    """Return the address of the dialogues of a condition of an evaluation; without one, those of the training stage."""
    if condition:
        return page_url("dialogues", run=run, phase="evaluation", checkpoint=checkpoint, condition=condition)
    return page_url("dialogues", run=run, phase="train", stage=checkpoint.rpartition("@")[0])
