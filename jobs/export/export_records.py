"""One dialogue of an export, independent of its source."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.errors import RL2FError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Message, Task, Turn

SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class HumanLabel:
    """One annotator's label of a hint."""

    annotator: str
    label: str
    """leak, no_leak or unsure."""
    start: int | None = None
    end: int | None = None
    """Character span [start, end) in the hint as the teacher wrote it."""
    note: str = ""
    blind: bool = True
    """The detector findings were hidden."""


@dataclass(frozen=True, slots=True)
class ExportTurn:
    """A turn with the labels of its hint."""

    turn: Turn
    reward: float | None
    """Sum of the reward terms; None without terms."""
    human_labels: tuple[HumanLabel, ...] = ()

    @property
    def hint(self) -> str | None:
        """The hint as the student reads it; empty if a leak action dropped it."""
        return None if self.turn.hint is None else self.turn.hint.text

    @property
    def reply(self) -> str:
        """What the student reads after the attempt: observation and hint."""
        return self.turn.reply

    @property
    def written(self) -> str | None:
        """The hint as the teacher wrote it, which findings and labels refer to; None if it wrote none."""
        hint = self.turn.hint
        return None if hint is None or hint.is_fallback else hint.feedback


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """One dialogue."""

    run: str
    """The run's id, or the directory's name without a database."""
    run_name: str
    event: DialogueEvent
    """The dialogue; turns are in `steps`."""
    task_key: str
    """Equal for the same problem in every run: a hash of environment, public and privileged data."""
    prompt: tuple[Message, ...]
    """What the student reads before the first attempt."""
    problem: str
    """The problem as the student reads it, as one text."""
    answer: str
    """The gold answer: privileged."""
    steps: tuple[ExportTurn, ...]

    @property
    def solved_at(self) -> int | None:
        """1-based turn of the correct attempt; 0 without one, None if the last attempt has no verdict."""
        missing = None if self.event.dialogue.solved is None else 0
        return next((step.turn.index + 1 for step in self.steps if step.turn.verdict.correct), missing)

    def segments(self) -> Iterator[tuple[ExportTurn, ...]]:
        """Yield the turns of each conversation: after an attempt without hint and observation, a new one begins."""
        segment: list[ExportTurn] = []
        for step in self.steps:
            segment.append(step)
            if not step.reply:
                yield tuple(segment)
                segment = []
        if segment:
            yield tuple(segment)


def task_key(environment: str, public: Mapping[str, object], privileged: Mapping[str, object]) -> str:
    """Return 16 hexadecimal digits that are equal for the same problem with the same answer."""
    text = json.dumps([environment, public, privileged], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TaskRenderer:
    """Render tasks with a run's environment; as JSON if the environment is unavailable or of another version.

    A problem depends only on public data, so a task of another environment (an interactive task) needs no
    configuration. The system message needs one.
    """

    def __init__(self, environment: Environment | None) -> None:
        self.environment = environment
        self._others: dict[str, Environment | None] = {}

    @classmethod
    def of(cls, config: Any) -> TaskRenderer:
        """Create the renderer of a run's configuration (of any kind, or None)."""
        from rl2f_core.rollout.build import build_environment

        try:
            return cls(build_environment(config.environment))
        except (AttributeError, RL2FError):
            return cls(None)

    @property
    def system(self) -> str:
        """The system message; empty without an environment."""
        return "" if self.environment is None else self.environment.system_prompt()

    def render(self, task: Task) -> tuple[tuple[Message, ...], str, str]:
        """Return the messages before the first attempt, the problem, and the answer of a task."""
        environment = self._find_environment(task.environment)
        system = (Message(role="system", content=self.system),) if self.system else ()
        if environment is not None:
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
                problem, answer = environment.prompt(task.public), environment.gold_answer(task)
                if environment is not self.environment:
                    return (*system, Message(role="user", content=problem)), problem, answer
                messages = tuple(environment.prompt_messages(task.public))
                others = [message["content"] for message in messages if message["role"] not in SYSTEM_ROLES]
                return messages, others[0] if len(others) == 1 else problem, answer
        problem, answer = (json.dumps(d, sort_keys=True, ensure_ascii=False) for d in (task.public, task.privileged))
        return (*system, Message(role="user", content=problem)), problem, answer

    def _find_environment(self, name: str) -> Environment | None:
        if self.environment is not None and self.environment.owns_environment(name):
            return self.environment
        if name not in self._others:
            try:
                component = registry.get("environment", name)
                self._others[name] = component(component.Config())
            except (RL2FError, ValueError, TypeError):
                self._others[name] = None
        return self._others[name]


def from_event(
    event: DialogueEvent, run: str, run_name: str, renderer: TaskRenderer, steps: Sequence[ExportTurn] | None = None
) -> ExportRecord:
    """Create the record of a dialogue event; `steps` are its turns with human labels, if there are any."""
    task = event.task
    prompt, problem, answer = renderer.render(task)
    if steps is None:
        steps = [ExportTurn(turn, turn.reward if turn.has_reward else None) for turn in event.dialogue.turns]
    key = task_key(task.environment, task.public, task.privileged)
    return ExportRecord(run, run_name, event, key, prompt, problem, answer, tuple(steps))


def labels_json(labels: Sequence[HumanLabel]) -> str:
    """Return the labels of a hint as JSON text, which gives the column one type in every row."""
    return json.dumps([asdict(label) for label in labels], ensure_ascii=False)
