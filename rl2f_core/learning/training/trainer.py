"""The stages of a training run: starting weights, preflight, steps, commits.

A step follows from (config, seed, stage, step) and its starting weights. A run that is killed and resumed therefore
ends with the same adapter, bit for bit on the same machine.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

from rl2f_core import registry
from rl2f_core.common.file_io import read_json
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.rollout.build import build_backend, build_engine, load_reflector, with_teacher
from rl2f_core.dialogue.rollout.engine import derive_seed
from rl2f_core.errors import ConfigError, PreflightError
from rl2f_core.leaks.base import skipped_detectors
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.methods.base import Method, StepContext
from rl2f_core.learning.training.checkpoints import ADAPTER, Checkpoints
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import CurriculumTracker, tracker_for_stage
from rl2f_core.learning.training.distill_stage import DistillStage
from rl2f_core.learning.training.preflight import PreflightReport, preflight
from rl2f_core.learning.training.retained_states import StateRetainer
from rl2f_core.learning.training.step import StageSteps, dialogue_events
from rl2f_core.models.backends.base import Backend
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import LogEvent


class Trainer:
    """Runs the stages of one training run."""

    def __init__(self, config: RunConfig, context: RunContext) -> None:
        self.config, self.context, self.progress = config, context, context.progress
        self.run_dir, self.journal = context.run_dir, context.journal
        self.progress.message(f"Loading {config.model.name} …")
        self.backend = build_backend(config, self.run_dir, self.progress)
        self.engine = self._engine = build_engine(config, self.backend)
        self.position = self.journal.resume_state or {"stage": 0, "step": 0}
        self.checkpoints = Checkpoints(self.run_dir, self.journal, self.backend)
        self.retainer = StateRetainer(config, self.journal)
        self.learner = build_learner(config, self._stage_of_state(), self.backend)
        if self.journal.state_dir is not None:
            self.learner.load(self.journal.state_dir)

    def run(self) -> bool:
        """Run the remaining stages; False if `context.stop` ended the run early."""
        if self.journal.resume_state is None:
            self.context.log("environment", self.engine.environment.describe_data())
            skipped = skipped_detectors(self.config.leak_detection.detectors, self.config.environment)
            self.context.log("leaks:skipped", "\n".join(skipped))
        for index in range(self.position["stage"], len(self.config.stages)):
            stage = self.config.stages[index]
            start = self.position["step"] if index == self.position["stage"] else 0
            method, curriculum = self._set_up_stage(stage, start)
            if start == 0 and not self.position.get("begun"):
                self._begin_stage(index, stage, method, curriculum)
            if not self._run_stage(index, stage, method, start, curriculum):
                return False
            self.position = self.journal.resume_state = {"stage": index + 1, "step": 0}
        self.journal.wait()
        return True

    def run_next_step(self) -> None:
        """Run the step of the resume state alone; its stage must have begun."""
        index, step = self.position["stage"], self.position["step"]
        stage = self.config.stages[index]
        method, curriculum = self._set_up_stage(stage, step)
        self.learner.compile(stage)
        self._steps(index, method, curriculum).run_step(step)

    def _stage_of_state(self) -> StageConfig:
        """Return the stage whose weights the resume state has: the one before, if a stage has only been reached."""
        position, stages = self.position, self.config.stages
        has_begun = position["step"] or position.get("begun") or position.get("refused")
        return stages[position["stage"] if has_begun else max(0, position["stage"] - 1)]

    def _set_up_stage(self, stage: StageConfig, start: int) -> tuple[Method, CurriculumTracker | None]:
        """Set engine and learner of a stage that starts at a 0-based step; return its method and curriculum."""
        self.engine = self._engine if stage.teacher is None else with_teacher(self._engine, stage.teacher)
        method: Method[Any] = registry.get("method", stage.method.type)(stage.method)
        if start and "method" in self.position:
            method.load_state(self.position["method"])
        self._switch_learner(stage)
        if method.on_policy:
            load_reflector(self.config, self.backend, self.run_dir)
        method.begin_step(StepContext.of(self.engine, start, stage.steps))
        state = self.position.get("curriculum") if start else None
        return method, tracker_for_stage(self.config.for_stage(stage), stage, self.engine, state)

    def _steps(self, index: int, method: Method, curriculum: CurriculumTracker | None) -> StageSteps:
        parts = self.context, self.config, self.engine, self.learner, self.checkpoints, self.retainer
        return StageSteps(*parts, index, method, curriculum)

    def _run_stage(
        self, index: int, stage: StageConfig, method: Method, start: int, curriculum: CurriculumTracker | None
    ) -> bool:
        if not method.updates_weights:
            self.checkpoints.sync(self.learner, f"{stage.name}@0")
            data = DistillStage(self.context, self.config, self.engine, stage, method)
            return data.run(start, lambda step: self.checkpoints.commit(index, step))
        if self.learner.compile(stage):
            self.progress.message(f"{stage.name} is compiled: its first update may take half a minute longer.")
        return self._steps(index, method, curriculum).run(start)

    def _begin_stage(
        self, index: int, stage: StageConfig, method: Method, curriculum: CurriculumTracker | None
    ) -> None:
        """Set the starting weights, run the preflight, and commit."""
        refused = self.position.get("refused")
        if refused and not self.config.preflight.ignore_failure:
            raise PreflightError(refused["reason"], fix=refused["fix"])
        self._set_start_weights(index, stage)
        self.learner.begin_stage(method.loss_options(), stage)
        self.checkpoints.sync(self.learner, f"{stage.name}@0")
        first_task = self.config.first_task(stage)
        collector = Collector(
            self.engine, stage, self.config.seed, ADAPTER, first_task=first_task, run_dir=self.run_dir
        )
        for number, text in enumerate(method.prepare(collector, self.config.evaluation)):
            self.context.log(f"prepare:{stage.name}:{number}", text)
        if method.on_policy and not refused:
            report = self._preflight(stage, method, curriculum)
            if not report.passed and not self.config.preflight.ignore_failure:
                self._refuse(index, stage, report)
        self.position = self.checkpoints.commit(index, 0, learner=self.learner)

    def _set_start_weights(self, index: int, stage: StageConfig) -> None:
        init_adapter = self.config.lora_of(stage).init_adapter
        if stage.init_from == "base" or (index == 0 and init_adapter is None):
            self.learner.reset()
        elif stage.init_from is None and init_adapter is not None:
            self.learner.load_adapter(Path(init_adapter))
            base = read_json(Path(init_adapter) / "adapter_config.json").get("base_model_name_or_path")
            if base and not Path(base).is_dir():
                text = f"base_model_name_or_path of lora.init_adapter is {base}, which was not compared with this base."
                self.context.log(f"init_adapter:{stage.name}", text)
        elif stage.init_from is not None:
            steps = next(s.steps for s in self.config.stages if s.name == stage.init_from)
            self.learner.load_adapter(self.run_dir.checkpoint(f"{stage.init_from}@{steps}"))

    def _preflight(self, stage: StageConfig, method: Method, curriculum: CurriculumTracker | None) -> PreflightReport:
        """Run the preflight, and emit its dialogues and report."""
        self.progress.message(f"Preflight of {stage.name} …")
        report, groups = preflight(
            self.engine if curriculum is None else curriculum.engines[0],
            self.config,
            stage,
            method,
            adapter=ADAPTER,
            policy=f"{stage.name}@0",
            on_progress=partial(self.progress.update, f"{stage.name} preflight"),
            time_update=lambda samples: self.learner.seconds_of_update(samples, stage),
        )
        self.journal.emit(dialogue_events("preflight", stage.name, 0, groups))
        text = report.to_text()
        event = LogEvent(id=f"preflight:{stage.name}", level="info" if report.passed else "warning", text=text)
        self.journal.emit([event])
        self.progress.message(text)
        return report

    def _refuse(self, index: int, stage: StageConfig, report: PreflightReport) -> None:
        """Commit the preflight's dialogues and raise `PreflightError`."""
        reason = f"Stage {stage.name} is not worth starting. {report.reason}"
        fix = f"{report.fix} Or set preflight.ignore_failure=true to continue anyway."
        self.journal.commit({"stage": index, "step": 0, "refused": {"reason": reason, "fix": fix}}, self.learner.save)
        raise PreflightError(reason, fix=fix)

    def _switch_learner(self, stage: StageConfig) -> None:
        """Build another learner if the stage needs another class or adapter; weights of the same shape are kept."""
        same_shape = self.learner.shape == self.config.lora_of(stage).shape
        if type(self.learner) is learner_class(stage.trainer) and same_shape:
            return
        weights = self.learner.snapshot() if same_shape else None
        del self.learner
        gc.collect()  # two base models may not fit; TRL's trainer has reference cycles
        self.learner = build_learner(self.config, stage, self.backend)
        if weights is not None:
            self.learner.restore(weights)


def learner_class(trainer: str) -> type[Learner]:
    """Return the learner class for `StageConfig.trainer`."""
    if trainer == "trl":
        from rl2f_core.learning.learner.trl_learner import TRLLearner

        return TRLLearner
    return Learner


def build_learner(config: RunConfig, stage: StageConfig, backend: Backend) -> Learner:
    """Build the learner of a stage, with a fresh adapter on the backend's base model.

    Raises `ConfigError` if the backend has no weights, or loads adapters alone and the stage trains all weights.
    """
    if backend.folder is None:
        raise ConfigError(
            "This backend has no weights to train.", value=config.backend.type, fix="Use backend hf or vllm."
        )
    lora = config.lora_of(stage)
    if lora.full_finetuning and not backend.loads_full_weights:
        raise ConfigError(
            "This backend loads adapters alone, not all weights.", value=config.backend.type, fix="Set backend: hf."
        )
    return learner_class(stage.trainer)(
        backend.folder,
        lora,
        dtype=backend.dtype,
        device=backend.device,
        banned=backend.tokenizer.banned_token_ids,
        pad=backend.tokenizer.eos_token_id,
        seed=derive_seed(config.seed, "adapter"),
    )
