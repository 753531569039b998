"""One run: its state, charts, evaluation, files, notes, and the actions that change it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal, TypedDict, TypeVar, cast

from pydantic import Field

from app.common.context import Context
from app.common.known_values import check_known
from app.common.log_tail import MAX_BYTES, read_tail
from app.common.urls import page_url
from app.endpoints.endpoint import endpoint
from app.endpoints.runs import RunSummary, run_summary
from app.endpoints.types import QueuedRun, RunId, ShortText
from app.plots import evaluation as evaluation_plots
from app.plots import summary_cards
from app.plots.run_charts import catalogue, check_metrics, overview, series
from app.plots.run_data import RunData
from app.plots.series import XKind
from jobs.db.errors import NotFoundError
from jobs.db.models import Run, Stage
from jobs.db.queries import dialogues, metrics, notes, outcomes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.worker.status_files import LOG
from rl2f_core.dialogue.metrics.teacher_costs import add_costs, costs_text
from rl2f_core.errors import DataError
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

T = TypeVar("T")
RunAction = Literal["stop", "abort", "resume", "delete"]
ACTIONS: dict[str, tuple[RunAction, ...]] = {
    "queued": ("stop",),
    "starting": ("stop", "abort"),
    "running": ("stop", "abort"),
    "stopping": ("abort",),
    "succeeded": ("delete",),
    "failed": ("resume", "delete"),
    "stopped": ("resume", "delete"),
    "interrupted": ("resume", "delete"),
}
"""Actions that a run of each status permits."""
MAX_LOG_MESSAGES = 100
MAX_HISTOGRAM_DIALOGUES = 10_000
_NOT_IN_RUN_NAMES = re.compile(r"[^A-Za-z0-9 ._-]")
Smoothing = Annotated[float, Field(ge=0, le=0.99)]
"""Weight β of the moving average."""
MetricNames = Annotated[list[ShortText], Field(max_length=24)]
Tags = Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=50)]
NoteText = Annotated[str, Field(max_length=notes.MAX_CHARS)]
ByteOffset = Annotated[int, Field(ge=0, le=2**62)]


class RunColumns(RunSummary):
    """All columns of a run that are shown."""

    sessions: int
    """Number of worker starts."""
    folder: str
    invalid_lines: int
    """Invalid lines of the event file."""


class StageColumns(TypedDict):
    """Columns of `jobs.db.models.Stage`."""

    name: str
    method: str
    steps: int
    done: int
    started: float | None


class RunStage(StageColumns):
    """A stage of a training run."""

    seconds: float | None
    """Duration; None until the stage ends."""
    off_policy: bool
    """The stage learns from demonstrations."""


class CheckpointColumns(TypedDict):
    """Stored columns of a checkpoint."""

    name: str
    stage: str
    step: int
    sha256: str
    time: float


class RunCheckpoint(CheckpointColumns):
    """A checkpoint of a run."""

    has_files: bool
    """Whether the run directory has the adapter; without it, only the record exists."""


class RelatedRun(TypedDict):
    """A run that clones, evaluates or exports this one."""

    id: int
    name: str
    kind: str
    status: str
    created: float


class RunNote(TypedDict):
    """A note on a run."""

    id: int
    text: str
    author: str
    time: float


class EvaluationState(TypedDict):
    """What has been evaluated."""

    title: str
    complete: bool
    """The report is written; otherwise the numbers come from the dialogues so far."""
    cells: int
    """Number of pairs of checkpoint and condition."""


class RunDetails(TypedDict):
    """A run without its charts and files."""

    run: RunColumns
    problem: str | None
    """Why files of the run cannot be read, e.g. because its directory has disappeared."""
    actions: list[RunAction]
    queue_paused: bool
    cards: JsonObject
    """See `app.plots.summary_cards`."""
    steps: int
    teacher_costs: str | None
    """Cost of a model teacher so far."""
    evaluation: EvaluationState | None
    stages: list[RunStage]
    checkpoints: list[RunCheckpoint]
    children: list[RelatedRun]
    tags: list[str]
    notes: list[RunNote]
    dialogue_notes: int
    """Number of notes on dialogues of the run."""


class RunCharts(TypedDict):
    """Charts of a run."""

    version: int
    charts: list[JsonObject]
    """See `app.plots.run_charts.Chart`."""
    off_policy_stages: list[str]
    """Stages that learn from demonstrations; the overview excludes their reward metrics."""


class MetricCatalogue(TypedDict):
    """Metrics of a run."""

    metrics: list[dict[str, str]]
    """Name, title, unit and help of each metric and metric group."""
    overview: list[str]
    """Metrics in the charts of the overview."""


class LogMessage(TypedDict):
    """A log message of a run."""

    time: float
    level: str
    text: str


class RunLog(TypedDict):
    """A piece of the worker's output."""

    text: str
    offset: int
    """Offset of the next piece."""
    size: int
    """Bytes of the log."""
    restarted: bool
    """The piece does not continue the previous one."""
    messages: list[LogMessage]
    """The newest log messages of the run; empty if an offset was given."""
    status: str


class HistogramBin(TypedDict):
    """Dialogues whose rewards are in [low, high); the last bin includes `high`."""

    low: float
    high: float
    """Equal to `low` if the bin holds one distinct reward."""
    dialogues: list[str]
    """Event ids."""


class RewardHistogram(TypedDict):
    """Rewards of a training step's dialogues."""

    total: int
    bins: list[HistogramBin]


class RunEndpoints:
    """Endpoints of the page *Run*.

    Args:
        context: The workspace and its services.
        data: Cached data of runs, to share it with other endpoints.
    """

    def __init__(self, context: Context, data: RunData | None = None) -> None:
        self._context = context
        self._data = data or RunData(context)

    # -- state and actions -------------------------------------------------------------------------------------
    @endpoint("read")
    def get_run(self, run_id: RunId) -> RunDetails:
        """Return a run with its stages, checkpoints, tags, notes and summary cards."""
        db, data = self._context.db, self._data
        run, all_notes = runs.get(db, run_id), notes.of_run(db, run_id)
        rows, evaluation = data.rows(run), data.evaluation(run)
        off_policy = data.off_policy(run)
        costs = add_costs(row.values for row in (*rows, *metrics.evaluations(db, run_id)))
        state: EvaluationState | None = None
        if evaluation:
            state = {"title": evaluation.title, "complete": evaluation.whole, "cells": len(evaluation.cells)}
        return {
            "run": _columns(run, RunColumns),
            "problem": self._folder(run).problem(),
            "actions": list(ACTIONS.get(run.status, ())),
            "queue_paused": self._context.queue.paused,
            "cards": summary_cards.cards(data.on_policy_rows(run), evaluation, data.leaks_by_turn(run)),
            "steps": len(rows),
            "teacher_costs": costs_text(costs) if costs else None,
            "evaluation": state,
            "stages": [_stage(stage, off_policy) for stage in runs.stages(db, run_id)],
            "checkpoints": self._checkpoints(run),
            "children": [_columns(row, RelatedRun) for row in outcomes.child_runs(db, run_id)],
            "tags": runs.tags(db, run_id),
            "notes": [_columns(row, RunNote) for row in all_notes if row.event_id is None],
            "dialogue_notes": sum(row.event_id is not None for row in all_notes),
        }

    @endpoint("read")
    def run_version(self, run_id: RunId) -> int:
        """Return a number that increases with every change of the run's data."""
        return runs.version(self._context.db, run_id)

    @endpoint("run")
    def stop_run(self, run_id: RunId) -> RunSummary:
        """Stop a run after its step, with its state saved; remove a queued run from the queue."""
        return run_summary(self._context.queue.stop(run_id))

    @endpoint("run")
    def abort_run(self, run_id: RunId) -> RunSummary:
        """Stop a run immediately; progress since the last saved state is lost."""
        return run_summary(self._context.queue.abort(run_id))

    @endpoint("run")
    def resume_run(self, run_id: RunId) -> RunSummary:
        """Queue a failed, stopped or interrupted run again; it resumes from its last saved state."""
        return run_summary(self._context.queue.resume(run_id))

    @endpoint("run")
    def evaluate_checkpoint(self, run_id: RunId, checkpoint: ShortText) -> QueuedRun:
        """Queue an evaluation of one checkpoint of a run.

        Args:
            run_id: The run.
            checkpoint: Name of the checkpoint, e.g. `rl2f@24`.
        """
        from rl2f_core.run.kinds.eval import eval_config

        db, run = self._context.db, runs.get(self._context.db, run_id)
        known = [row.name for row in runs.checkpoints(db, run_id)]
        if checkpoint not in known:
            raise NotFoundError(f"Run {run_id} has no such checkpoint.", value=checkpoint, known=known)
        config = eval_config([(self._context.workspace.folder(run.folder), checkpoint)])
        name = _NOT_IN_RUN_NAMES.sub("-", f"eval {run.name} {checkpoint}")[:100]
        added = self._context.queue.add(config, name=name, parent=run_id)
        return {"run": added.id or 0, "name": added.name, "url": page_url("run", run=added.id)}

    def _folder(self, run: Run) -> RunDir:
        return RunDir(self._context.workspace.folder(run.folder))

    def _checkpoints(self, run: Run) -> list[RunCheckpoint]:
        stored = self._folder(run).checkpoint_names()
        rows = runs.checkpoints(self._context.db, run.id or 0)
        return [{**_columns(row, CheckpointColumns), "has_files": row.name in stored} for row in rows]

    # -- tags and notes ----------------------------------------------------------------------------------------
    @endpoint("run")
    def tag_run(self, run_id: RunId, tags: Tags) -> list[str]:
        """Replace the tags of a run and return them, sorted and without duplicates."""
        runs.set_tags(self._context.db, run_id, tags)
        return runs.tags(self._context.db, run_id)

    @endpoint("read")
    def list_notes(self, run_id: RunId) -> list[RunNote]:
        """List the notes on a run, oldest first, without those on its dialogues."""
        runs.get(self._context.db, run_id)
        return [_columns(row, RunNote) for row in notes.of_run(self._context.db, run_id) if row.event_id is None]

    @endpoint("label")
    def add_note(self, run_id: RunId, text: NoteText, author: ShortText = "") -> RunNote:
        """Add a note to a run."""
        return _columns(notes.add(self._context.db, run_id, text, author), RunNote)

    @endpoint("label")
    def delete_note(self, run_id: RunId, note_id: RunId) -> None:
        """Delete a note on a run or on one of its dialogues."""
        known = [row.id for row in notes.of_run(self._context.db, run_id)]
        if note_id not in known:
            fix = "Reload the page: it may have been deleted."
            raise NotFoundError(f"Run {run_id} has no such note.", value=note_id, known=[*map(str, known)], fix=fix)
        notes.delete(self._context.db, note_id)

    # -- charts ------------------------------------------------------------------------------------------------
    @endpoint("read")
    def run_charts(
        self, run_id: RunId, x: XKind = "step", smoothing: Smoothing = 0.0, names: MetricNames | None = None
    ) -> RunCharts:
        """Return the charts of the overview, or one chart per named metric, as Plotly figures.

        Args:
            run_id: The run.
            x: Quantity on the x axis.
            smoothing: Weight of the moving average; 0 disables it.
            names: Metrics, or prefixes that end in `/` for all metrics of a group; see `run_metrics`.
        """
        run = runs.get(self._context.db, run_id)
        rows, options = self._data.rows(run), self._data.view(run, x, smoothing, sizes=not names)
        check_metrics(names or (), metrics.names(self._context.db, run_id))
        charts = series(rows, names, options) if names else overview(rows, options)
        stages = [stage.name for stage in runs.stages(self._context.db, run_id)]
        return {
            "version": run.version,
            "charts": [chart.as_json() for chart in charts],
            "off_policy_stages": [stage for stage in stages if stage in options.off_policy],
        }

    @endpoint("read")
    def run_metrics(self, run_id: RunId) -> MetricCatalogue:
        """List all metrics of a run with title, unit and help, and the metrics of the overview."""
        run = runs.get(self._context.db, run_id)
        charts = overview(self._data.rows(run), self._data.view(run, "step", 0.0, sizes=False))
        shown = {name for chart in charts for name in chart.names}
        return {"metrics": catalogue(metrics.names(self._context.db, run_id)), "overview": sorted(shown)}

    @endpoint("read")
    def run_evaluation(self, run_id: RunId) -> JsonObject | None:
        """Return tables, findings and charts of a run's evaluation; None without an evaluation."""
        evaluation = self._data.evaluation(runs.get(self._context.db, run_id))
        return evaluation_plots.as_json(evaluation) if evaluation else None

    @endpoint("read")
    def run_histogram(
        self,
        run_id: RunId,
        stage: ShortText,
        step: Annotated[int, Field(ge=1, le=2**31 - 1)],
        bins: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> RewardHistogram:
        """Return the histogram of a training step's dialogue rewards; each bin names its dialogues.

        Args:
            run_id: The run.
            stage: Name of the stage.
            step: Step of the stage, from 1.
            bins: Maximum number of bins. If the step has at most as many distinct rewards, each one is a bin.
        """
        db = self._context.db
        check_known("stage", stage, [row.name for row in runs.stages(db, run_id)])
        filter = DialogueFilter(run=runs.get(db, run_id).id, phase="train", stage=stage, step_from=step, step_to=step)
        rows = dialogues.page(db, filter, limit=MAX_HISTOGRAM_DIALOGUES).rows
        counted = [(row.reward, row.event_id) for row in rows if row.stop_reason != outcomes.FAILED]
        known = [(reward, event) for reward, event in counted if reward is not None]
        return {"total": len(known), "bins": _histogram(known, bins)}

    # -- files -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def run_config(self, run_id: RunId) -> str:
        """Return the configuration of a run as YAML."""
        return runs.get(self._context.db, run_id).config

    @endpoint("read")
    def run_environment(self, run_id: RunId) -> JsonObject | None:
        """Return seed, revision, packages and machine of a run; None if they were not recorded."""
        path = self._folder(runs.get(self._context.db, run_id)).checked_path("meta.json")
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(
                "The record of the run's environment cannot be read.", value=path.name, fix="Restore or delete it."
            ) from error
        return meta if isinstance(meta, dict) else None

    @endpoint("read")
    def run_log(self, run_id: RunId, offset: ByteOffset | None = None) -> RunLog:
        """Return the output of a run's worker from a byte offset; without one, its end and the newest log messages."""
        run = runs.get(self._context.db, run_id)
        tail = read_tail(self._folder(run).checked_path(LOG), offset)
        rows = runs.logs(self._context.db, run_id, MAX_LOG_MESSAGES) if offset is None else []
        messages = [{**_columns(row, LogMessage), "text": row.text[:MAX_BYTES]} for row in rows]
        return cast(RunLog, {**asdict(tail), "messages": messages, "status": run.status})


def _histogram(rows: Sequence[tuple[float, str]], bins: int) -> list[HistogramBin]:
    """Return bins of equal width, or one per distinct reward if there are at most `bins`; only non-empty ones."""
    rewards = sorted({reward for reward, _ in rows})
    if not rewards:
        return []
    low, width = rewards[0], (rewards[-1] - rewards[0]) / bins
    if len(rewards) <= bins:
        edges = {i: (reward, reward) for i, reward in enumerate(rewards)}
        index_of = {reward: i for i, reward in enumerate(rewards)}
    else:
        edges = {i: (low + i * width, low + (i + 1) * width) for i in range(bins)}
        index_of = {reward: min(int((reward - low) / width), bins - 1) for reward in rewards}
    members: dict[int, list[str]] = {}
    for reward, event in rows:
        members.setdefault(index_of[reward], []).append(event)
    return [{"low": edges[i][0], "high": edges[i][1], "dialogues": members[i]} for i in sorted(members)]


def _columns(row: object, wanted: type[T]) -> T:
    """Return the columns of a row that a `TypedDict` names."""
    return cast(T, {name: getattr(row, name) for name in wanted.__annotations__})


def _stage(stage: Stage, off_policy: frozenset[str]) -> RunStage:
    seconds = stage.ended - stage.started if stage.started is not None and stage.ended is not None else None
    return {**_columns(stage, StageColumns), "seconds": seconds, "off_policy": stage.name in off_policy}
