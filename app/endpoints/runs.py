"""Runs of the workspace: filtered pages, queue, schedules and scheduler errors."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

from pydantic import Field

from app.common.example_runs import add_examples
from app.common.known_values import check_known, check_run_filter
from app.endpoints.endpoint import Endpoints, Flat, endpoint
from app.endpoints.types import Cursor, RunId, RunIds, RunOrOldId, RunsOrOldIds, ShortText, check_file_name, from_row
from jobs.db import settings
from jobs.db.models import JobLog, Run, RunSummary, ScheduledRun
from jobs.db.paging import Page
from jobs.db.queries import job_log, metrics, notes, run_groups, run_values, runs, scheduled_runs
from jobs.db.queries.run_groups import RunGroup
from jobs.db.queries.runs import RunFilter
from jobs.imports.importer import ImportSettings, import_file
from jobs.queue.slots import read_slots
from jobs.queue.trash import DeletedRun, deleted_runs
from rl2f_core.errors import ConfigError, DataError, RL2FError
from rl2f_core.types import FrozenModel

ScheduleId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of a schedule.")]
FileText = Annotated[str, Field(max_length=2_000_000)]
TEXT_SUFFIXES = (".jsonl", ".json")
"""Files that a program can import."""
MAX_QUEUED = 50
"""Number of queued runs that are listed."""
MAX_PROBLEMS = 30
MAX_NOTE_CHARS = 300
"""Characters of the newest note in a row."""
Limit = Annotated[int, Field(ge=1, le=200)]
Columns = Annotated[Sequence[ShortText], Field(max_length=20)]


class RunRow(RunSummary):
    """A run in a list."""

    tags: list[str]
    """Tags of the run."""
    rewards: list[float]
    """Up to 40 mean rewards, evenly spaced over the steps."""
    note_count: int
    """Number of notes on the run."""
    latest_note: str
    """Beginning of the newest note."""
    values: dict[str, float | str]
    """The requested settings and metrics that the run has."""


class RunColumns(FrozenModel):
    """Values by which runs are compared, ordered and grouped."""

    settings: list[str]
    """Paths in the configuration, e.g. `rollout.max_turns`."""
    metrics: list[str]
    """Metrics of the newest step; `hint_effect`, `solve_rate` and `evaluation/…` of the newest evaluated checkpoint."""


class ActiveRuns(FrozenModel):
    """Runs with a worker, and the queue."""

    active: list[RunRow]
    """Runs with a worker."""
    queued: list[RunRow]
    """The first runs of the queue, in order."""
    queued_total: int
    """Number of all queued runs."""


class QueueStatus(FrozenModel):
    """State of the queue."""

    paused: bool
    """Whether no further runs start."""
    active: int
    """Number of runs with a worker."""
    queued: int
    """Number of queued runs."""
    cpu_slots: int | None
    """Concurrent runs on the CPU; None if a setting is invalid."""
    cuda_devices: list[str]
    """Numbers of the CUDA devices for runs."""
    light_slots: int | None
    """Concurrent runs of kinds without a device; None if a setting is invalid."""
    error: str | None
    """The invalid setting."""
    read_only: bool
    """Another server has the lock of the workspace."""


class UndeletedRun(FrozenModel):
    """A run that could not be deleted."""

    run: RunId
    reason: str


class DeletedRuns(FrozenModel):
    """Result of a deletion."""

    deleted: list[int]
    """Numbers of the deleted runs."""
    kept: list[UndeletedRun]
    """Runs that could not be deleted."""


class RunListEndpoints(Endpoints):
    """Endpoints of the page *Runs*."""

    # -- lists -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_runs(
        self,
        filter: Flat[RunFilter] = RunFilter(),
        cursor: Cursor | None = None,
        limit: Limit = 50,
        columns: Columns = (),
    ) -> Page[RunRow]:
        """Return one page of the runs that match a filter; an empty field matches all.

        Args:
            filter: The filter.
            cursor: `before` or `after` of another page; None returns the first page.
            limit: Maximum number of rows.
            columns: Names of settings and metrics that each row contains; see `run_columns`.
        """
        self._check_names(filter.sort_by.removeprefix("-"), *columns)
        page = runs.page(self._context.db, filter, cursor, limit)
        if not page.total:
            check_run_filter(self._context.db, filter)
        return replace(cast(Page[RunRow], page), rows=self._rows(page.rows, columns))

    @endpoint("read")
    def list_run_groups(
        self,
        filter: Flat[RunFilter] = RunFilter(),
        by: ShortText = "seed",
        cursor: Cursor | None = None,
        limit: Limit = 50,
        columns: Columns = (),
    ) -> Page[RunGroup]:
        """Return one page of groups of runs, with the means and standard deviations of their values.

        Args:
            filter: Which runs, and the order of the groups by their means.
            by: `seed` groups runs that differ only in seed and name; otherwise a setting or metric that they share.
            cursor: `before` or `after` of another page; None returns the first page.
            limit: Maximum number of groups.
            columns: Names of settings and metrics that each group contains; see `run_columns`.
        """
        self._check_names(filter.sort_by.removeprefix("-"), *columns, *([] if by == "seed" else [by]))
        page = run_groups.page(self._context.db, filter, by, columns, cursor, limit)
        if not page.total:
            check_run_filter(self._context.db, filter)
        return page

    @endpoint("read")
    def run_columns(self, differing: RunIds | None = None) -> RunColumns:
        """Return the names of the settings and metrics of all runs.

        Args:
            differing: Return the settings in which these runs differ instead, without name and seed.
        """
        for run in differing or ():
            runs.get(self._context.db, run)
        if differing:
            return RunColumns(settings=run_values.differing(self._context.db, differing), metrics=[])
        names = run_values.names(self._context.db)
        return RunColumns(
            settings=[name for name, is_setting in names.items() if is_setting],
            metrics=[name for name, is_setting in names.items() if not is_setting],
        )

    @endpoint("read")
    def list_active_runs(self) -> ActiveRuns:
        """List the runs that have a worker, and the first runs of the queue in queue order."""
        active, queued = runs.active(self._context.db), runs.queued(self._context.db)
        rows = self._rows([*active, *queued[:MAX_QUEUED]])
        return ActiveRuns(active=rows[: len(active)], queued=rows[len(active) :], queued_total=len(queued))

    @endpoint("read")
    def run_facets(self) -> dict[str, list[str]]:
        """Return the statuses, kinds, environments, methods, models and tags of all runs."""
        return {**runs.facets(self._context.db), "tags": runs.all_tags(self._context.db)}

    @endpoint("read")
    def runs_version(self) -> int:
        """Return a number that increases with every change of a run, tag, note, schedule or setting."""
        return runs.version(self._context.db)

    @endpoint("run")
    def delete_runs(self, runs: Annotated[RunsOrOldIds, Field(min_length=1)]) -> DeletedRuns:
        """Delete ended runs with their files; a run that cannot be deleted is kept, and the reason returned."""
        deleted, kept = [], []
        for run in runs:
            try:
                self._context.queue.delete(run)
                deleted.append(run)
            except RL2FError as error:
                kept.append(UndeletedRun(run=run, reason=str(error)))
        return DeletedRuns(deleted=deleted, kept=kept)

    @endpoint("read")
    def list_deleted_runs(self) -> list[DeletedRun]:
        """List the deleted runs that can be restored, the last deleted first; by default for 30 days."""
        return deleted_runs(self._context.workspace)

    @endpoint("run")
    def restore_run(self, run: RunId) -> RunSummary:
        """Restore a deleted run with its files, labels, notes and tags; its dialogues appear as they are read again."""
        restored = self._context.queue.restore(run)
        if self._context.scheduler is None:  # nobody else reads its events now
            self._context.queue.workers.read(restored, to_the_end=True)
        return restored

    @endpoint("run")
    def add_example_runs(self) -> list[int]:
        """Add the example runs again that were deleted, with their labels, notes and tags, and return their numbers."""
        trashed = [item.run for item in self.list_deleted_runs() if item.origin == "example"]
        restored = [self.restore_run(run).id for run in trashed]
        return restored or add_examples(self._context, again=True)

    @endpoint("run")
    def import_rollouts(
        self, file_name: ShortText, content: FileText, settings: Flat[ImportSettings] = ImportSettings()
    ) -> RunSummary:
        """Import rollouts of another program as a read-only run; if a row is invalid, nothing is imported.

        `rl2f import` also reads larger files, folders, Parquet and `.eval` logs of Inspect.

        Args:
            file_name: Name of the file, which ends with .jsonl or .json.
            content: Its text: a rollout dump of verl, results or traces of verifiers, an Inspect log, or conversations.
            settings: How rollouts are read.
        """
        name = check_file_name(Path(file_name).name)
        if Path(name).suffix.lower() not in TEXT_SUFFIXES:
            fix = "Convert the file, or import it with `rl2f import` on the server."
            raise DataError("The file type is not supported.", value=name, known=TEXT_SUFFIXES, fix=fix)
        with tempfile.TemporaryDirectory(prefix="rl2f-import-") as folder:
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8")
            return import_file(self._context.db, self._context.workspace, path, settings)

    # -- queue -------------------------------------------------------------------------------------------------
    @endpoint("read")
    def queue_status(self) -> QueueStatus:
        """Return the number of active and queued runs, the slots, and whether the queue is paused."""
        db, slots, error = self._context.db, None, None
        try:
            slots = read_slots(db)
        except ConfigError as invalid:
            error = str(invalid)
        return QueueStatus(
            paused=self._context.queue.paused,
            active=len(runs.active(db)),
            queued=len(runs.queued(db)),
            cpu_slots=slots.cpu if slots else None,
            cuda_devices=list(slots.cuda) if slots else [],
            light_slots=slots.light if slots else None,
            error=error,
            read_only=self._context.read_only,
        )

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

    @endpoint("read")
    def list_settings(self) -> dict[str, str]:
        """Return the settings of the workspace: slots, missed schedules, and days of retention."""
        return settings.current(self._context.db)

    @endpoint("run")
    def change_setting(self, name: ShortText, value: ShortText) -> dict[str, str]:
        """Change a setting of the workspace and return all.

        Args:
            name: A name of `list_settings`, e.g. `slots.cpu`.
            value: A whole number; for `slots.cuda` `auto`, device numbers such as `0,1`, or empty for none.
        """
        return settings.change(self._context.db, name, value)

    @endpoint("run")
    def move_run(self, run: RunOrOldId, before: RunId | None = None) -> RunSummary:
        """Move a queued run.

        Args:
            before: The queued run before which it is placed; None places it at the end.
        """
        return self._context.queue.move(run, before)

    # -- scheduler ---------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_schedules(self) -> list[ScheduledRun]:
        """List the scheduled runs by their next time."""
        return scheduled_runs.all_schedules(self._context.db)

    @endpoint("run")
    def enable_schedule(self, schedule_id: ScheduleId, enabled: bool = True) -> ScheduledRun:
        """Enable or disable a schedule.

        Args:
            enabled: Whether it creates runs.
        """
        return scheduled_runs.enable(self._context.db, schedule_id, enabled)

    @endpoint("run")
    def delete_schedule(self, schedule_id: ScheduleId) -> None:
        """Delete a schedule; its runs remain."""
        scheduled_runs.remove(self._context.db, schedule_id)

    @endpoint("read")
    def job_problems(self) -> list[JobLog]:
        """List the newest scheduler jobs that failed or missed their time."""
        return job_log.recent(self._context.db, MAX_PROBLEMS, outcomes=("missed", "failed"))

    def _check_names(self, *names: str) -> None:
        """Raise `NotFoundError` if a name is no setting or metric of any run."""
        named = [name for name in names if name and name not in run_values.ALWAYS_KNOWN]
        unknown = [name for name in named if not run_values.is_known(self._context.db, name)]
        if unknown:
            check_known("setting or metric", unknown[0], run_values.names(self._context.db))

    def _rows(self, listed: Sequence[Run], columns: Sequence[str] = ()) -> list[RunRow]:
        db, ids = self._context.db, [run.id for run in listed]
        values = run_values.of_runs(db, ids, columns)
        tags, rewards, remarks = runs.tags_of(db, ids), metrics.sparkline(db, ids), notes.on_runs(db, ids)
        return [
            from_row(
                RunRow,
                run,
                tags=tags[run.id],
                rewards=rewards.get(run.id, []),
                note_count=len(remarks[run.id]),
                latest_note="".join(remarks[run.id][-1:])[:MAX_NOTE_CHARS],
                values=values[run.id],
            )
            for run in listed
        ]
