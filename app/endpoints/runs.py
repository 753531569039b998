"""Runs of the workspace: filtered pages, queue, schedules and scheduler errors."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict, cast

from pydantic import Field

from app.common.context import Context
from app.common.known_values import check_run_filter
from app.endpoints.endpoint import endpoint
from app.endpoints.types import RunId, RunIds, ShortText, check_file_name
from jobs.db.models import Run
from jobs.db.queries import job_log, metrics, notes, runs, scheduled_runs
from jobs.db.queries.runs import RunFilter
from jobs.imports.importer import ImportSettings, import_file, parse_rewards
from jobs.queue.slots import read_slots
from rl2f_core.errors import ConfigError, DataError, RL2FError
from rl2f_core.types import JsonObject

RunStatus = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted"]
RunSort = Literal["created", "-created", "name", "-name", "reward", "-reward", "ended", "-ended", "environment",
                  "-environment"]  # fmt: skip
"""Sort key of runs; a leading `-` means descending order."""
Cursor = Annotated[str, Field(max_length=500)]
PageSize = Annotated[int, Field(ge=1, le=200)]
FileText = Annotated[str, Field(max_length=2_000_000)]
TEXT_SUFFIXES = (".jsonl", ".json")
"""Files that a program can import."""
MAX_QUEUED = 50
"""Number of queued runs that are listed."""
MAX_LOG_ENTRIES = 300
"""Number of entries of the scheduler's log that are searched for problems."""
MAX_PROBLEMS = 30
MAX_NOTE_CHARS = 300
"""Characters of the newest note in a row."""


class RunSummary(TypedDict):
    """Columns of `jobs.db.models.Run`."""

    id: int
    name: str
    kind: str
    status: RunStatus
    detail: str
    origin: str
    parent: int | None
    environment: str
    model: str
    method: str
    seed: int
    device: str
    created: float
    started: float | None
    ended: float | None
    phase: str
    done: float
    total: float | None
    eta: float | None
    reward: float | None
    tokens_per_second: float | None
    heartbeat: float | None
    version: int


class RunRow(RunSummary):
    """A run in a list."""

    tags: list[str]
    rewards: list[float]
    """Up to 40 mean rewards, evenly spaced over the steps."""
    note_count: int
    latest_note: str


class RunPage(TypedDict):
    """One page of runs."""

    rows: list[RunRow]
    total: int
    """Number of runs on all pages."""
    first: int
    """1-based position of the first row."""
    before: str | None
    """Cursor of the previous page."""
    after: str | None
    """Cursor of the next page."""


class ActiveRuns(TypedDict):
    """Runs with a worker, and the queue."""

    active: list[RunRow]
    queued: list[RunRow]
    """The first runs of the queue, in order."""
    queued_total: int


class RunFacets(TypedDict):
    """Values by which runs can be filtered."""

    statuses: list[str]
    kinds: list[str]
    environments: list[str]
    methods: list[str]
    models: list[str]
    tags: list[str]


class QueueStatus(TypedDict):
    """State of the queue."""

    paused: bool
    active: int
    """Number of runs with a worker."""
    queued: int
    cpu_slots: int | None
    """Concurrent runs on the CPU; None if a setting is invalid."""
    cuda_devices: list[str]
    light_slots: int | None
    """Concurrent runs of kinds without a device; None if a setting is invalid."""
    error: str | None
    """The invalid setting."""
    read_only: bool
    """Another server has the lock of the workspace."""


class UndeletedRun(TypedDict):
    """A run that could not be deleted."""

    run: int
    reason: str


class DeletedRuns(TypedDict):
    """Result of a deletion."""

    deleted: list[int]
    kept: list[UndeletedRun]


class Schedule(TypedDict):
    """A scheduled run."""

    id: int
    name: str
    trigger: str
    """`date`, `cron` or `nightly`."""
    when: str
    """ISO time or five cron fields."""
    timezone: str
    enabled: bool
    last_run: float | None
    next_run: float | None


class JobProblem(TypedDict):
    """A scheduler job that failed or missed its time."""

    id: int
    time: float
    job: str
    outcome: str
    detail: str


class RunListEndpoints:
    """Endpoints of the page *Runs*.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    # -- lists -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_runs(
        self,
        search: ShortText = "",
        status: list[RunStatus] | None = None,
        kind: ShortText = "",
        environment: ShortText = "",
        method: ShortText = "",
        tag: ShortText = "",
        sort: RunSort = "-created",
        cursor: Cursor | None = None,
        limit: PageSize = 50,
    ) -> RunPage:
        """Return one page of the runs that match a filter; an empty field matches all.

        Args:
            search: Words that must all occur in name, environment, method, model, tags or notes.
            status: Permitted statuses; None permits all.
            kind: Run kind, e.g. `train`.
            environment: Environment, e.g. `guess_number`.
            method: Method of the last stage, e.g. `rl2f`.
            tag: A tag.
            sort: Order; runs without a value come last.
            cursor: `before` or `after` of another page; None returns the first page.
            limit: Maximum number of rows.
        """
        filter = RunFilter(search, tuple(status or ()), kind, environment, method, tag, sort)
        page = runs.page(self._context.db, filter, cursor, limit)
        if not page.total:
            check_run_filter(self._context.db, filter)
        return {
            "rows": self._rows(page.rows),
            "total": page.total or 0,
            "first": page.first,
            "before": page.before,
            "after": page.after,
        }

    @endpoint("read")
    def list_active_runs(self) -> ActiveRuns:
        """List the runs that have a worker, and the first runs of the queue in queue order."""
        active, queued = runs.active(self._context.db), runs.queued(self._context.db)
        rows = self._rows([*active, *queued[:MAX_QUEUED]])
        return {"active": rows[: len(active)], "queued": rows[len(active) :], "queued_total": len(queued)}

    @endpoint("read")
    def run_facets(self) -> RunFacets:
        """List the values by which runs can be filtered, and all tags."""
        found = runs.facets(self._context.db)
        return cast(RunFacets, {**found, "tags": runs.all_tags(self._context.db)})

    @endpoint("read")
    def runs_version(self) -> int:
        """Return a number that increases with every change of a run, tag, note, schedule or setting."""
        return runs.version(self._context.db)

    @endpoint("run")
    def delete_runs(self, run_ids: Annotated[RunIds, Field(min_length=1)]) -> DeletedRuns:
        """Delete ended runs with their files; a run that cannot be deleted is kept, and the reason returned."""
        result: DeletedRuns = {"deleted": [], "kept": []}
        for run_id in run_ids:
            try:
                self._context.queue.delete(run_id)
            except RL2FError as error:
                result["kept"].append({"run": run_id, "reason": str(error)})
            else:
                result["deleted"].append(run_id)
        return result

    @endpoint("run")
    def import_rollouts(
        self,
        file_name: ShortText,
        content: FileText,
        format: ShortText = "",
        threshold: float = 1.0,
        phase: Literal["", "train", "evaluation", "chat"] = "",
        rewards: Annotated[list[ShortText], Field(max_length=24)] | None = None,
        skip_invalid: bool = False,
    ) -> RunSummary:
        """Import rollouts of another program as a read-only run; if a row is invalid, nothing is imported.

        `rl2f import` also reads larger files, folders, Parquet and `.eval` logs of Inspect.

        Args:
            file_name: Name of the file, which ends with .jsonl or .json.
            content: Its text: a rollout dump of verl, results or traces of verifiers, an Inspect log, or conversations.
            format: verl, verifiers, verifiers_traces, inspect, trl or messages; empty detects it.
            threshold: Sum of the rewards from which a rollout without a verdict counts as correct.
            phase: Phase of all rollouts; empty takes it from the rows or the file's name.
            rewards: Rewards that count, each as NAME or NAME=WEIGHT; by default those that the format names.
            skip_invalid: Skip and list invalid rows instead of importing nothing.
        """
        settings = ImportSettings(
            format or None, None, threshold, phase or None, parse_rewards(rewards or []), skip_invalid=skip_invalid
        )
        name = check_file_name(Path(file_name).name)
        if Path(name).suffix not in TEXT_SUFFIXES:
            fix = "Convert the file, or import it with `rl2f import` on the server."
            raise DataError("The file type is not supported.", value=name, known=TEXT_SUFFIXES, fix=fix)
        with tempfile.TemporaryDirectory(prefix="rl2f-import-") as folder:
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8")
            db, workspace = self._context.db, self._context.workspace
            return run_summary(import_file(db, workspace, path, settings))

    # -- queue -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def queue_status(self) -> QueueStatus:
        """Return the number of active and queued runs, the slots, and whether the queue is paused."""
        db, error = self._context.db, None
        try:
            slots = read_slots(db)
        except ConfigError as invalid:
            slots, error = None, str(invalid)
        return {
            "paused": self._context.queue.paused,
            "active": len(runs.active(db)),
            "queued": len(runs.queued(db)),
            "cpu_slots": slots.cpu if slots else None,
            "cuda_devices": list(slots.cuda) if slots else [],
            "light_slots": slots.light if slots else None,
            "error": error,
            "read_only": self._context.read_only,
        }

    @endpoint("run")
    def pause_queue(self) -> QueueStatus:
        """Start no further runs; active ones continue."""
        self._context.queue.pause()
        return self.queue_status()

    @endpoint("run")
    def resume_queue(self) -> QueueStatus:
        """Start queued runs again."""
        self._context.queue.resume_dispatch()
        return self.queue_status()

    @endpoint("run")
    def move_run(self, run_id: RunId, before: RunId | None = None) -> RunSummary:
        """Move a queued run.

        Args:
            run_id: The run.
            before: The queued run before which it is placed; None places it at the end.
        """
        return run_summary(self._context.queue.move(run_id, before))

    # -- scheduler ---------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_schedules(self) -> list[Schedule]:
        """List the scheduled runs by their next time."""
        return [cast(Schedule, _columns(row, Schedule)) for row in scheduled_runs.all_schedules(self._context.db)]

    @endpoint("run")
    def enable_schedule(self, schedule_id: RunId, enabled: bool = True) -> Schedule:
        """Enable or disable a schedule."""
        return cast(Schedule, _columns(scheduled_runs.enable(self._context.db, schedule_id, enabled), Schedule))

    @endpoint("run")
    def delete_schedule(self, schedule_id: RunId) -> None:
        """Delete a schedule; its runs remain."""
        scheduled_runs.remove(self._context.db, schedule_id)

    @endpoint("read")
    def job_problems(self) -> list[JobProblem]:
        """List the newest scheduler jobs that failed or missed their time."""
        entries = job_log.recent(self._context.db, MAX_LOG_ENTRIES)
        failed = [entry for entry in entries if entry.outcome in ("missed", "failed")][:MAX_PROBLEMS]
        return [cast(JobProblem, _columns(entry, JobProblem)) for entry in failed]

    def _rows(self, listed: Sequence[Run]) -> list[RunRow]:
        db, ids = self._context.db, [run.id for run in listed if run.id is not None]
        tags, rewards, remarks = runs.tags_of(db, ids), metrics.sparkline(db, ids), notes.on_runs(db, ids)
        return [
            {
                **run_summary(run),
                "tags": tags[run_id],
                "rewards": rewards.get(run_id, []),
                "note_count": len(remarks[run_id]),
                "latest_note": "".join(remarks[run_id][-1:])[:MAX_NOTE_CHARS],
            }
            for run_id, run in zip(ids, listed, strict=True)
        ]


def run_summary(run: Run) -> RunSummary:
    """Return the columns of a run."""
    return cast(RunSummary, _columns(run, RunSummary))


def _columns(row: object, kind: type) -> JsonObject:
    """Return the attributes of a row that a `TypedDict` names."""
    return {name: getattr(row, name) for name in kind.__annotations__}
