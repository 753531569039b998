"""`distill` stages: sample answers, verify and select them, and store the accepted ones as a dataset.

Every step is committed like a training step. A killed stage resumes at the last commit and, if its source is
deterministic, ends with the same dataset.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Literal, cast

from pydantic import BaseModel, Field, field_serializer

from rl2f_core import registry
from rl2f_core.common.stats.intervals import wilson
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.dialogue.dataset_store import DatasetWriter, normalize_text
from rl2f_core.dialogue.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.capabilities import Demonstrator
from rl2f_core.errors import RunError
from rl2f_core.learning.methods.base import Method
from rl2f_core.learning.methods.distill import Distill, Keep
from rl2f_core.learning.training.checkpoints import ADAPTER
from rl2f_core.learning.training.collector import group_requests
from rl2f_core.learning.training.resource_usage import ResourceUsage
from rl2f_core.learning.training.step_metrics import step_metrics
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models.process_group import current_group
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import DialogueEvent, Event, LogEvent, MetricEvent
from rl2f_core.types import DEMONSTRATION, Dialogue, FinishReason, Group, JsonObject, Message, Rollout, Task, Usage

SampleStatus = Literal["kept", "spare", "duplicate", "incorrect", "unparsable", "too_long", "leaked", "failed"]
"""Outcome of a sample: spare (correct, but not selected), too_long (correct, but an attempt is longer than the limit or
truncated), leaked (correct after a hint with a leak), failed (the source returned no answer)."""


def classify_samples(rollouts: Sequence[Rollout], keep: Keep, limit: int, taken: Container[str]) -> list[SampleStatus]:
    """Return the status of each sample of one task.

    Args:
        limit: Longest answer in tokens, including the end of the message.
        taken: Normalized answers to this problem that the dataset already contains.
    """
    statuses: list[SampleStatus] = []
    keys: set[str] = set()
    for rollout in rollouts:
        turns = rollout.dialogue.turns if rollout.dialogue.trainable else ()
        if not turns:
            statuses.append("failed")
        elif turns[-1].verdict.parsed is None:
            statuses.append("unparsable")
        elif not turns[-1].verdict.correct:
            statuses.append("incorrect")
        elif any(turn.finish_reason is not FinishReason.EOS or len(turn.token_ids) > limit for turn in turns):
            statuses.append("too_long")
        elif any(turn.hint is not None and turn.hint.read_leak for turn in turns):
            statuses.append("leaked")
        elif (key := attempts_key([turn.attempt for turn in turns])) in taken or key in keys:
            statuses.append("duplicate")
        else:
            keys.add(key)
            statuses.append("spare")
    correct = [i for i, status in enumerate(statuses) if status == "spare"]
    if keep == "shortest":
        correct.sort(key=lambda i: rollouts[i].student_tokens)
    for i in correct if keep == "all" else correct[:1]:
        statuses[i] = "kept"
    return statuses


def attempts_key(attempts: Iterable[str]) -> str:
    """Return the normalized text of a dialogue's attempts, which two duplicates share."""
    return normalize_text("\n".join(attempts))


class DistillStats(BaseModel):
    """Counts over tasks and samples."""

    drawn: int = 0
    """Tasks drawn from the environment."""
    repeats: int = 0
    """Drawn tasks that were skipped because their problem occurred before."""
    tasks: Counter[str] = Field(default_factory=Counter)
    """Sampled tasks by level."""
    kept: Counter[str] = Field(default_factory=Counter)
    """Tasks with a kept sample by level."""
    samples: Counter[str] = Field(default_factory=Counter)
    """Samples by status."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens and cost of a model source."""

    def __add__(self, other: DistillStats) -> DistillStats:
        return DistillStats(**{name: getattr(self, name) + getattr(other, name) for name in DistillStats.model_fields})

    @field_serializer("tasks", "kept", "samples")
    def _sort(self, counts: Counter[str]) -> dict[str, int]:
        return dict(sorted(counts.items()))

    def metrics(self) -> dict[str, float]:
        """Return counts, fractions of samples, and `distill/acceptance_rate`: the fraction of tasks with a kept sample.

        The acceptance rate is also given by level.
        """
        tasks, kept, samples = self.tasks.total(), self.kept.total(), self.samples.total()
        values: dict[str, float] = {
            "distill/tasks": tasks,
            "distill/kept": kept,
            "distill/repeats": self.repeats,
            "distill/kept_samples": self.samples["kept"],
            "distill/samples": samples,
        }
        if tasks:
            values["distill/acceptance_rate"] = kept / tasks
            values |= {f"distill/acceptance_rate/{level}": self.kept[level] / n for level, n in self.tasks.items()}
        if samples:
            for status in ("incorrect", "unparsable", "duplicate", "too_long", "leaked", "failed"):
                values[f"distill/frac_{status}"] = self.samples[status] / samples
        if self.usage.completion_tokens or self.usage.requests:
            names = ("prompt_tokens", "requests", "completion_tokens")
            values |= {f"source/{name}": getattr(self.usage, name) for name in names}
            if self.usage.cost is not None:
                values["source/cost"] = self.usage.cost
        return {name: float(value) for name, value in values.items()}

    def describe(self) -> str:
        """Describe the acceptance rate with its 95 % interval, also by level, and the statuses of the samples."""

        def rate(kept: int, tasks: int) -> str:
            interval = wilson(kept, tasks)
            return f"{kept} of {tasks} ({kept / tasks:.1%}, 95 % {interval.low:.1%} to {interval.high:.1%})"

        tasks, samples = self.tasks.total(), self.samples.total()
        if not tasks:
            return "no task was sampled"
        parts = [f"{rate(self.kept.total(), tasks)} tasks have a correct answer"]
        if len(self.tasks) > 1:
            parts.append("; ".join(f"{level}: {rate(self.kept[level], n)}" for level, n in sorted(self.tasks.items())))
        statuses = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in self.samples.most_common())
        parts.append(f"Of {samples} samples: {statuses}")
        if self.repeats:
            parts.append(f"{self.repeats} of {self.drawn} tasks were repeats and not sampled")
        if self.usage.cost is not None:
            parts.append(f"${self.usage.cost:,.4f}")
        return ". ".join(parts)


class Source:
    """Source of the answers: the student, the environment's worked solutions, or a model."""

    def __init__(self, engine: RolloutEngine, stage: StageConfig) -> None:
        self.config = cast(Distill.Config, stage.method)
        limit = self.config.max_new_tokens or engine.config.max_new_tokens
        self.engine = dataclasses.replace(engine, config=engine.config.model_copy(update={"max_new_tokens": limit}))
        self.temperature = engine.config.temperature
        self.policy = f"{stage.name}@0"
        self.llm: ChatModel | None = None
        if self.config.source == "llm":
            self.llm = registry.get("llm", self.config.llm.type)(self.config.llm, engine.teacher.models)

    @property
    def name(self) -> str:
        """Name for messages and records."""
        if self.llm is not None:
            return self.llm.name
        return DEMONSTRATION if self.config.source == "solution" else self.policy

    def answers(
        self, requests: Sequence[RolloutRequest], on_progress: Callable[[int, int], None]
    ) -> tuple[list[Rollout], Usage]:
        """Return one rollout per request, of up to `max_turns` attempts; without an answer its dialogue has failed."""
        llm = self.llm
        if llm is not None:
            return current_group().broadcast_from_main(lambda: self._rollouts(requests, self._complete(llm, requests)))
        if self.config.source == "solution":
            return self._rollouts(requests, self._worked_solutions(requests))
        rollouts = self.engine.run(
            requests,
            adapter=ADAPTER,
            policy=self.policy,
            max_turns=self.config.max_turns,
            temperature=self.temperature,
            on_progress=on_progress,
        )
        return rollouts, Usage()

    def _worked_solutions(self, requests: Sequence[RolloutRequest]) -> list[Completion]:
        environment = self.engine.environment
        assert isinstance(environment, Demonstrator)
        texts = [environment.worked_solution(request.task) for request in requests]
        error = "The environment has no worked solution for this task."
        return [Completion("", error=error) if text is None else Completion(text) for text in texts]

    def _complete(self, llm: ChatModel, requests: Sequence[RolloutRequest]) -> Sequence[Completion]:
        environment = self.engine.environment
        system = "\n\n".join(filter(None, (environment.system_prompt(), self.config.instruction)))
        head = [Message(role="system", content=system)] if system else []
        chats = []
        for request in requests:
            problem = environment.prompt(request.task.public)
            chats.append(ChatRequest((*head, Message(role="user", content=problem)), request.seed))
        return llm.complete(chats, max_new_tokens=self.engine.config.max_new_tokens, temperature=self.temperature)

    def _rollouts(
        self, requests: Sequence[RolloutRequest], completions: Sequence[Completion]
    ) -> tuple[list[Rollout], Usage]:
        pairs = list(zip(requests, completions, strict=True))
        self.engine.environment.prefetch_verdicts(
            [(request.task, completion.text) for request, completion in pairs if not completion.error]
        )
        rollouts = [self._rollout(request, completion) for request, completion in pairs]
        return rollouts, sum((completion.usage for completion in completions), Usage())

    def _rollout(self, request: RolloutRequest, completion: Completion) -> Rollout:
        attempts = [] if completion.error else [completion.text]
        rollout = rollout_from_text(self.engine, request, attempts, policy=self.name)
        dialogue = rollout.dialogue
        if completion.error is not None:
            dialogue = dialogue.model_copy(update={"error": completion.error})
        if completion.finish_reason == "length" and dialogue.turns:
            turn = dialogue.turns[0].model_copy(update={"finish_reason": FinishReason.LENGTH})
            dialogue = dialogue.model_copy(update={"turns": (turn,)})
        return dataclasses.replace(rollout, dialogue=dialogue)


class DistillStage:
    """Runs one `distill` stage."""

    def __init__(
        self, context: RunContext, config: RunConfig, engine: RolloutEngine, stage: StageConfig, method: Method
    ) -> None:
        self.context, self.engine, self.stage, self.method = context, engine, stage, method
        self.seed, self.first_task = config.seed, config.first_task(stage)
        self.source = Source(self.engine, stage)
        self.limit = method.config.max_kept_tokens or self.engine.config.max_new_tokens
        self.writer = DatasetWriter(context.run_dir, stage.name)
        self.stats = DistillStats()
        self.rows: list[JsonObject] = []
        self.problems: set[str] = set()
        self.texts: dict[str, set[str]] = {}

    def run(self, start: int, commit: Callable[[int], object]) -> bool:
        """Run the remaining steps, each ended by `commit`; False if `context.stop` ended the stage early."""
        context, stage = self.context, self.stage
        if start == stage.steps:  # the process died after the last commit; the dataset is published
            current_group().run_on_main(self.writer.clear)
            return True
        for part in self.writer.steps(start):
            self._add(part["rows"], DistillStats.model_validate(part["counts"]))
        for step in range(start, stage.steps):
            if context.stop():
                commit(step)
                return False
            self._run_step(step)
            commit(step + 1)
            note = f"kept {self.stats.kept.total()} of {self.stats.tasks.total()}"
            context.progress.update(f"stage {stage.name}", step + 1, stage.steps, note)
            context.run_dir.heartbeat(status="running", stage=stage.name, step=step + 1, steps=stage.steps)
        current_group().run_on_main(self.writer.clear)
        context.progress.message(f"{stage.name}: {self.stats.describe()}.")
        return True

    def _run_step(self, step: int) -> None:
        """Sample, verify and store the answers of one 0-based step; the last step publishes the dataset."""
        stage, journal, start = self.stage, self.context.journal, time.perf_counter()
        resources = ResourceUsage()
        groups, statuses, usage = self._sample(step)
        rows, stats = self._select(groups, statuses)
        stats.drawn, stats.usage = stage.tasks_per_step, usage
        stats.repeats = stage.tasks_per_step - len(groups)
        if groups and stats.samples["failed"] == stats.samples.total():
            raise RunError(
                f"The source of stage {stage.name} answered nothing in step {step + 1}: "
                f"{groups[0].rollouts[0].dialogue.error}",
                value=self.source.name,
                fix="Fix the source, then resume the run; the samples kept so far remain.",
            )
        current_group().run_on_main(lambda: self.writer.write_step(step + 1, rows, stats.model_dump()))
        self._add(rows, stats)
        resources.sample()
        measured = {"time/rollout": time.perf_counter() - start, **resources.metrics()}
        journal.emit(self._events(step + 1, groups, statuses, measured))
        if step + 1 == stage.steps:
            journal.emit([self._publish()])

    def _sample(self, step: int) -> tuple[list[Group], list[list[SampleStatus]], Usage]:
        """Return the step's groups, the status of each sample, and the source's usage."""
        stage, environment = self.stage.resolve(step, self.engine.config.temperature), self.engine.environment
        self.source.temperature = stage.temperature
        tasks: list[tuple[Task, str]] = []
        requests: list[RolloutRequest] = []
        seen: set[str] = set()
        start = self.first_task + step * stage.tasks_per_step
        for i in range(stage.tasks_per_step):
            task = environment.task("train", start + i)
            key = environment.canonical(task)
            if self.method.config.dedup_by == "task" and (key in self.problems or key in seen):
                continue
            seen.add(key)
            tasks.append((task, key))
            name = f"{stage.name}/{step + 1}/{i}"
            requests += group_requests(task, name, stage.group_size, self.seed, stage.name, step, 0, i)
        on_progress = partial(self.context.progress.update, f"{stage.name} step {step + 1} answers")
        rollouts, usage = self.source.answers(requests, on_progress) if requests else ([], Usage())
        size = stage.group_size
        groups = [Group(task, tuple(rollouts[n * size : (n + 1) * size])) for n, (task, _) in enumerate(tasks)]
        statuses = []
        taken_in_step: dict[str, set[str]] = {}
        for group, (task, key) in zip(groups, tasks, strict=True):
            scope = self._scope(task, key)
            taken = taken_in_step.setdefault(scope, set(self.texts.get(scope, ())))
            statuses.append(classify_samples(group.rollouts, self.method.config.keep, self.limit, taken))
            kept = _kept(group, statuses[-1])
            taken |= {attempts_key(turn.attempt for turn in dialogue.turns) for dialogue in kept}
        return groups, statuses, usage

    def _scope(self, task: Task, key: str) -> str:
        """Return the key within which equal answers are duplicates: the problem as worded."""
        return f"{key}|{normalize_text(self.engine.environment.prompt(task.public))}"

    def _select(
        self, groups: Sequence[Group], statuses: Sequence[Sequence[SampleStatus]]
    ) -> tuple[list[JsonObject], DistillStats]:
        """Return the rows of a step, and its counts except drawn tasks and usage."""
        rows, stats = [], DistillStats()
        for group, of_group in zip(groups, statuses, strict=True):
            stats.tasks[group.task.level] += 1
            stats.kept[group.task.level] += "kept" in of_group
            stats.samples.update(of_group)
            rows += [self._row(group.task, dialogue) for dialogue in _kept(group, of_group)]
        return rows, stats

    def _row(self, task: Task, dialogue: Dialogue) -> JsonObject:
        environment, completion = self.engine.environment, []
        for turn in dialogue.turns:
            completion.append({"role": "assistant", "content": turn.attempt})
            if turn is not dialogue.turns[-1]:
                completion.append({"role": "user", "content": turn.hint.text if turn.hint is not None else ""})
        return {
            "prompt": [dict(message) for message in self.engine.renderer.messages(environment.prompt(task.public))],
            "completion": completion,
            "task": task.id,
            "canonical": environment.canonical(task),
            "split": task.split,
            "environment": task.environment,
            "level": task.level,
            "tokens": sum(len(turn.token_ids) for turn in dialogue.turns),
            "source": self.source.name,
            "dialogue": self._event(dialogue, task, "kept", 0).id,
            "task_data": task.model_dump(mode="json"),
        }

    def _add(self, rows: Iterable[JsonObject], stats: DistillStats) -> None:
        """Add a step's rows, which later steps must not repeat, and its counts."""
        for row in rows:
            self.rows.append(dict(row))
            task = Task.model_validate(row["task_data"])
            self.problems.add(row["canonical"])
            text = attempts_key(message["content"] for message in row["completion"][::2])
            self.texts.setdefault(self._scope(task, row["canonical"]), set()).add(text)
        self.stats = self.stats + stats

    def _event(self, dialogue: Dialogue, task: Task, status: SampleStatus, step: int) -> DialogueEvent:
        return DialogueEvent.of("distill", self.stage.name, step, task, dialogue, outcome=status)

    def _events(
        self,
        step: int,
        groups: Sequence[Group],
        statuses: Sequence[Sequence[SampleStatus]],
        measured: dict[str, float],
    ) -> list[Event]:
        """Return a step's dialogues with their status, and its metrics; counts and fractions cover all steps so far."""
        events: list[Event] = [
            self._event(rollout.dialogue, group.task, status, step)
            for group, of_group in zip(groups, statuses, strict=True)
            for rollout, status in zip(group.rollouts, of_group, strict=True)
        ]
        turns = self.method.config.max_turns
        values = (step_metrics(groups, turns, self.method) if groups else {}) | self.stats.metrics() | measured
        name = self.stage.name
        return [*events, MetricEvent(id=f"metric:{name}:{step}", stage=name, step=step, values=values)]

    def _publish(self) -> LogEvent:
        """Publish the dataset; raises `RunError` if it is empty."""
        if not self.rows:
            raise RunError(
                f"Stage {self.stage.name} kept no answer: {self.stats.describe()}.",
                value=self.source.name,
                fix="Use a stronger source, more samples per task, or a larger max_new_tokens.",
            )
        manifest = {
            "environment": self.engine.environment.config.model_dump(mode="json"),
            "source": self.source.name,
            "method": self.method.config.model_dump(mode="json"),
            "counts": self.stats.model_dump(),
            "summary": self.stats.describe(),
        }
        current_group().run_on_main(lambda: self.writer.finish(self.rows, manifest))
        return LogEvent(id=f"distill:{self.stage.name}", text=f"Dataset {self.stage.name}: {self.stats.describe()}.")


def _kept(group: Group, statuses: Sequence[SampleStatus]) -> list[Dialogue]:
    return [r.dialogue for r, status in zip(group.rollouts, statuses, strict=True) if status == "kept"]
