"""The journal of a run: training state and events are committed together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path

from rl2f_core.common.file_io import disk_full_error, disk_is_full, read_json, sha256, write_atomically
from rl2f_core.errors import DataError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, EventSink, encode
from rl2f_core.types import JsonObject


class Journal:
    """Commits training state and events together; see `directory`.

    Only the main process of `run_dir.ranks` writes. All processes must commit and resume together.
    """

    def __init__(self, run_dir: RunDir, events: EventSink) -> None:
        self.run_dir = run_dir
        self.ranks = run_dir.ranks
        self.events = events
        self.pending: list[Event] = []
        self.resume_state: JsonObject | None = None
        """Resume state of the last commit before this process; None for a new run."""
        self.state_dir: Path | None = None
        """Folder of the last commit with the training state."""
        self._worker = futures.ThreadPoolExecutor(1, "journal")
        self._running: futures.Future[None] | None = None
        self.flush_pending = False
        """Events of the last commit may be missing in the event file and must be appended first."""

    def emit(self, events: Iterable[Event]) -> None:
        """Add events to the next commit, in the main process."""
        if self.ranks.is_main_process:
            self.pending += events

    def commit(
        self, position: JsonObject, save: Callable[[Path], None] | None = None, *, background: bool = False
    ) -> None:
        """Commit the pending events and the training state; afterwards all processes can read the files.

        Args:
            position: Resume state.
            save: Writes weights and optimizer state to a folder; None keeps those of the last commit. Called in all
                processes, which sharded weights need; only the main process may write.
            background: Return at once and commit in another thread, in which `save` writes a copy of the state; in
                a run of several processes without effect. The next commit waits for it, and so does `wait`.
        """
        self.wait()
        if save is not None and not self.ranks.is_main_process:
            save(self.run_dir.state)
        events, self.pending = self.pending, []
        position = json.loads(json.dumps(position))  # a copy, because the run continues
        if background and self.ranks.world_size == 1:
            self._running = self._worker.submit(self._commit, events, position, save)
        else:
            self.ranks.run_on_main(lambda: self._commit(events, position, save))

    def wait(self) -> None:
        """Wait until the commit in the background has ended; raise its error."""
        if self._running is not None:
            futures.wait([self._running])
            running, self._running = self._running, None
            running.result()

    def _commit(self, events: list[Event], position: JsonObject, save: Callable[[Path], None] | None) -> None:
        root = self.run_dir.state
        current = self.current()
        number = int(current.name) + 1 if current else 1
        fresh = root / f".{number}.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True)
            digests = self._link_weights(fresh, current) if save is None and current is not None else {}
            if save is not None:
                save(fresh)
            self._write_state(fresh, events, position, digests)
            shutil.rmtree(root / str(number), ignore_errors=True)
            os.rename(fresh, root / str(number))
        except Exception as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if disk_is_full(error):
                raise disk_full_error(root) from error
            raise
        self.flush_pending = True
        write_atomically(root / "CURRENT", str(number))
        self.events.emit(events)
        self.state_dir, self.flush_pending = root / str(number), False
        for old in root.iterdir():
            if old.is_dir() and old.name != str(number):
                shutil.rmtree(old, ignore_errors=True)

    def _link_weights(self, fresh: Path, current: Path) -> dict[str, str]:
        """Link the weights of the last commit; return their known digests."""
        for file in current.iterdir():
            if file.suffix == ".safetensors" or file.name == "adapter_config.json":
                try:
                    os.link(file, fresh / file.name)
                except OSError:  # the file system has no hard links
                    shutil.copy2(file, fresh / file.name)
        return dict(read_json(current / "state.json").get("files", {}))

    def _write_state(self, fresh: Path, events: list[Event], position: JsonObject, digests: dict[str, str]) -> None:
        with open(fresh / "events.jsonl", "wb") as file:
            file.write(b"".join(encode(event) for event in events))
            file.flush()
            os.fsync(file.fileno())
        digests.pop("events.jsonl", None)
        files = {p.name: digests.get(p.name) or sha256(p) for p in sorted(fresh.iterdir())}
        state = {"position": position, "events_from": self.events.offset(), "files": files}
        write_atomically(fresh / "state.json", json.dumps(state, indent=2))

    def current(self) -> Path | None:
        """Return the folder of the last commit, or None. Raises `DataError` if its name is corrupted."""
        pointer = self.run_dir.state / "CURRENT"
        if not pointer.is_file():
            return None
        name = pointer.read_bytes().strip()
        if not name.isdigit():
            raise DataError(
                "The name of the run's last saved state is corrupted.",
                value=str(pointer),
                fix=f"Write the number of the newest folder in {self.run_dir.state} to this file.",
            )
        return self.run_dir.state / name.decode()

    def resume(self) -> None:
        """Load the resume state of the last commit and append its missing events.

        Raises `DataError` if a file of the commit is corrupted.
        """
        self.resume_state, self.state_dir = self.ranks.broadcast_from_main(self._resume)

    def _resume(self) -> tuple[JsonObject | None, Path | None]:
        folder = self.current()
        if folder is None:
            self.events.reconcile(0, b"")
            return None, None
        try:
            state = json.loads((folder / "state.json").read_text())
            position, events_from, files = dict(state["position"]), int(state["events_from"]), dict(state["files"])
            corrupted = [name for name, digest in files.items() if sha256(folder / name) != digest]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"The run's saved state cannot be read: {error}.", value=str(folder)) from error
        if corrupted:
            raise DataError(
                f"The run's saved state is corrupted: {', '.join(corrupted)} does not match its checksum.",
                value=str(folder),
                fix="Start a new run from the last checkpoint, or restore the file.",
            )
        self.events.reconcile(events_from, (folder / "events.jsonl").read_bytes())
        return position, folder
