"""Training states that a run keeps before randomly chosen steps, and digests of what these steps produced.

    retained/STAGE@STEP/   the files of a commit's training state before the step
        state.json         resume position, SHA-256 of these files, and of the events before the step
        result.json        SHA-256 of each event of the step and of the trained weights after it
    retained/events.json   SHA-256 of the events at the end of training

`RunConfig.retained_steps` chooses the steps by the run's seed. `reproduction` executes them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rl2f_core.common.file_io import sha256, write_atomically
from rl2f_core.config.run import RunConfig
from rl2f_core.learning.learner.fsdp import full_tensor
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, encode
from rl2f_core.run.journal import Journal
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.learning.learner.learner import Learner

STATE, RESULT, EVENTS = "state.json", "result.json", "events.json"


def retained_dir(run_dir: RunDir) -> Path:
    """Return the directory of the retained states of a run."""
    return run_dir.path / "retained"


class StateRetainer:
    """Writes the retained states of a run. All processes must call its methods; only the main process writes."""

    def __init__(self, config: RunConfig, journal: Journal) -> None:
        self.journal, self.ranks = journal, journal.ranks
        self.folder = retained_dir(journal.run_dir)
        self.steps = frozenset(config.retained_steps())

    def keep_state(self, stage: str, position: JsonObject, learner: Learner) -> None:
        """Write the training state before the step of a resume position with one rename, if the step is chosen."""
        name = stage, position["step"] + 1
        if name not in self.steps:
            return
        if not self.ranks.is_main_process:
            learner.save(self.folder)
        self.ranks.run_on_main(lambda: self._write_state(self._dir_of(*name), position, learner))

    def _write_state(self, folder: Path, position: JsonObject, learner: Learner) -> None:
        fresh = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        learner.save(fresh)
        files = {file.name: sha256(file) for file in sorted(fresh.iterdir())}
        state = {"position": position, "files": files, "events": self._events_digest()}
        write_atomically(fresh / STATE, json.dumps(state, indent=2))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(fresh, folder)

    def record_result(self, learner: Learner, stage: str, step: int, events: Sequence[Event]) -> None:
        """Write the digests of the events and weights of a 1-based step before its commit, if the step is chosen."""
        if (stage, step) not in self.steps:
            return
        weights = weights_digest(learner)
        if self.ranks.is_main_process:
            digests = {event.id: hashlib.sha256(encode(event)).hexdigest() for event in events}
            text = json.dumps({"weights": weights, "events": digests}, indent=2)
            write_atomically(self._dir_of(stage, step) / RESULT, text)

    def seal_events(self) -> None:
        """Write the digest of the run's events at the end of training."""
        if self.steps and self.ranks.is_main_process:
            write_atomically(self.folder / EVENTS, json.dumps(self._events_digest()))

    def _events_digest(self) -> JsonObject:
        self.journal.wait()
        path = self.journal.run_dir.events_path
        return {"bytes": path.stat().st_size, "sha256": sha256(path)} if path.exists() else {"bytes": 0, "sha256": ""}

    def _dir_of(self, stage: str, step: int) -> Path:
        return self.folder / f"{stage}@{step}"


def weights_digest(learner: Learner) -> JsonObject:
    """Return the SHA-256 of the trained weights, and their L2 norm by name, to compare weights within a tolerance.

    All processes must call it.
    """
    digest, norms = hashlib.sha256(), {}
    for name, parameter in sorted((learner.parameters | learner.head_parameters).items()):
        tensor = full_tensor(parameter).detach().to("cpu", torch.float32).contiguous()
        digest.update(name.encode() + tensor.numpy().tobytes())
        norms[name] = float(torch.linalg.vector_norm(tensor.double()))
    return {"sha256": digest.hexdigest(), "norms": norms}
