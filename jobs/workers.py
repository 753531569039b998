"""The workers of runs, for the queue: started, listened to, and given a true status when they are gone.

What a run's row says of its worker is changed only where the row is still of the worker's session and has not ended: a
run that was resumed meanwhile has another worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from jobs import executors
from jobs.database import Database
from jobs.errors import StoreError, UnknownRunError
from jobs.executors.base import SESSION, Executor, Handle, Launch, NoRoomError, executor_of
from jobs.ingest import ingest
from jobs.records import EXIT, LOG, PROGRESS, Exit, Said, how_it_went, read_exit, read_progress, write_exit
from jobs.slots import Slots, elsewhere, environment, write_slot
from jobs.status import ABORTING, NEXT, change
from jobs.store import queue as store
from jobs.store import runs
from jobs.studio import Studio
from jobs.tables import ACTIVE, Run
from rl2f_core.errors import RL2FError
from rl2f_core.run import RunDir

START_SECONDS = 60.0
"""A worker whose process id was never noted has this long to say that it is there."""
BEAT = 5.0
"""Seconds after which a heartbeat alone is worth a write."""
_log = logging.getLogger(__name__)


class Workers:
    """What the queue knows of workers, and how it learns it."""

    def __init__(self, db: Database, studio: Studio, executor: Executor, clock: Callable[[], float]) -> None:
        self.db, self.studio, self.executor, self.clock = db, studio, executor, clock
        self._others: dict[str, Executor] = {}
        self._reading = threading.Lock()
        self.unread: set[int] = set()
        """Ended runs whose events are not all in the database."""

    def handle(self, run: Run) -> Handle | None:
        """The worker of a run, or None where none was noted."""
        if run.pid is None or run.pid_started is None:
            return None
        return Handle(run.pid, run.pid_started, str(self.studio.folder(run.folder)), run.place)

    def of(self, name: str) -> Executor:
        """An executor by name: runs that another one started than now starts them are looked after as well."""
        if name == self.executor.name:
            return self.executor
        if name not in self._others:
            self._others[name] = executors.make(name, self.studio)
        return self._others[name]

    def _looks_after(self, handle: Handle) -> Executor | None:
        """The executor of a worker; None where this server lacks what it needs, so that nothing is known of it."""
        try:
            return self.of(handle.executor)
        except RL2FError as error:
            _log.warning("Nothing is known of the worker at %s. %s", handle.place, error)
            return None

    def signal(self, run: Run) -> None:
        """Pass on to the worker what is asked of its run."""
        handle = self.handle(run)
        if handle is not None and run.status == "stopping":
            executor = self._looks_after(handle)
            if executor is not None:
                (executor.kill if run.detail == ABORTING else executor.stop)(handle)

    def gone(self, run: Run) -> bool:
        """Whether a run that should have a worker has none."""
        handle = self.handle(run)
        if handle is not None:
            executor = self._looks_after(handle)
            return executor is not None and not executor.alive(handle)
        waited = self.clock() - (run.heartbeat or 0.0)
        return waited > START_SECONDS or read_exit(self.studio.folder(run.folder), run.sessions) is not None

    def start(self, run: Run, slots: Slots, slot: str) -> bool:
        """Start a worker for a run that was given a slot; False where that failed, which its status then says."""
        try:
            return self._start(run, slots, slot)
        except StoreError as error:  # the worker may run: what it says of itself will tell
            _log.warning("The start of run %s could not be noted: %s", run.id, error)
            return True

    def _start(self, run: Run, slots: Slots, slot: str) -> bool:
        folder = self.studio.folder(run.folder)
        try:
            RunDir.open(folder)
            for record in (EXIT, PROGRESS):
                (folder / record).unlink(missing_ok=True)
            write_slot(folder, slot)
            variables = {**environment(slots, slot), SESSION: str(run.sessions)}
            executor = self.of(executor_of(slot) if elsewhere(slot) else "local")
            handle = executor.start(Launch(folder, folder / LOG, variables, slot))
        except NoRoomError as error:
            self._put_back(run, str(error))
            return False
        except (RL2FError, OSError) as error:
            with self.db.write() as session:
                change(store.locked(session, run.id or 0), "failed", detail=f"It could not be started. {error}",
                       ended=self.clock())  # fmt: skip
            return False
        self._note(run, handle)
        return True

    def _put_back(self, run: Run, reason: str) -> None:
        """Let a run wait again whose place was taken before it was there."""
        with self.db.write() as session:
            row = store.locked(session, run.id or 0)
            if row.sessions != run.sessions:
                return
            if row.status == "starting":
                change(row, "queued", detail=reason)
            elif row.status == "stopping":
                change(row, "stopped", detail="stopped before it started", ended=self.clock())

    def _note(self, run: Run, handle: Handle) -> Run:
        """Keep the worker's process id; pass on what was asked of the run before it had one."""
        with self.db.write() as session:
            row = store.locked(session, run.id or 0)
            if row.sessions != run.sessions or row.status not in ACTIVE[1:]:
                return row
            row.pid, row.pid_started, row.place = handle.pid, handle.started, handle.place
        self.signal(row)
        return row

    def hear(self, run: Run) -> Run:
        """Bring `progress.json` into the run's row where something moved."""
        folder = self.studio.folder(run.folder)
        said = read_progress(folder, run.sessions)
        if said is None:
            return run
        if run.pid is None:  # the server died between the start of the worker and the note of its id
            run = self._note(run, Handle(said.pid, said.pid_started, str(folder), said.place))
        changes = _changes(run, said)
        if not changes and run.status != "starting":
            return run
        with self.db.write() as session:
            row = store.locked(session, run.id or 0)
            if row.sessions != run.sessions or row.status not in ACTIVE[1:]:
                return row
            if row.status == "starting":
                change(row, "running")
            for name, value in changes.items():
                setattr(row, name, value)
        return row

    def settle(self, run: Run) -> bool:
        """Give a run whose worker is gone the status that the worker left, or `interrupted`; False where it has one."""
        try:
            held = runs.get(self.db, run.id or 0)  # an abort may have been asked for since it was read
        except UnknownRunError:
            return False
        if held.sessions != run.sessions or held.status not in ACTIVE[1:]:
            return False
        run, folder, handle = held, self.studio.folder(held.folder), self.handle(held) or self.handle(run)
        code = None
        if handle is not None:
            executor = self.of(handle.executor)
            code = executor.exit_code(handle)
            executor.clean(handle)
        record = read_exit(folder, run.sessions)
        if record is None:
            detail = "aborted" if run.detail == ABORTING else _how_it_went(run, handle, code)
            record = Exit(run.sessions, "interrupted", detail, self.clock(), code or 0)
            write_exit(folder, record)  # the folder tells the same as the database
        self.read(run, to_the_end=True)
        with self.db.write() as session:
            row = session.get(Run, run.id)
            if row is None or row.sessions != run.sessions or row.status not in ACTIVE[1:]:
                return False
            if row.kind == "train":  # steps after the last commit are gone
                row.done = float(sum(stage.done for stage in store.stages(session, row)))
            if record.status not in NEXT[row.status]:
                change(row, "running")
            change(row, record.status, detail=record.detail, ended=record.time, eta=None, phase="")
            row.pid = row.pid_started = None
            row.place = ""
        return True

    def read(self, run: Run, to_the_end: bool = False) -> None:
        """Ingest new events of a run: some, or all there are."""
        with self._reading:
            try:
                while ingest(self.db, self.studio, run) and (to_the_end or run.id in self.unread) and run.id:
                    run = runs.get(self.db, run.id)
            except (RL2FError, OSError) as error:  # a status must not wait for its events: they are read later
                _log.warning("Events of run %s could not be read: %s", run.id, error)
                if to_the_end and run.id:
                    self.unread.add(run.id)
            else:
                self.unread.discard(run.id or 0)


def _changes(run: Run, said: Said) -> dict[str, Any]:
    """The columns of a run that differ from what its worker says."""
    new = {"phase": said.phase, "done": said.done, "eta": said.eta}
    if run.kind == "train":  # its events may be ahead of what the worker said
        new["done"] = max(said.done, run.done)
    if said.total is not None:
        new["total"] = said.total
    changes = {name: value for name, value in new.items() if getattr(run, name) != value}
    if changes or said.alive - (run.heartbeat or 0.0) >= BEAT:
        changes["heartbeat"] = said.alive
    return changes


def _how_it_went(run: Run, handle: Handle | None, code: int | None) -> str:
    if run.pid is None:
        return "the worker never said that it is there; see the log"
    at = f" ({handle.place})" if handle is not None and handle.place else ""
    return how_it_went(code) + at
