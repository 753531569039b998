"""The queue: everything that changes a run's status begins here.

Whoever acts on a run does so inside one write transaction that looks at the status first: of two tabs that act on the
same run, the second gets a plain error.  A worker is known by process id and start time, which stand in the database,
and what it says stands in the run's folder; so a server that comes back knows as much as one that never went.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from jobs import folders, kinds
from jobs.database import Database
from jobs.errors import UnknownRunError
from jobs.executors.base import Executor
from jobs.executors.local import Local
from jobs.slots import Slots, free_slots, read_slots
from jobs.status import ABORTING, NEXT, change, must_be
from jobs.store import queue as store
from jobs.store import runs, settings
from jobs.studio import Studio
from jobs.tables import ACTIVE, ENDED, Run
from jobs.workers import Workers
from rl2f_core.config import BaseRun, dump_yaml, parse_config
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run import RunDir

_log = logging.getLogger(__name__)


class Queue:
    """Runs, from the moment they are added until they have ended.

    Args:
        db: The studio's database.
        studio: Its folders.
        executor: Where runs are worked on; by default processes on this machine.
        clock: Seconds since 1970.
    """

    def __init__(
        self, db: Database, studio: Studio, executor: Executor | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        kinds.load()
        self.db, self.studio, self.clock = db, studio, clock
        self.workers = Workers(db, studio, executor or Local(studio), clock)

    # -- what people do ----------------------------------------------------------------------------------------
    def add(
        self,
        config: BaseRun | str,
        *,
        name: str | None = None,
        origin: str = "app",
        parent: int | None = None,
        start: bool = True,
    ) -> Run:
        """Put a run at the end of the queue.

        Args:
            config: A configuration, or its YAML.
            name: Instead of the configuration's own.
            origin: app, cli, example, imported or `schedule:ID`.
            parent: The run it was cloned from, evaluates or exports.
            start: False keeps it out of the queue, as `stopped`, until it is resumed.

        Raises `ConfigError` naming each wrong field, `RunError` where the folder cannot be made, or `StoreError`;
        then there is neither folder nor row.
        """
        config = parse_yaml(config) if isinstance(config, str) else config
        if name is not None:
            config = parse_config({**config.model_dump(mode="json"), "name": name})
        slots = self._slots()
        staged = folder = folders.stage(self.studio, config)
        try:
            state = {"status": "queued"} if start else {"status": "stopped", "detail": "not started yet"}
            run = runs.of_config(
                config, dump_yaml(config), staged.name, created=self.clock(), origin=origin, parent=parent,
                device=slots.device_of(config), **state,
            )  # fmt: skip
            with self.db.write() as session:
                run.position = store.last_position(session) + 1
                session.add(run)
                session.flush()
                stages = runs.planned_stages(run)
                session.add_all(stages)
                run.total = float(sum(stage.steps for stage in stages)) or None
                folder = folders.place(self.studio, staged, f"{run.id}-{folders.slug(config.name)}")
                run.folder = folder.name
        except BaseException:
            folders.discard(folder)
            raise
        folders.accept(folder)
        return run

    def stop(self, run_id: int) -> Run:
        """Ask a run to stop after its step and to save; one that waits just leaves the queue."""
        with self.db.write() as session:
            run = store.locked(session, run_id)
            if run.status == "queued":
                change(run, "stopped", detail="stopped before it started", ended=self.clock())
            else:
                must_be(run, ("starting", "running"), "stopped")
                change(run, "stopping")
        self.workers.signal(run)
        return run

    def abort(self, run_id: int) -> Run:
        """End a run at once. What was not committed is lost; it can be resumed from its last commit."""
        with self.db.write() as session:
            run = store.locked(session, run_id)
            if run.status == "queued":
                change(run, "stopped", detail="stopped before it started", ended=self.clock())
                return run
            must_be(run, ACTIVE[1:], "aborted")
            if run.status != "stopping":
                change(run, "stopping")
            run.detail = ABORTING
        self.workers.signal(run)
        if run.pid is not None and self.workers.gone(run):
            self.workers.settle(run)
        return runs.get(self.db, run_id)

    def resume(self, run_id: int) -> Run:
        """Put a run that has ended, but did not succeed, into the queue again; it goes on from its last commit."""
        run = runs.get(self.db, run_id)
        must_be(run, [s for s in ENDED if s != "succeeded"], "resumed")
        RunDir.open(self.studio.folder(run.folder)).lock().close()  # refused where a command line works on it
        with self.db.write() as session:
            run = store.locked(session, run_id)
            must_be(run, [s for s in ENDED if s != "succeeded"], "resumed")
            last = store.last_position(session)
            change(run, "queued", detail="", ended=None, eta=None, phase="", position=last + 1)
        return run

    def clone_yaml(self, run_id: int) -> str:
        """The configuration of a run, as a start for a new one."""
        return runs.get(self.db, run_id).config

    def delete(self, run_id: int) -> None:
        """Delete a run that has ended: its folder goes to the trash, then everything of it leaves the database."""
        run = runs.get(self.db, run_id)
        with self.db.write() as session:
            run = store.locked(session, run_id)
            must_be(run, ENDED, "deleted")
            users = [r for r in store.unfinished(session) if _needs(r, run)]
            if users:
                raise RunError(
                    f"Run {run_id} cannot be deleted: it is needed by {', '.join(f'run {r.id}' for r in users)}.",
                    fix="Wait for it to end, or abort it.",
                )
            trashed = folders.to_trash(self.studio, run.folder)
        try:
            runs.remove(self.db, run_id)
        except BaseException:
            if trashed is not None:
                folders.from_trash(self.studio, trashed, run.folder)
            raise

    def move(self, run_id: int, before: int | None) -> Run:
        """Put a waiting run before another one that waits, or at the end (None)."""
        with self.db.write() as session:
            run = store.locked(session, run_id)
            must_be(run, ("queued",), "moved")
            waiting = [r for r in store.queued(session) if r.id != run_id]
            ids = [r.id for r in waiting]
            if before is not None and before not in [*ids, run_id]:
                raise RunError(f"Run {before} does not wait any more.", fix="Look at the queue again.")
            if before != run_id:
                waiting.insert(len(ids) if before is None else ids.index(before), run)
                for number, row in enumerate(waiting, 1):
                    row.position = float(number)
        return run

    def pause(self) -> None:
        """Start nothing new; what runs goes on."""
        settings.put(self.db, store.PAUSED, "1")

    def unpause(self) -> None:
        """Start what waits again."""
        settings.put(self.db, store.PAUSED, "0")

    @property
    def paused(self) -> bool:
        """Whether nothing new is started."""
        return settings.get(self.db, store.PAUSED, "0") == "1"

    # -- what the scheduler does -------------------------------------------------------------------------------
    def dispatch(self) -> list[int]:
        """Start what waits and has a slot, in order; returns the runs that were started."""
        waiting = runs.queued(self.db)
        if not waiting or self.paused:
            return []
        slots, chosen = self._slots(), []
        # asked before the transaction: nobody else must wait with a write until a cluster has answered
        room = self.workers.executor.room() if any(run.device != "none" for run in waiting) else None
        with self.db.write() as session:
            if store.paused(session):
                return []
            free = free_slots(slots, [(r.device, self.studio.folder(r.folder)) for r in store.active(session)])
            for run in store.queued(session):
                if room is not None and run.device != "none":
                    slot, reason = room.take(run.config)
                    if slot is not None:
                        run.device = slot.partition(":")[2]
                else:
                    if run.device == "cuda" and not slots.cuda:  # the devices have gone since it was added
                        run.device = "cpu"
                    slot, reason = free.take(run.device), ""
                if slot is None:
                    if run.detail != reason:
                        run.detail = reason
                    continue
                now = self.clock()
                change(run, "starting", detail="", sessions=run.sessions + 1, started=run.started or now, heartbeat=now)
                run.pid = run.pid_started = None
                chosen.append((run, slot))
        return [run.id for run, slot in chosen if run.id and self.workers.start(run, slots, slot)]

    def _slots(self) -> Slots:
        """What there is; runs that need a device are not this machine's where another executor starts them."""
        return dataclasses.replace(read_slots(self.db), elsewhere=self.workers.executor.name != "local")

    def follow(self) -> None:
        """Bring what the workers say of themselves, and what their events say, into the database."""
        for run in runs.active(self.db):
            self.workers.read(run)
            self.workers.hear(run)
        for run_id in list(self.workers.unread):
            try:
                self.workers.read(runs.get(self.db, run_id))
            except UnknownRunError:  # deleted meanwhile
                self.workers.unread.discard(run_id)

    def reap(self) -> list[int]:
        """Give every run whose worker has ended its true status; returns those runs."""
        ended = []
        for run in runs.active(self.db):
            if run.pid is None:
                run = self.workers.hear(run)
            if self.workers.gone(run) and self.workers.settle(run) and run.id is not None:
                ended.append(run.id)
        return ended

    def recover(self) -> None:
        """After a start: finish what a server that died left half-done. Only the server that schedules may."""
        known = store.folders(self.db)
        removed = folders.sweep(self.studio, known)
        for name in removed:
            _log.warning("Removed the half-made folder %s.", name)
        for run in store.ended(self.db):
            there = self.studio.folder(run.folder).is_dir()
            if not there and run.id and folders.was_trashed(self.studio, run.folder):
                runs.remove(self.db, run.id)
            elif there and run.id and run.offset < _size(self.studio.folder(run.folder) / "events.jsonl"):
                self.workers.unread.add(run.id)
        for run in runs.active(self.db):
            self.workers.signal(run)


def _needs(run: Run, other: Run) -> bool:
    """Whether a run works with the folder of another."""
    return f"/{other.folder}/" in run.config or (run.parent == other.id and run.kind != other.kind)


def parse_yaml(text: str) -> BaseRun:
    """The configuration in a YAML text; raises `ConfigError` naming each wrong field."""
    try:
        data = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The configuration is no YAML: {error}.") from error
    return parse_config(data)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


__all__ = ["NEXT", "Queue", "change", "parse_yaml"]
