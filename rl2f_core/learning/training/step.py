"""One training step: rollouts → samples → update → metrics and events → checkpoint and commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.dialogue.metrics.teacher_costs import teacher_costs
from rl2f_core.dialogue.rollout.engine import RolloutEngine
from rl2f_core.environments.base import Environment
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.methods.base import Method, StepContext
from rl2f_core.learning.methods.samples import mean_advantage_per_turn
from rl2f_core.learning.training.checkpoints import ADAPTER, Checkpoints, resume_position
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import CurriculumTracker
from rl2f_core.learning.training.resource_usage import ResourceUsage
from rl2f_core.learning.training.retained_states import StateRetainer
from rl2f_core.learning.training.step_metrics import (
    StepTimer,
    constant_baseline,
    part_metrics,
    progress_note,
    rollout_metrics,
    throughput,
)
from rl2f_core.models.device import trim_memory
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import DialogueEvent, Event, MetricEvent, Phase
from rl2f_core.types import Group, TrainingSample


@dataclass
class StageSteps:
    """The steps of one stage."""

    context: RunContext
    config: RunConfig
    engine: RolloutEngine
    learner: Learner
    checkpoints: Checkpoints
    retainer: StateRetainer
    index: int
    """0-based index of the stage."""
    method: Method
    curriculum: CurriculumTracker | None

    def __post_init__(self) -> None:
        self.stage = self.config.stages[self.index]
        self.timer = StepTimer()
        self.collector = Collector(
            self.engine,
            self.stage,
            self.config.seed,
            ADAPTER,
            first_task=self.config.first_task(self.stage),
            run_dir=self.context.run_dir,
            curriculum=self.curriculum,
        )

    def run(self, start: int) -> bool:
        """Run the steps from the 0-based `start`; False if `context.stop` ended the stage early."""
        for step in range(start, self.stage.steps):
            if self.context.stop():
                self.checkpoints.commit(self.index, step, self.curriculum, self.learner, self.method.state())
                return False
            position = resume_position(self.index, step, self.curriculum, self.method.state())
            self.timer.lap("other")
            self.retainer.keep_state(self.stage.name, position, self.learner)
            self.timer.lap("journal")
            self.run_step(step)
        return True

    def run_step(self, step: int) -> None:
        """Run one 0-based step."""
        context, method, now = self.context, self.method, self.collector.resolve(step)
        if not method.on_policy:
            now = now.model_copy(update={"temperature": 1.0})  # demonstrations were not sampled
        timer, usage = self.timer, ResourceUsage()

        # rollouts
        engine_of = None if self.curriculum is None else self.curriculum.engine_of
        method.begin_step(StepContext.of(self.engine, step, self.stage.steps, engine_of))
        self.collector.policy = f"{self.stage.name}@{step}"
        self.collector.on_progress = partial(context.progress.update, f"{self.stage.name} step {step + 1} rollout")
        timer.lap("other")
        if method.on_policy:
            self.checkpoints.sync(self.learner, self.collector.policy)
        timer.lap("sync")
        groups = self._collect(now, usage)

        # samples
        samples = [sample for group in groups for sample in method.samples(group)]
        options = method.loss_options()
        samples, advantage_metrics = self.learner.compute_advantages(samples, options, now)

        # update
        updated = self.learner.update(samples, options, now)
        usage.sample()
        trim_memory()
        timer.lap("update")

        # metrics and events
        discarded = self.collector.discarded_groups
        collected, resamples = [*groups, *discarded], now.max_group_resamples > 0
        turns, environments = method.max_turns(self.config.rollout.max_turns), self._environments(collected)
        values = advantage_metrics | updated
        if method.on_policy:  # demonstrations do not measure the student
            values |= rollout_metrics(groups, discarded, turns, method, resamples=resamples)
            values |= part_metrics(collected, turns, method, environments)
            values |= {"temperature": now.temperature, **constant_baseline(environments)}
        values |= teacher_costs([rollout.dialogue for group in collected for rollout in group.rollouts])
        trained = [sample for sample in samples if options.trains(sample)]
        values |= {"groups/resampled": float(len(discarded)), "group_size": float(now.group_size)}
        values |= self._advance_curriculum(step, collected)
        name, number = self.stage.name, step + 1
        events = dialogue_events("train", name, number, collected, method, samples)
        values |= usage.metrics()
        timer.lap("other")
        values |= throughput(timer.take(), collected, trained, on_policy=method.on_policy)
        events.append(MetricEvent(id=f"metric:{name}:{number}", stage=name, step=number, values=values))
        context.journal.emit(events)
        self.retainer.record_result(self.learner, name, number, events)

        # checkpoint and commit
        self._save(number)
        context.progress.update(f"stage {name}", number, self.stage.steps, progress_note(values))
        context.run_dir.heartbeat(status="running", stage=name, step=number, steps=self.stage.steps)

    def _collect(self, now: ResolvedStage, usage: ResourceUsage) -> list[Group]:
        """Return the groups of a step; of the rollout's seconds, those without generation count as waiting."""
        backend = self.engine.backend
        before = backend.seconds_generating
        groups = self.method.collect(self.collector, now)
        usage.sample()
        backend.release_memory()
        trim_memory()
        seconds, generated = self.timer.lap("rollout"), backend.seconds_generating - before
        if generated:
            self.timer.seconds |= {"rollout": generated, "waiting": seconds - generated}
        return groups

    def _environments(self, groups: Sequence[Group]) -> list[Environment]:
        """Return the environment of each group; a curriculum has one per level."""
        curriculum, environment = self.curriculum, self.engine.environment
        return [environment if curriculum is None else curriculum.environment_of(group.task) for group in groups]

    def _advance_curriculum(self, step: int, collected: Sequence[Group]) -> dict[str, float]:
        """Record the step in the curriculum, and log the start of a level."""
        curriculum, name = self.curriculum, self.stage.name
        if curriculum is None:
            return {}
        values, text = curriculum.record_step(collected, on_policy=self.method.on_policy)
        if text:
            text = f"Stage {name}, after step {step + 1}: {text}"
            self.context.log(f"curriculum:{name}:{curriculum.level + 1}", text)
        return values

    def _save(self, step: int) -> None:
        """Write the checkpoint and the commit due after a 1-based step."""
        last = step == self.stage.steps
        self.timer.lap("other")
        if last or step % self.stage.save_steps == 0:
            self.checkpoints.save(self.learner, self.stage.name, step)
        if last or step % self.stage.commit_steps == 0:
            self.checkpoints.commit(self.index, step, self.curriculum, self.learner, self.method.state())
        self.timer.lap("journal")


def dialogue_events(
    phase: Phase,
    stage: str,
    step: int,
    groups: Sequence[Group],
    method: Method | None = None,
    samples: Sequence[TrainingSample] = (),
) -> list[Event]:
    """Return one event per dialogue, with the advantages used for training if `method` is given.

    Args:
        step: 1-based step; 0 before the first.
        samples: The step's samples; those with token rewards provide advantages of the whole batch.
    """
    events: list[Event] = []
    batch_samples = {sample.dialogue: sample for sample in samples if sample.token_rewards is not None}
    for group in groups:
        trained = iter(method.advantages(group)) if method is not None and method.on_policy else iter(())
        for rollout in group.rollouts:
            dialogue = rollout.dialogue
            advantages = next(trained, None) if dialogue.trainable else None
            if dialogue.id in batch_samples:
                advantages = mean_advantage_per_turn(rollout, batch_samples[dialogue.id])
            if advantages is not None:
                turns = [t.model_copy(update={"advantage": a}) for t, a in zip(dialogue.turns, advantages, strict=True)]
                dialogue = dialogue.model_copy(update={"turns": tuple(turns)})
            events.append(DialogueEvent.of(phase, stage, step, group.task, dialogue))
    return events
