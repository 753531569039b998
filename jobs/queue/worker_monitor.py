"""Worker monitoring for the queue: start workers, sync their progress, and finalize the runs of dead ones.

A run's row changes only while it belongs to the worker's session and has not ended: a run that was resumed meanwhile
has another worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from jobs.db.engine import Database
from jobs.db.errors import StoreError, UnknownRunError
from jobs.db.models import ACTIVE, Run
from jobs.db.queries import run_queue as store
from jobs.db.queries import runs
from jobs.executors.base import Executor, LaunchSpec, WorkerHandle, executor_of
from jobs.executors.factory import create_executor
from jobs.ingest.ingester import ingest
from jobs.queue.slots import Slots, is_remote, slot_env
from jobs.queue.status import ABORTING, TRANSITIONS, transition
from jobs.worker.status_files import (
    EXIT,
    LOG,
    PROGRESS,
    SESSION,
    ExitStatus,
    WorkerProgress,
    describe_exit,
    read_exit,
    read_progress,
    write_exit,
)
from jobs.workspace import Workspace
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RL2FError
from rl2f_core.run.alerts import send_end
from rl2f_core.run.directory import RunDir

START_TIMEOUT_SECONDS = 60.0
"""Time in which a worker without a recorded process id has to report."""
HEARTBEAT_INTERVAL_SECONDS = 5.0
"""Minimum interval of database writes that only update the heartbeat."""
_log = logging.getLogger(__name__)


class WorkerMonitor:
    """Starts workers and syncs their state with the database."""

    def __init__(self, db: Database, workspace: Workspace, executor: Executor, clock: Callable[[], float]) -> None:
        self.db, self.workspace, self.executor, self.clock = db, workspace, executor, clock
        self._others: dict[str, Executor] = {}
        self._reading = threading.Lock()
        self._unreadable: dict[int, str] = {}
        self.unread: set[int] = set()
        """Ended runs whose events are not all in the database."""

    def handle(self, run: Run) -> WorkerHandle | None:
        """Return the worker of a run, or None if none is recorded."""
        if run.pid is None or run.pid_started is None:
            return None
        return WorkerHandle(run.pid, run.pid_started, str(self.workspace.folder(run.folder)), run.worker_location)

    def executor_for(self, name: str) -> Executor:
        """Return an executor by name; runs can have been started by another one than this server's."""
        if name == self.executor.name:
            return self.executor
        if name not in self._others:
            self._others[name] = create_executor(name, self.workspace)
        return self._others[name]

    def _executor_if_available(self, handle: WorkerHandle) -> Executor | None:
        try:
            return self.executor_for(handle.executor)
        except RL2FError as error:
            _log.warning("The state of the worker at %s is unknown. %s", handle.location, error)
            return None

    def signal(self, run: Run) -> None:
        """Forward a requested stop or abort to the worker."""
        handle = self.handle(run)
        if handle is not None and run.status == "stopping":
            executor = self._executor_if_available(handle)
            if executor is not None:
                (executor.kill if run.detail == ABORTING else executor.stop)(handle)

    def is_dead(self, run: Run) -> bool:
        """Return whether an active run has no living worker."""
        handle = self.handle(run)
        if handle is not None:
            executor = self._executor_if_available(handle)
            return executor is not None and not executor.alive(handle)
        waited = self.clock() - (run.heartbeat or 0.0)
        return waited > START_TIMEOUT_SECONDS or read_exit(self.workspace.folder(run.folder), run.sessions) is not None

    def start(self, run: Run, slots: Slots) -> bool:
        """Start a worker in the slot of the run's row; if that fails, returns False and updates the run's status."""
        try:
            return self._start(run, slots)
        except StoreError as error:  # the worker may be running: its progress file will tell
            _log.warning("The start of run %s could not be recorded: %s", run.id, error)
            return True

    def _start(self, run: Run, slots: Slots) -> bool:
        folder, slot = self.workspace.folder(run.folder), run.device
        try:
            RunDir.open(folder)
            for record in (EXIT, PROGRESS):
                (folder / record).unlink(missing_ok=True)
            variables = {**slot_env(slots, slot), SESSION: str(run.sessions)}
            executor = self.executor_for(executor_of(slot) if is_remote(slot) else "local")
            handle = executor.start(LaunchSpec(folder, folder / LOG, variables, slot))
        except (RL2FError, OSError) as error:
            with self.db.write() as session:
                row = store.get_for_update(session, run.id or 0)
                transition(row, "failed", detail=f"It could not be started. {error}", ended=self.clock())
            return False
        self._record_handle(run, handle)
        return True

    def _record_handle(self, run: Run, handle: WorkerHandle) -> Run:
        """Store the worker's process id, and forward a stop that was requested before it was known."""
        with self.db.write() as session:
            row = store.get_for_update(session, run.id or 0)
            if not _is_current(row, run):
                return row
            row.pid, row.pid_started, row.worker_location = handle.pid, handle.started, handle.location
        self.signal(row)
        return row

    def sync_progress(self, run: Run) -> Run:
        """Copy `progress.json` into the run's row if it changed."""
        folder = self.workspace.folder(run.folder)
        progress = read_progress(folder, run.sessions)
        if progress is None:
            return run
        if not run.pid:  # the executor does not know it, or the server died before recording it
            handle = WorkerHandle(progress.pid, progress.pid_started, str(folder), progress.location)
            run = self._record_handle(run, handle)
        changes = _changed_columns(run, progress)
        if not changes and run.status != "starting":
            return run
        with self.db.write() as session:
            row = store.get_for_update(session, run.id or 0)
            if not _is_current(row, run):
                return row
            if row.status == "starting":
                transition(row, "running")
            for name, value in changes.items():
                setattr(row, name, value)
        return row

    def finalize(self, run: Run) -> bool:
        """End a run whose worker is dead: with the worker's exit status if it left one, else as `interrupted`.

        Returns False if the run has ended already.
        """
        try:
            current = runs.get(self.db, run.id or 0)  # an abort may have been requested meanwhile
        except UnknownRunError:
            return False
        if not _is_current(current, run):
            return False
        handle = self.handle(current) or self.handle(run)
        run, folder, code = current, self.workspace.folder(current.folder), None
        if handle is not None:
            executor = self.executor_for(handle.executor)
            code = executor.exit_code(handle)
            executor.clean(handle)
        record = read_exit(folder, run.sessions)
        if record is None:
            detail = "aborted" if run.detail == ABORTING else _describe_end(run, handle, code)
            detail += "" if folder.is_dir() else "; the run directory has disappeared"
            record = ExitStatus(run.sessions, "interrupted", detail, self.clock(), code or 0)
            write_exit(folder, record)  # directory and database agree
            if run.detail != ABORTING:
                threading.Thread(target=_alert, args=(folder, record), daemon=True).start()
        self.read(run, to_the_end=True)
        with self.db.write() as session:
            row = session.get(Run, run.id)
            if row is None or not _is_current(row, run):
                return False
            if row.kind == "train":  # uncommitted steps are lost
                row.done = float(sum(stage.done for stage in store.stages(session, row)))
            if record.status not in TRANSITIONS[row.status]:
                transition(row, "running")
            transition(row, record.status, detail=record.detail, ended=record.time, eta=None, phase="")
            row.pid = row.pid_started = None
            row.worker_location = ""
        return True

    def read(self, run: Run, to_the_end: bool = False) -> None:
        """Ingest the next new events of a run, or all of them."""
        with self._reading:
            try:
                while ingest(self.db, self.workspace, run) and (to_the_end or run.id in self.unread) and run.id:
                    run = runs.get(self.db, run.id)
            except Exception as error:  # the status must not depend on the events: retried later
                if self._unreadable.get(run.id or 0) != str(error):  # the attempt is repeated every second
                    _log.warning("Events of run %s could not be read: %s", run.id, error)
                self._unreadable[run.id or 0] = str(error)
                if to_the_end and run.id:
                    self.unread.add(run.id)
            else:
                self.unread.discard(run.id or 0)
                self._unreadable.pop(run.id or 0, None)


def _alert(folder: Path, record: ExitStatus) -> None:
    """Send the alert of a run's end that its killed worker could not send."""
    try:
        config = RunDir.open(folder).config()
        if isinstance(config, BaseRun):
            send_end(config, record.status, record.detail)
    except RL2FError as error:
        _log.warning("%s", error)


def _is_current(row: Run, run: Run) -> bool:
    """Return whether a row has the session of a run and a worker."""
    return row.sessions == run.sessions and row.status in ACTIVE[1:]


def _changed_columns(run: Run, progress: WorkerProgress) -> dict[str, object]:
    """Return the columns of a run that differ from its worker's progress."""
    new: dict[str, object] = {"phase": progress.phase, "done": progress.done, "eta": progress.eta}
    if run.kind == "train":  # ingested events may be newer
        new["done"] = max(progress.done, run.done)
    if progress.total is not None:
        new["total"] = progress.total
    changes = {name: value for name, value in new.items() if getattr(run, name) != value}
    if changes or progress.alive - (run.heartbeat or 0.0) >= HEARTBEAT_INTERVAL_SECONDS:
        changes["heartbeat"] = progress.alive
    return changes


def _describe_end(run: Run, handle: WorkerHandle | None, code: int | None) -> str:
    if run.pid is None:
        return "the worker never reported; see the log"
    location = f" ({handle.location})" if handle is not None and handle.location else ""
    return describe_exit(code) + location
