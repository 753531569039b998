"""One run: its state, charts, evaluation, files, notes, and the actions that change it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.common.context import Context
from app.common.known_values import check_checkpoint, check_known
from app.common.log_tail import MAX_BYTES, LogTail, read_tail
from app.endpoints.dialogues import EventId, TurnIndex
from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import Checkpoint, NoteId, QueuedRun, RunOrOldId, ShortText, from_row
from app.plots import evaluation as evaluation_plots
from app.plots import summary_cards
from app.plots.run_charts import catalogue, check_metrics, overview, series
from app.plots.run_data import RunData
from app.plots.series import XKind
from jobs.db.errors import NotFoundError
from jobs.db.models import CheckpointSummary, Log, NoteSummary, Run, RunStatus, RunSummary, Stage, StageSummary
from jobs.db.queries import dialogues, metrics, notes, outcomes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.worker.status_files import LOG
from rl2f_core.config.loading import dump_yaml
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.metrics.teacher_costs import add_costs, costs_text
from rl2f_core.errors import DataError
from rl2f_core.types import FrozenModel, JsonObject

RunAction = Literal["stop", "abort", "resume", "delete"]
ACTIONS: dict[RunStatus, tuple[RunAction, ...]] = {
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
_NOT_IN_RUN_NAMES = re.compile(r"[^A-Za-z0-9 ._-]")
Smoothing = Annotated[float, Field(ge=0, le=0.99)]
"""Weight β of the moving average."""
MetricNames = Annotated[list[ShortText], Field(max_length=24)]
Tags = Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=50)]
NoteText = Annotated[str, Field(max_length=notes.MAX_CHARS)]
ByteOffset = Annotated[int, Field(ge=0, le=2**62)]


class RunStage(StageSummary):
    """A stage of a run."""

    seconds: float | None
    """Duration; None until the stage ends."""
    off_policy: bool
    """The stage learns from demonstrations."""


class RunCheckpoint(CheckpointSummary):
    """A checkpoint of a run."""

    has_files: bool
    """Whether the run directory has the adapter; without it, only the record exists."""


class EvaluationState(FrozenModel):
    """What has been evaluated."""

    title: str
    """E.g. the number of tasks."""
    complete: bool
    """The report is written; otherwise the numbers come from the dialogues so far."""
    cells: int
    """Number of pairs of checkpoint and condition."""


class RunDetails(FrozenModel):
    """A run without its charts and files."""

    run: RunSummary
    """The run."""
    problem: str | None
    """Why files of the run cannot be read, e.g. because its directory has disappeared."""
    actions: Sequence[RunAction]
    """What can be done with the run."""
    queue_paused: bool
    """Whether no further runs start."""
    cards: JsonObject
    """Summary cards: hint effect, solve rate, revisions, groups and leaks."""
    steps: int
    """Number of recorded training steps."""
    teacher_costs: str | None
    """Cost of a model teacher so far."""
    evaluation: EvaluationState | None
    """None without an evaluation."""
    stages: list[RunStage]
    """Stages in order."""
    checkpoints: list[RunCheckpoint]
    """Checkpoints in order."""
    children: list[RunSummary]
    """Runs that clone, evaluate or export this one."""
    tags: list[str]
    """Tags of the run."""
    notes: list[NoteSummary]
    """Notes on the run, oldest first."""
    dialogue_notes: int
    """Number of notes on dialogues of the run."""


class RunCharts(FrozenModel):
    """Charts of a run."""

    version: int
    """Version of the run's data."""
    charts: list[JsonObject]
    """Key, title, unit, names of metrics, Plotly figure, note, help, formula and description of each chart."""
    off_policy_stages: list[str]
    """Stages that learn from demonstrations; the overview excludes their reward metrics."""


class MetricCatalogue(FrozenModel):
    """Metrics of a run."""

    metrics: list[dict[str, str]]
    """Name, title, unit and help of each metric and metric group."""
    overview: list[str]
    """Metrics in the charts of the overview."""


class RunLog(LogTail):
    """A piece of the worker's output."""

    messages: list[Log]
    """The newest log messages of the run; empty if an offset was given."""
    status: str


class HistogramBin(FrozenModel):
    """Dialogues whose rewards are in [low, high); the last bin includes `high`."""

    low: float
    """Smallest reward of the bin."""
    high: float
    """Equal to `low` if the bin holds one distinct reward."""
    dialogues: list[str]
    """Event ids."""


class RewardHistogram(FrozenModel):
    """Rewards of a training step's dialogues."""

    total: int
    """Number of dialogues with a known reward."""
    bins: list[HistogramBin]
    """Bins with dialogues, in order."""


class RunDataEndpoints(Endpoints):
    """Endpoints that read cached data of runs.

    Args:
        context: The workspace and its services.
        data: Cached data of runs, to share it with other endpoints.
    """

    def __init__(self, context: Context, data: RunData | None = None) -> None:
        super().__init__(context)
        self._data = data or RunData(context)


class RunEndpoints(RunDataEndpoints):
    """Endpoints of the page *Run*."""

    # -- state and actions -------------------------------------------------------------------------------------
    @endpoint("read")
    def get_run(self, run: RunOrOldId) -> RunDetails:
        """Return a run with its stages, checkpoints, tags, notes and summary cards."""
        db, data = self._context.db, self._data
        row, all_notes = runs.get(db, run), notes.of_run(db, run)
        rows, evaluation = data.rows(row), data.evaluation(row)
        off_policy = data.off_policy(row)
        costs = add_costs(measured.values for measured in (*rows, *metrics.evaluations(db, run)))
        state: EvaluationState | None = None
        if evaluation:
            cells = len(evaluation.cells)
            state = EvaluationState(title=evaluation.title, complete=evaluation.whole, cells=cells)
        return RunDetails(
            run=row,
            problem=self._folder(row).problem(),
            actions=ACTIONS.get(row.status, ()),
            queue_paused=self._context.queue.paused,
            cards=summary_cards.cards(data.on_policy_rows(row), evaluation, data.leaks_by_turn(row), row.kind),
            steps=len(rows),
            teacher_costs=costs_text(costs) if costs else None,
            evaluation=state,
            stages=[_stage(stage, off_policy) for stage in runs.stages(db, run)],
            checkpoints=self._checkpoints(row),
            children=outcomes.child_runs(db, run),
            tags=runs.tags(db, run),
            notes=[note for note in all_notes if note.event_id is None],
            dialogue_notes=sum(note.event_id is not None for note in all_notes),
        )

    @endpoint("read")
    def run_version(self, run: RunOrOldId) -> int:
        """Return a number that increases with every change of the run's data."""
        return runs.version(self._context.db, run)

    @endpoint("run")
    def stop_run(self, run: RunOrOldId) -> RunSummary:
        """Stop a run after its step, with its state saved; remove a queued run from the queue."""
        return self._context.queue.stop(run)

    @endpoint("run")
    def abort_run(self, run: RunOrOldId) -> RunSummary:
        """Stop a run immediately; progress since the last saved state is lost."""
        return self._context.queue.abort(run)

    @endpoint("run")
    def resume_run(self, run: RunOrOldId) -> RunSummary:
        """Queue a failed, stopped or interrupted run again; it resumes from its last saved state."""
        return self._context.queue.resume(run)

    @endpoint("run")
    def evaluate_checkpoint(self, run: RunOrOldId, checkpoint: Checkpoint) -> QueuedRun:
        """Queue an evaluation of one checkpoint of a run."""
        return self._queue(self._evaluation(run, checkpoint), run)

    @endpoint("read")
    def draft_evaluation(self, run: RunOrOldId, checkpoint: Checkpoint) -> str:
        """Return the YAML of an evaluation of one checkpoint; pass `run` as `parent` to `launch_run`."""
        return dump_yaml(self._evaluation(run, checkpoint))

    def _evaluation(self, run: int, checkpoint: str) -> BaseRun:
        from rl2f_core.run.kinds.eval import eval_config

        row = runs.get(self._context.db, run)
        check_checkpoint(self._context.db, run, checkpoint)
        config = eval_config([(self._context.workspace.folder(row.folder), checkpoint)])
        name = _NOT_IN_RUN_NAMES.sub("-", f"eval {row.name} {checkpoint}")[:100]
        return config.model_copy(update={"name": name})

    def _checkpoints(self, run: Run) -> list[RunCheckpoint]:
        stored, rows = self._folder(run).checkpoint_names(), runs.checkpoints(self._context.db, run.id)
        return [from_row(RunCheckpoint, row, has_files=row.name in stored) for row in rows]

    # -- tags and notes ----------------------------------------------------------------------------------------
    @endpoint("run")
    def tag_run(self, run: RunOrOldId, tags: Tags) -> list[str]:
        """Replace the tags of a run and return them, sorted and without duplicates.

        Args:
            tags: The new tags.
        """
        runs.set_tags(self._context.db, run, tags)
        return runs.tags(self._context.db, run)

    @endpoint("read")
    def list_notes(self, run: RunOrOldId) -> list[NoteSummary]:
        """List the notes on a run, oldest first, without those on its dialogues."""
        runs.get(self._context.db, run)
        return [note for note in notes.of_run(self._context.db, run) if note.event_id is None]

    @endpoint("label")
    def add_note(
        self,
        run: RunOrOldId,
        text: NoteText,
        author: ShortText = "",
        event_id: EventId | None = None,
        turn: TurnIndex | None = None,
    ) -> NoteSummary:
        """Add a note to a run, to one of its dialogues, or to a turn of the dialogue.

        Args:
            text: The note.
            author: Name of the author.
            event_id: Id of the dialogue; None for a note on the run.
            turn: 0-based turn; None for a note on the whole dialogue.
        """
        return notes.add(self._context.db, run, text, author, event_id, turn)

    @endpoint("label")
    def delete_note(self, run: RunOrOldId, note_id: NoteId) -> None:
        """Delete a note on a run or on one of its dialogues."""
        known = [row.id for row in notes.of_run(self._context.db, run)]
        if note_id not in known:
            fix = "Reload the page: it may have been deleted."
            raise NotFoundError(f"Run {run} has no such note.", value=note_id, known=[*map(str, known)], fix=fix)
        notes.delete(self._context.db, note_id)

    # -- charts ------------------------------------------------------------------------------------------------
    @endpoint("read")
    def run_charts(
        self, run: RunOrOldId, x: XKind = "step", smoothing: Smoothing = 0.0, names: MetricNames | None = None
    ) -> RunCharts:
        """Return the charts of the overview, or one chart per named metric, as Plotly figures.

        Args:
            x: Quantity on the x axis.
            smoothing: Weight of the moving average; 0 disables it.
            names: Metrics, or prefixes that end in `/` for all metrics of a group; see `run_metrics`.
        """
        row = runs.get(self._context.db, run)
        rows, options = self._data.rows(row), self._data.view(row, x, smoothing, sizes=not names)
        check_metrics(names or (), metrics.names(self._context.db, run))
        charts = series(rows, names, options) if names else overview(rows, options)
        stages = [stage.name for stage in runs.stages(self._context.db, run)]
        return RunCharts(
            version=row.version,
            charts=[chart.as_json() for chart in charts],
            off_policy_stages=[stage for stage in stages if stage in options.off_policy],
        )

    @endpoint("read")
    def run_metrics(self, run: RunOrOldId) -> MetricCatalogue:
        """List all metrics of a run with title, unit and help, and the metrics of the overview."""
        row = runs.get(self._context.db, run)
        charts = overview(self._data.rows(row), self._data.view(row, "step", 0.0, sizes=False))
        shown = {name for chart in charts for name in chart.names}
        return MetricCatalogue(metrics=catalogue(metrics.names(self._context.db, run)), overview=sorted(shown))

    @endpoint("read")
    def run_evaluation(self, run: RunOrOldId) -> JsonObject | None:
        """Return tables, findings and charts of a run's evaluation; None without an evaluation."""
        evaluation = self._data.evaluation(runs.get(self._context.db, run))
        return evaluation_plots.as_json(evaluation) if evaluation else None

    @endpoint("read")
    def run_histogram(
        self,
        run: RunOrOldId,
        stage: ShortText,
        step: Annotated[int, Field(ge=1, le=2**31 - 1)],
        bins: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> RewardHistogram:
        """Return the histogram of a training step's dialogue rewards; each bin names its dialogues.

        Args:
            stage: Name of the stage.
            step: Step of the stage, from 1.
            bins: Maximum number of bins. If the step has at most as many distinct rewards, each one is a bin.
        """
        db = self._context.db
        check_known("stage", stage, [row.name for row in runs.stages(db, run)])
        filter = DialogueFilter(run=runs.get(db, run).id, phase="train", stage=stage, step_from=step, step_to=step)
        rows = dialogues.matching(db, filter)
        counted = [(row.reward, row.event_id) for row in rows if row.stop_reason != outcomes.FAILED]
        known = [(reward, event) for reward, event in counted if reward is not None]
        return RewardHistogram(total=len(known), bins=_histogram(known, bins))

    # -- files -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def run_config(self, run: RunOrOldId) -> str:
        """Return the configuration of a run as YAML."""
        return runs.get(self._context.db, run).config

    @endpoint("read")
    def run_environment(self, run: RunOrOldId) -> JsonObject | None:
        """Return seed, revision, packages and machine of a run; None if they were not recorded."""
        path = self._folder(runs.get(self._context.db, run)).checked_path("meta.json")
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
    def run_log(self, run: RunOrOldId, offset: ByteOffset | None = None) -> RunLog:
        """Return the output of a run's worker from a byte offset; without one, its end and the newest log messages.

        Args:
            offset: `offset` of the piece before.
        """
        row = runs.get(self._context.db, run)
        tail = read_tail(self._folder(row).checked_path(LOG), offset)
        rows = runs.logs(self._context.db, run, MAX_LOG_MESSAGES) if offset is None else []
        messages = [Log(**{**dict(line), "text": line.text[:MAX_BYTES]}) for line in rows]
        return RunLog(**dict(tail), messages=messages, status=row.status)


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
    return [HistogramBin(low=edges[i][0], high=edges[i][1], dialogues=members[i]) for i in sorted(members)]


def _stage(stage: Stage, off_policy: frozenset[str]) -> RunStage:
    seconds = stage.ended - stage.started if stage.started is not None and stage.ended is not None else None
    return from_row(RunStage, stage, seconds=seconds, off_policy=stage.name in off_policy)
