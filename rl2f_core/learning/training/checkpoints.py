"""Destinations of the learner's weights: the sampler, named checkpoints, commits."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from rl2f_core.common.file_io import sha256
from rl2f_core.learning.learner.state_files import StateFiles
from rl2f_core.learning.training.curriculum import CurriculumTracker
from rl2f_core.models.backends.base import Backend
from rl2f_core.models.process_group import current_group
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import CheckpointEvent
from rl2f_core.run.journal import Journal
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.learning.learner.learner import Learner

ADAPTER = "policy"
"""Name of the adapter in training in the backend."""


class Checkpoints:
    """Writes the learner's weights. All processes must call its methods; only the main process writes."""

    def __init__(self, run_dir: RunDir, journal: Journal, backend: Backend) -> None:
        self.run_dir, self.journal, self.backend = run_dir, journal, backend
        self._synced: str | None = None
        self._state = StateFiles({}, {})

    def sync(self, learner: Learner, version: str) -> None:
        """Load the learner's weights into the sampler, unless it has this version already.

        They are copied in memory if sampler and learner are in the only process, and otherwise go through files.
        """
        if self._synced == version:
            return
        folder, ranks = self.run_dir.path / ".sync", current_group()
        if ranks.world_size == 1 and self.backend.copy_adapter(ADAPTER, *learner.adapter_tensors()):
            self._synced = version
            return
        ranks.run_on_main(lambda: folder.mkdir(exist_ok=True))
        learner.save_adapter(folder)
        ranks.barrier()
        self.backend.load_adapter(ADAPTER, folder)
        ranks.barrier()
        if ranks.is_main_process:
            shutil.rmtree(folder)
        self._synced = version

    def save(self, learner: Learner, stage: str, step: int) -> None:
        """Write the named checkpoint `stage@step` with one rename, and emit its event."""
        name = f"{stage}@{step}"
        folder, fresh = self.run_dir.checkpoints / name, self.run_dir.checkpoints / f".{name}.tmp"
        if current_group().is_main_process:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
        learner.save_adapter(fresh)
        if not current_group().is_main_process:
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(fresh, folder)
        digest = sha256(folder / "adapter_model.safetensors")
        path = str(folder.relative_to(self.run_dir.path))
        self.journal.emit(
            [CheckpointEvent(id=f"checkpoint:{name}", name=name, stage=stage, step=step, path=path, sha256=digest)]
        )

    def commit(
        self,
        stage: int,
        step: int,
        curriculum: CurriculumTracker | None = None,
        learner: Learner | None = None,
        method: JsonObject | None = None,
    ) -> JsonObject:
        """Commit a step and return the position; without a learner the weights are those of the last commit.

        `method` is the state of the method. The run continues while a copy of the learner's state is written.
        """
        position = resume_position(stage, step, curriculum, method)
        if learner is None:
            self.journal.commit(position)
        else:
            self.journal.wait()  # the memory of its copy is reused
            self._state = learner.state_files(self._state)
            self.journal.commit(position, self._state.write, background=True)
        return position


def resume_position(
    stage: int, step: int, curriculum: CurriculumTracker | None, method: JsonObject | None = None
) -> JsonObject:
    """Return the position of a resume before a 0-based step of a stage that has begun; `method` is its state."""
    position: JsonObject = {"stage": stage, "step": step, "begun": True}
    if curriculum is not None:
        position["curriculum"] = curriculum.state
    if method:
        position["method"] = method
    return position
