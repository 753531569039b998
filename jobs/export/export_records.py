"""One dialogue as an export sees it, whatever it was read from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.errors import RL2FError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import LeakReport, RewardTerm, Verdict


@dataclass(frozen=True, slots=True)
class HumanLabel:
    """What one person said of a hint."""

    annotator: str
    label: str
    """leak, no_leak or unsure."""
    start: int | None = None
    end: int | None = None
    """Character span [start, end) in the hint as the teacher wrote it."""
    note: str = ""
    blind: bool = True
    """The detectors' finding was hidden when it was given."""


@dataclass(frozen=True, slots=True)
class ExportTurn:
    """An attempt and the hint after it."""

    index: int
    """0-based turn."""
    attempt: str
    verdict: Verdict
    reward: float
    """Sum of the named terms."""
    terms: tuple[RewardTerm, ...] = ()
    hint: str | None = None
    """What the student read; None where there was no hint, empty where a leak action dropped it."""
    feedback: str | None = None
    """What the teacher wrote, where a leak action changed it."""
    teacher: str = ""
    source_task: str = ""
    """The task the hint was written for, where that is another one."""
    prompt_template: str = ""
    """`name@version` of the prompt template that a model teacher was asked with."""
    error: str = ""
    """Why the teacher had no message, where `hint` stands in for one."""
    leak: LeakReport | None = None
    """The detectors' finding on what the teacher wrote; None where none ran."""
    human_labels: tuple[HumanLabel, ...] = ()

    @property
    def written(self) -> str | None:
        """The hint as the teacher wrote it: what findings and labels speak of. None where it wrote none."""
        if self.feedback is not None:
            return self.feedback
        return None if self.error else self.hint


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """One dialogue."""

    run: str
    """The run's number, or its folder's name where it is read without a database."""
    run_name: str
    dialogue: str
    """The dialogue event's id: what links and labels use."""
    task: str
    task_key: str
    """The same for the same problem in every run: a hash of environment and both halves of the task."""
    environment: str
    level: str
    split: str
    phase: str
    stage: str
    step: int
    checkpoint: str
    condition: str
    group: str
    index: int
    policy: str
    seed: int
    stop_reason: str
    system: str
    """The system message that the student read."""
    problem: str
    """The problem as the student read it."""
    answer: str
    """The gold answer: privileged."""
    steps: tuple[ExportTurn, ...] = field(default=())

    @property
    def solved_at(self) -> int:
        """1-based turn of the right answer; 0 where there was none."""
        return next((step.index + 1 for step in self.steps if step.verdict.correct), 0)

    @property
    def labeled(self) -> bool:
        """Some hint of it carries a person's label."""
        return any(step.human_labels for step in self.steps)

    def segments(self) -> Iterator[tuple[ExportTurn, ...]]:
        """The turns that belong to one conversation: after an attempt without a hint the student began afresh."""
        held: list[ExportTurn] = []
        for step in self.steps:
            held.append(step)
            if not step.hint:
                yield tuple(held)
                held = []
        if held:
            yield tuple(held)


def task_key(environment: str, public: Mapping[str, Any], privileged: Mapping[str, Any]) -> str:
    """16 hex digits that two runs share exactly when it is the same problem with the same answer."""
    text = json.dumps([environment, public, privileged], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TaskRenderer:
    """How a run's environment words its tasks; plain JSON where it cannot be had, or is of another version.

    A problem is worded from its public half alone, so that a task of another environment than the run's (a played one)
    needs no configuration; the system message does, and is then left out.
    """

    def __init__(self, environment: Any | None) -> None:
        self.environment = environment
        self._others: dict[str, Any | None] = {}

    @classmethod
    def of(cls, config: Any) -> TaskRenderer:
        """Of a run's configuration (any kind, or None)."""
        from rl2f_core.rollout.build import build_environment

        try:
            return cls(build_environment(config.environment))
        except (AttributeError, RL2FError):
            return cls(None)

    @property
    def system(self) -> str:
        """The system message, or nothing."""
        return "" if self.environment is None else self.environment.system_prompt()

    def render(self, task: Any) -> tuple[str, str]:
        """Problem and answer of a task (`rl2f_core.types.Task`)."""
        environment = self._of_task(task.environment)
        if environment is not None:
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
                return environment.prompt(task.public), environment.gold_answer(task)
        return (
            json.dumps(task.public, sort_keys=True, ensure_ascii=False),
            json.dumps(task.privileged, sort_keys=True, ensure_ascii=False),
        )

    def _of_task(self, name: str) -> Environment | None:
        if self.environment is not None and self.environment.owns_environment(name):
            return self.environment
        if name not in self._others:
            try:
                made = registry.get("environment", name)
                self._others[name] = made(made.Config())
            except (RL2FError, ValueError, TypeError):
                self._others[name] = None
        return self._others[name]


def from_event(event: DialogueEvent, run: str, run_name: str, voice: TaskRenderer) -> ExportRecord:
    """A record from a dialogue event: findings of the run's detectors, no people."""
    dialogue, task = event.dialogue, event.task
    problem, answer = voice.render(task)
    steps = []
    for turn in dialogue.turns:
        hint = turn.hint
        steps.append(
            ExportTurn(
                index=turn.index,
                attempt=turn.attempt,
                verdict=turn.verdict,
                reward=turn.reward,
                terms=tuple(sorted(turn.rewards, key=lambda term: term.name)),
                hint=None if hint is None else hint.text,
                feedback=None if hint is None else hint.feedback,
                teacher="" if hint is None else hint.teacher,
                source_task="" if hint is None else hint.source_task or "",
                prompt_template="" if hint is None else hint.prompt_template or "",
                error="" if hint is None else hint.error or "",
                leak=None if hint is None else hint.leak,
            )
        )
    return ExportRecord(
        run=run,
        run_name=run_name,
        dialogue=event.id,
        task=task.id,
        task_key=task_key(task.environment, task.public, task.privileged),
        environment=task.environment,
        level=task.level,
        split=task.split,
        phase=event.phase,
        stage=event.stage,
        step=event.step,
        checkpoint=event.checkpoint or "",
        condition=event.setting or "",
        group=dialogue.group,
        index=dialogue.index,
        policy=dialogue.policy,
        seed=dialogue.seed,
        stop_reason=dialogue.stop_reason.value,
        system=voice.system,
        problem=problem,
        answer=answer,
        steps=tuple(steps),
    )


def labels_json(labels: Sequence[HumanLabel]) -> str:
    """Return the labels of a hint as JSON text, which gives the column one type in every row."""
    return json.dumps([asdict(label) for label in labels], ensure_ascii=False)
