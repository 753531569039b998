"""The queue: all operations that change a run's status.

Each operation checks the status inside one write transaction, so that of two concurrent requests the second one gets an
error. The database identifies a worker by process id and start time, and the run directory has the worker's reports;
therefore a restarted server continues where the last one ended.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs import run_kinds
from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import StoreError, UnknownRunError
from jobs.db.models import ACTIVE, ENDED, Run, Tag
from jobs.db.queries import chats, runs
from jobs.db.queries import run_queue as store
from jobs.executors.base import Executor
from jobs.executors.local import Local
from jobs.queue import run_dirs, trash
from jobs.queue.slots import Slots, free_slots, read_slots, slot_class
from jobs.queue.status import ABORTING, require_status, transition
from jobs.queue.worker_monitor import WorkerMonitor
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml, load_yaml, parse_config, parse_yaml
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RunError
from rl2f_core.run.directory import RunDir

STOPPABLE = ACTIVE[:3]
RESUMABLE = tuple(status for status in ENDED if status != "succeeded")
_log = logging.getLogger(__name__)
_START_FROM = re.compile(r"^start_from: (?:.*/)?(?P<folder>[^/\n]+)$", re.MULTILINE)


class Queue:
    """Runs, from their creation to their end.

    Args:
        db: The workspace's database.
        workspace: Its directories.
        executor: Where runs execute; by default in processes on this machine.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        db: Database,
        workspace: Workspace,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        run_kinds.load()
        self.db, self.workspace, self.clock = db, workspace, clock
        self.workers = WorkerMonitor(db, workspace, executor or Local(workspace), clock)
        self._failures: dict[int, str] = {}

    # -- user actions ------------------------------------------------------------------------------------------
    def add(
        self,
        config: BaseRun | str,
        *,
        name: str | None = None,
        origin: str = "app",
        parent: int | None = None,
        start: bool = True,
        tags: Sequence[str] = (),
    ) -> Run:
        """Append a run to the queue.

        Args:
            config: A configuration, or its YAML.
            name: Replaces the configuration's name.
            origin: app, cli, example, imported or `schedule:ID`.
            parent: The run that it clones, evaluates or exports.
            start: False creates it as `stopped`, until it is resumed.
            tags: Tags of the run.

        Raises `ConfigError` naming each wrong field, `RunError` if the run directory cannot be created, or
        `StoreError`; then neither directory nor row remains.
        """
        config = parse_yaml(config) if isinstance(config, str) else config
        if name is not None:
            config = parse_config({**config.model_dump(mode="json"), "name": name})
        device = self._slots().device_of(config)
        staged = folder = run_dirs.create_staged(self.workspace, config)
        try:
            state = {"status": "queued"} if start else {"status": "stopped", "detail": "not started yet"}
            state |= {"origin": origin, "device": device}
            run = runs.of_config(config, dump_yaml(config), staged.name, created=self.clock(), parent=parent, **state)
            with self.db.write() as session:
                run.position = store.last_position(session) + 1
                runs.add_in_session(session, run)
                session.add_all(Tag(run_id=run.id, tag=tag) for tag in tags)
                folder = run_dirs.publish(self.workspace, staged, f"{run.id}-{run_dirs.slug(config.name)}")
                run.folder = folder.name
        except BaseException:
            run_dirs.rollback(folder)
            raise
        run_dirs.confirm(folder)
        return run

    def check_device(self, config: BaseRun) -> None:
        """Raise `ConfigError` if `add` would refuse a configuration for its device."""
        self._slots().device_of(config)

    def stop(self, run_id: int) -> Run:
        """Stop a run after its step, with its state saved; remove a queued one from the queue."""
        with self.db.write() as session:
            run = store.get_for_update(session, run_id)
            if not self._left_queue(run):
                require_status(run, ("starting", "running"), "stopped")
                transition(run, "stopping")
        self.workers.signal(run)
        return run

    def abort(self, run_id: int) -> Run:
        """End a run immediately. Uncommitted progress is lost; the run can be resumed from its last commit."""
        with self.db.write() as session:
            run = store.get_for_update(session, run_id)
            if self._left_queue(run):
                return run
            require_status(run, ACTIVE[1:], "aborted")
            if run.status != "stopping":
                transition(run, "stopping")
            run.detail = ABORTING
        self.workers.signal(run)
        if run.pid is not None and self.workers.is_dead(run):
            self.workers.finalize(run)
        return runs.get(self.db, run_id)

    def _left_queue(self, run: Run) -> bool:
        """Stop a run that is queued; returns whether it was."""
        if run.status != "queued":
            return False
        transition(run, "stopped", detail="stopped before it started", ended=self.clock())
        return True

    def resume(self, run_id: int) -> Run:
        """Queue an ended, unsuccessful run again; it resumes from its last commit."""
        run = runs.get(self.db, run_id)
        require_status(run, RESUMABLE, "resumed")
        with RunDir.open(self.workspace.folder(run.folder)).lock():
            pass  # raises if a command line is executing the run
        with self.db.write() as session:
            run = store.get_for_update(session, run_id)
            require_status(run, RESUMABLE, "resumed")
            last = store.last_position(session)
            transition(run, "queued", detail="", ended=None, eta=None, phase="", position=last + 1)
        return run

    def clone_yaml(self, run_id: int) -> str:
        """Return the configuration of a run as the draft of a new one; raises `RunError` for an imported run."""
        run = runs.get(self.db, run_id)
        if run.kind == "imported":
            raise RunError(
                f"Run {run_id} cannot be cloned: it is imported, so it has neither policy nor verifier.",
                fix="Start a new run with the environment of its tasks.",
            )
        return run.config

    def delete(self, run_id: int) -> None:
        """Delete an ended run: move its directory with what people entered to the trash, then remove its rows."""
        run = runs.get(self.db, run_id)
        require_status(run, ENDED, "deleted")
        if self.workspace.folder(run.folder).is_dir():
            with RunDir(self.workspace.folder(run.folder)).lock():
                pass  # raises if a command line is executing the run
        with self.db.write() as session:
            run = store.get_for_update(session, run_id)
            require_status(run, ENDED, "deleted")
            users = [r for r in store.unfinished(session) if _needs(r, run)]
            if users:
                raise RunError(
                    f"Run {run_id} cannot be deleted: it is needed by {', '.join(f'run {r.id}' for r in users)}.",
                    fix="Wait for it to end, or abort it.",
                )
            if self.workspace.folder(run.folder).is_dir():
                trash.write_record(session, run, self.workspace.folder(run.folder))
            trashed = run_dirs.move_to_trash(self.workspace, run.folder)
        try:
            runs.remove(self.db, run_id)
        except BaseException:
            if trashed is not None:
                run_dirs.restore(self.workspace, trashed, run.folder)
            raise

    def restore(self, run_id: int) -> Run:
        """Restore a deleted run with its labels, notes and tags; the next `sync_workers` reads its events."""
        run = trash.restore(self.db, self.workspace, run_id)
        self.workers.unread.add(run.id)
        return run

    def move(self, run_id: int, before: int | None) -> Run:
        """Move a queued run before another one, or to the end (None)."""
        with self.db.write() as session:
            run = store.get_for_update(session, run_id)
            require_status(run, ("queued",), "moved")
            waiting = [r for r in store.queued(session) if r.id != run_id]
            ids = [r.id for r in waiting]
            if before is not None and before not in [*ids, run_id]:
                store.get_for_update(session, before)
                raise RunError(f"Run {before} is not queued any more.", fix="Reload the queue.")
            if before != run_id:
                waiting.insert(len(ids) if before is None else ids.index(before), run)
                for number, row in enumerate(waiting, 1):
                    row.position = float(number)
        return run

    def pause(self) -> None:
        """Start no further runs; active ones continue."""
        settings.put(self.db, store.PAUSED, "1")

    def resume_dispatch(self) -> None:
        """Start queued runs again."""
        settings.put(self.db, store.PAUSED, "0")

    @property
    def paused(self) -> bool:
        """Whether no further runs start."""
        return settings.get(self.db, store.PAUSED, "0") == "1"

    # -- scheduler jobs ----------------------------------------------------------------------------------------
    def dispatch(self) -> list[int]:
        """Start the queued runs that get a slot, in order; returns their ids."""
        waiting = runs.queued(self.db)
        if not waiting or self.paused:
            return []
        slots, chosen = self._slots(), []
        # Outside the transaction: a slow cluster must not block other writers.
        capacity = self.workers.executor.capacity() if any(run.device != "none" for run in waiting) else None
        with self.db.write() as session:
            if store.paused(session):
                return []
            unfinished = {run.folder for run in store.unfinished(session)}
            free = free_slots(slots, [run.device for run in store.active(session)])
            for run in store.queued(session):
                device = slot_class(run.device)
                if start_folder(run) in unfinished - {run.folder}:
                    run.detail = "waits for the run in start_from"
                    continue
                if capacity is not None and device != "none":
                    slot, reason = capacity.reserve(run.config)
                else:
                    if device == "cuda" and not slots.cuda:  # the devices were removed after the run was added
                        device = "cpu"
                    slot, reason = free.acquire(device), ""
                if slot is None:
                    if run.detail != reason:
                        run.detail = reason
                    continue
                now = self.clock()
                start = {"sessions": run.sessions + 1, "started": run.started or now, "heartbeat": now}
                transition(run, "starting", detail="", device=slot, pid=None, pid_started=None, **start)
                chosen.append(run)
        return [run.id for run in chosen if run.id and self.workers.start(run, slots)]

    def _slots(self) -> Slots:
        return dataclasses.replace(read_slots(self.db), remote=self.workers.executor.name != "local")

    def sync_workers(self) -> None:
        """Copy the progress and the events of all workers into the database."""
        for run in runs.active(self.db):
            with self._isolated(run):
                self.workers.read(run)
                self.workers.sync_progress(run)
        for run_id in list(self.workers.unread):
            try:
                self.workers.read(runs.get(self.db, run_id))
            except UnknownRunError:  # deleted meanwhile
                self.workers.unread.discard(run_id)

    def reap(self) -> list[int]:
        """Finalize the runs whose worker is dead; returns their ids."""
        ended = []
        for run in runs.active(self.db):
            with self._isolated(run):
                if run.pid is None:
                    run = self.workers.sync_progress(run)
                if self.workers.is_dead(run) and self.workers.finalize(run) and run.id is not None:
                    ended.append(run.id)
        return ended

    @contextmanager
    def _isolated(self, run: Run) -> Iterator[None]:
        """Log an error that concerns one run, so that the other runs are followed nevertheless."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            text, number = f"{type(error).__name__}: {error}", run.id or 0
            if self._failures.get(number) != text:  # the attempt is repeated every second
                _log.exception("Run %s could not be followed.", number)
            self._failures[number] = text
        else:
            self._failures.pop(run.id or 0, None)

    def recover(self) -> None:
        """Complete or undo the operations that a dead server interrupted. Only for the server with the lock."""
        for name in run_dirs.complete_staged(self.workspace, store.folders(self.db)):
            _log.warning("Removed the incomplete run directory %s.", name)
        for run in store.ended(self.db):
            folder = self.workspace.folder(run.folder)
            exists = folder.is_dir()
            if not exists and run.id and run_dirs.was_trashed(self.workspace, run.folder):
                runs.remove(self.db, run.id)
            elif exists and run.id and run.events_offset < _file_size(folder / "events.jsonl"):
                self.workers.unread.add(run.id)
        for run in runs.active(self.db):
            self.workers.signal(run)
        chats.close_abandoned(self.db)


def _needs(run: Run, other: Run) -> bool:
    """Return whether a run reads the directory of another."""
    return (
        f"/{other.folder}/" in run.config
        or start_folder(run) == other.folder
        or (run.parent == other.id and run.kind != other.kind)
        or (run.kind == "export" and other.id in (load_yaml(run.config).get("runs") or ()))
    )


def start_folder(run: Run) -> str | None:
    """Return the folder of the run whose first stages a run copies."""
    found = _START_FROM.search(run.config)
    return found["folder"] if found else None


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
