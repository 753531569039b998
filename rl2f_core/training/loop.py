"""The training loop: dialogues → rows → update → events → commit, stage after stage.  It knows no method.

What a step does is fixed by (config, seed, stage, step) and the weights it starts from, so a run that was killed and
resumed ends with the same adapter, bit for bit on the same machine.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl2f_core import registry
from rl2f_core.config import RunConfig, StageConfig
from rl2f_core.device import give_back
from rl2f_core.errors import ConfigError, PreflightError
from rl2f_core.evaluation.costs import teacher_costs
from rl2f_core.evaluation.preflight import preflight
from rl2f_core.events import CheckpointEvent, DialogueEvent, Event, LogEvent, MetricEvent
from rl2f_core.methods.base import Method, Scene
from rl2f_core.methods.rows import turn_means
from rl2f_core.ranks import here
from rl2f_core.rollout.build import build_backend, build_engine
from rl2f_core.rollout.engine import derive_seed
from rl2f_core.run import Journal, Progress, RunDir, Stop, announce, sha256
from rl2f_core.training.collect import Collector
from rl2f_core.training.curriculum import Course, course_of
from rl2f_core.training.metrics import floor_of, part_metrics, step_metrics
from rl2f_core.types import Group, Sample

if TYPE_CHECKING:
    from rl2f_core.training.learner import Learner

ADAPTER = "policy"
"""The backend's name for the weights in training."""


class Trainer:
    """Runs the stages of one training run."""

    def __init__(self, config: RunConfig, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> None:
        self.config, self.run_dir, self.journal, self.stop, self.progress = config, run_dir, journal, stop, progress
        progress.say(f"Loading {config.model.name} …")
        self.backend = build_backend(config, run_dir, progress)
        self.engine = build_engine(config, self.backend)
        base: Any = self.backend
        if not hasattr(base, "folder"):
            raise ConfigError(
                "This backend has no weights to train.", value=config.backend.type, fix="Use backend hf or vllm."
            )
        self.position = journal.position or {"stage": 0, "step": 0}
        self.learner = self._learner(config.stages[min(self.position["stage"], len(config.stages) - 1)])
        self.base_weights = self.learner.snapshot()
        if config.lora.start is not None:
            self.learner.load_adapter(Path(config.lora.start))
        self.start_weights = self.learner.snapshot()
        self.synced: str | None = None
        if journal.folder is not None:
            self.learner.load(journal.folder)

    def _learner(self, stage: StageConfig) -> Learner:
        """A learner of the kind that a stage asks for, with fresh weights."""
        base: Any = self.backend
        return learner_kind(stage.trainer)(
            base.folder,
            self.config.lora,
            dtype=base.dtype,
            device=base.device,
            banned=self.backend.tokenizer.banned_ids,
            pad=self.backend.tokenizer.end_id,
            seed=derive_seed(self.config.seed, "adapter"),
        )

    def _hand_over(self, stage: StageConfig) -> None:
        """Give the weights to a learner of the kind that a stage asks for, where the present one is of another."""
        if type(self.learner) is learner_kind(stage.trainer):
            return
        weights = self.learner.snapshot()
        del self.learner
        gc.collect()  # two bases at once may not fit, and TRL's trainer holds itself
        self.learner = self._learner(stage)
        self.learner.restore(weights)

    def run(self) -> bool:
        """All stages that are left; False where `stop` ended it early."""
        if self.journal.position is None:
            announce(self.journal, self.progress, "environment", self.engine.environment.about())
        for index in range(self.position["stage"], len(self.config.stages)):
            stage = self.config.stages[index]
            method: Method = registry.get("method", stage.method.type)(stage.method)
            start = self.position["step"] if index == self.position["stage"] else 0
            self._hand_over(stage)
            method.begin(Scene.of(self.engine, start, stage.steps))
            course = course_of(self.config, stage, self.engine, self.position.get("curriculum") if start else None)
            if start == 0 and not self.position.get("begun"):
                self._begin(index, stage, method, course)
            if not self._stage(index, stage, method, start, course):
                return False
            self.position = self.journal.position = {"stage": index + 1, "step": 0}
        return True

    # -- one stage ---------------------------------------------------------------------------------------------
    def _begin(self, index: int, stage: StageConfig, method: Method, course: Course | None) -> None:
        """Set the starting weights, check that there is something to learn, and commit."""
        from rl2f_core.training.losses import LossConfig

        refused = self.position.get("refused")
        if refused and not self.config.preflight.override:
            raise PreflightError(refused["reason"], fix=refused["fix"])
        if stage.start_from == "base":
            self.learner.restore(self.base_weights)
        elif stage.start_from is None and index == 0:
            self.learner.restore(self.start_weights)
        elif stage.start_from is not None:
            steps = next(s.steps for s in self.config.stages if s.name == stage.start_from)
            self.learner.load_adapter(self.run_dir.checkpoint(f"{stage.start_from}@{steps}"))
        self.learner.begin(LossConfig(**method.loss_options()), stage)
        self._sync(f"{stage.name}@0")
        collector = Collector(self.engine, stage, self.config.seed, ADAPTER, run_dir=self.run_dir)
        for number, text in enumerate(method.prepare(collector, self.config.evaluation)):
            announce(self.journal, self.progress, f"prepare:{stage.name}:{number}", text)
        if method.on_policy and not refused:
            self._preflight(index, stage, method, course)
        self.position = {"stage": index, "step": 0, "begun": True}
        self.journal.commit(self.position, self.learner.save)

    def _preflight(self, index: int, stage: StageConfig, method: Method, course: Course | None) -> None:
        """Play and judge; where the stage is refused, its dialogues are committed all the same, to be read."""
        self.progress.say(f"Preflight of {stage.name} …")
        report, groups = preflight(
            self.engine if course is None else course.engines[0],
            self.config,
            stage,
            method,
            adapter=ADAPTER,
            policy=f"{stage.name}@0",
            advanced=self._ticker(f"{stage.name} preflight"),
            time_update=lambda samples: self.learner.seconds_of_update(samples, stage.at(0)),
        )
        self.journal.emit(self._dialogues(stage, 0, groups, "preflight"))
        level: Any = "info" if report.passed else "warning"
        text = report.to_text()
        self.journal.emit([LogEvent(id=f"preflight:{stage.name}", level=level, text=text)])
        self.progress.say(text)
        if not report.passed and not self.config.preflight.override:
            reason = f"Stage {stage.name} is not worth starting. {report.reason}"
            fix = f"{report.fix} Or set preflight.override=true to go on all the same."
            self.journal.commit(
                {"stage": index, "step": 0, "refused": {"reason": reason, "fix": fix}}, self.learner.save
            )
            raise PreflightError(reason, fix=fix)

    def _stage(self, index: int, stage: StageConfig, method: Method, start: int, course: Course | None) -> bool:
        from rl2f_core.training.losses import LossConfig

        if not method.trains:
            from rl2f_core.training.distilling import DataStage

            self._sync(f"{stage.name}@0")
            data = DataStage(self, stage, method, ADAPTER)
            return data.run(start, lambda step: self._commit(index, step, save=False))
        collector = Collector(self.engine, stage, self.config.seed, ADAPTER, run_dir=self.run_dir, course=course)
        if self.learner.compile(stage):
            self.progress.say(f"{stage.name} is compiled: its first update may take half a minute longer.")
        for step in range(start, stage.steps):
            if self.stop():
                self._commit(index, step, course)
                return False
            now = stage.at(step)
            sampled_at = now.temperature or self.config.rollout.temperature
            temperature = sampled_at if method.on_policy else 1.0  # demonstrations were not sampled
            clock = _Clock()
            method.begin(Scene.of(self.engine, step, stage.steps))
            collector.policy = f"{stage.name}@{step}"
            collector.advanced = self._ticker(f"{stage.name} step {step + 1} rollout")
            if method.on_policy:
                self._sync(collector.policy)
            clock.lap("sync")
            groups = method.collect(collector, step)
            self.backend.rest()
            give_back()
            clock.lap("rollout")
            samples = [sample for group in groups for sample in method.samples(group)]
            options = LossConfig(**method.loss_options())
            samples, credited = self.learner.credit(samples, options, now, temperature)
            metrics = credited | self.learner.update(samples, options, now, step, temperature)
            give_back()
            clock.lap("update")
            turns = method.max_turns(self.config.rollout.max_turns)
            values = {**step_metrics(groups, turns, method), **metrics}
            own = self.engine.environment
            worlds = [own if course is None else course.environment_of(group.task) for group in groups]
            values |= part_metrics(groups, turns, method, worlds)
            played = [*groups, *collector.replaced]
            values |= teacher_costs([rollout.dialogue for group in played for rollout in group.rollouts])
            values |= _speed(clock.seconds, played, samples, method) | {
                "groups/redrawn": float(len(collector.replaced)),
                "group_size": float(now.group_size),
            }
            if method.on_policy:  # demonstrations say nothing of the student, so there is nothing to hold against it
                values["temperature"] = temperature
                values["floor"] = floor_of(worlds)
            if course is not None:
                values |= self._advance(course, stage, step, played, method)
            self.journal.emit(self._dialogues(stage, step + 1, played, "train", method, samples))
            event = MetricEvent(id=f"metric:{stage.name}:{step + 1}", stage=stage.name, step=step + 1, values=values)
            self.journal.emit([event])
            if (step + 1) % stage.save_every == 0 or step + 1 == stage.steps:
                self._checkpoint(stage, step + 1)
            if (step + 1) % stage.commit_every == 0 or step + 1 == stage.steps:
                self._commit(index, step + 1, course)
            self.progress.update(f"stage {stage.name}", step + 1, stage.steps, _note(values))
            self.run_dir.heartbeat(status="running", stage=stage.name, step=step + 1, steps=stage.steps)
        return True

    def _advance(
        self, course: Course, stage: StageConfig, step: int, played: Sequence[Group], method: Method
    ) -> dict[str, float]:
        """Let the curriculum see what a step played, and say where the next level begins."""
        values, text = course.after(played, on_policy=method.on_policy)
        if text:
            said = f"Stage {stage.name}, after step {step + 1}: {text}"
            announce(self.journal, self.progress, f"curriculum:{stage.name}:{course.level + 1}", said)
        return values

    def _commit(self, stage: int, step: int, course: Course | None = None, *, save: bool = True) -> None:
        """Commit a step; without `save` the weights are those of the last commit."""
        position: dict[str, Any] = {"stage": stage, "step": step, "begun": True}
        if course is not None:
            position["curriculum"] = course.state
        self.journal.commit(position, self.learner.save if save else None)

    def _sync(self, version: str) -> None:
        """Give the sampler the learner's weights."""
        if self.synced == version:
            return
        folder, ranks = self.run_dir.path / ".sync", here()
        ranks.alone(lambda: folder.mkdir(exist_ok=True))
        self.learner.save_adapter(folder)
        ranks.wait()
        self.backend.load_adapter(ADAPTER, folder)
        ranks.wait()
        if ranks.main:
            shutil.rmtree(folder)
        self.synced = version

    def _checkpoint(self, stage: StageConfig, step: int) -> None:
        name = f"{stage.name}@{step}"
        folder, fresh = self.run_dir.checkpoints / name, self.run_dir.checkpoints / f".{name}.tmp"
        if here().main:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
        self.learner.save_adapter(fresh)
        if not here().main:
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(fresh, folder)
        digest = sha256(folder / "adapter_model.safetensors")
        path = str(folder.relative_to(self.run_dir.path))
        event = CheckpointEvent(
            id=f"checkpoint:{name}", name=name, stage=stage.name, step=step, path=path, sha256=digest
        )
        self.journal.emit([event])

    def _dialogues(
        self,
        stage: StageConfig,
        step: int,
        groups: Sequence[Group],
        phase: Any,
        method: Method | None = None,
        samples: Sequence[Sample] = (),
    ) -> list[Event]:
        """One event a dialogue, with the advantages it was trained with."""
        events: list[Event] = []
        whole = {sample.dialogue: sample for sample in samples if sample.rewards is not None}
        for group in groups:
            trained = iter(method.advantages(group)) if method is not None and method.on_policy else iter(())
            for rollout in group.rollouts:
                dialogue = rollout.dialogue
                advantages = next(trained, None) if dialogue.trainable else None
                if dialogue.id in whole:
                    advantages = turn_means(rollout, whole[dialogue.id])
                if advantages is not None:
                    turns = [
                        t.model_copy(update={"advantage": a}) for t, a in zip(dialogue.turns, advantages, strict=True)
                    ]
                    dialogue = dialogue.model_copy(update={"turns": tuple(turns)})
                events.append(DialogueEvent.of(phase, stage.name, step, group.task, dialogue))
        return events

    def _ticker(self, phase: str) -> Any:
        return lambda done, total: self.progress.update(phase, done, total)


def learner_kind(trainer: str) -> type[Learner]:
    """The class that trains a stage, by `StageConfig.trainer`."""
    if trainer == "trl":
        from rl2f_core.training.trl_adapter import TRLLearner

        return TRLLearner
    from rl2f_core.training.learner import Learner

    return Learner


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def _speed(
    seconds: dict[str, float], groups: Sequence[Group], samples: Sequence[Sample], method: Method
) -> dict[str, float]:
    """Seconds by phase, and tokens: those that the student sampled, or the demonstrated ones that it imitates."""
    student = sum(r.student_tokens for g in groups for r in g.rollouts)
    rows = sum(len(s.token_ids) for s in samples)
    return {
        **{f"seconds/{name}": value for name, value in seconds.items()},
        f"tokens/{'student' if method.on_policy else 'demonstrated'}": float(student),
        "tokens/trained": float(sum(s.weighted for s in samples)),
        "tokens_per_second/rollout": student / max(seconds["rollout"], 1e-9),
        "tokens_per_second/update": rows / max(seconds["update"], 1e-9),
    }


def _note(values: dict[str, float]) -> str:
    shown = {"loss": "loss/ce", "reward": "reward", "kept": "retention", "mixed": "groups/frac_mixed"}
    return "  ".join(f"{label} {values[key]:.2f}" for label, key in shown.items() if key in values)


def checkpoints_to_evaluate(config: RunConfig, run_dir: RunDir) -> list[str]:
    """The names that `evaluation.checkpoints` stands for, in order."""
    names: list[str] = []
    for entry in config.evaluation.checkpoints:
        names += [f"{s.name}@{s.steps}" for s in config.stages if s.trains] if entry == "stages" else [entry]
    return list(dict.fromkeys(names))
