"""One dialogue of an export, independent of its source."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.errors import RL2FError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Message, Task, Turn

if TYPE_CHECKING:
    from jobs.db.models import LeakLabel
    from rl2f_core.common.prompt_templates import PromptTemplate
    from rl2f_core.config.rollout import RolloutConfig

SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """One dialogue with the human labels of its hints."""

    run: str
    """The run's id, or the directory's name without a database."""
    run_name: str
    event: DialogueEvent
    task_key: str
    """Equal for the same problem in every run: a hash of environment, public and privileged data."""
    prompt: tuple[Message, ...]
    """What the student reads before the first attempt."""
    problem: str
    """The problem as the student reads it, as one text."""
    answer: str
    """The gold answer: privileged; empty without one."""
    has_secret: bool
    """Hints could leak something, also without a gold answer; see `Environment.has_secret`."""
    labels: Mapping[int, Sequence[LeakLabel]] = field(default_factory=dict)
    """By turn, sorted by annotator."""
    new_prompts: Mapping[int, tuple[Message, ...] | None] = field(default_factory=dict)
    """By turn, the prompt of an attempt that does not continue the conversation; None if it cannot be rebuilt."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the dialogue."""
        return self.event.dialogue.turns

    @property
    def solved_at(self) -> int | None:
        """1-based turn of the correct attempt; 0 without one, None if the last attempt has no verdict."""
        missing = None if self.event.dialogue.solved is None else 0
        return next((turn.index + 1 for turn in self.turns if turn.verdict.correct), missing)

    def segments(self) -> Iterator[tuple[Turn, ...]]:
        """Yield the turns of each conversation: one, but the attempts of condition `resample` are independent."""
        independent = self.event.condition == "resample"
        yield from filter(None, ((turn,) for turn in self.turns) if independent else (self.turns,))

    @property
    def has_all_prompts(self) -> bool:
        """Whether the prompts of all attempts are known."""
        return None not in self.new_prompts.values()

    def conversations(self) -> Iterator[tuple[Turn, ...]]:
        """Yield the turns of each conversation of the student: those of `segments`, divided at new prompts."""
        for segment in self.segments():
            starts = [k for k, turn in enumerate(segment) if k == 0 or turn.index in self.new_prompts]
            for start, end in pairwise((*starts, len(segment))):
                yield segment[start:end]


def written(turn: Turn) -> str | None:
    """Return the hint as the teacher wrote it, which findings and labels refer to; None without a text."""
    hint = turn.hint
    return None if hint is None or hint.is_fallback or not hint.feedback.strip() else hint.feedback


def task_key(environment: str, public: Mapping[str, object], privileged: Mapping[str, object]) -> str:
    """Return 16 hexadecimal digits that are equal for the same problem with the same answer."""
    text = json.dumps([environment, public, privileged], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TaskRenderer:
    """Render tasks with a run's environment; as JSON if the environment is unavailable or of another version.

    A problem depends only on public data, so a task of another environment (an interactive task) needs no
    configuration. The system message needs one.
    """

    def __init__(self, environment: Environment | None, rollout: RolloutConfig | None = None) -> None:
        self.environment, self.rollout = environment, rollout
        self._others: dict[str, Environment | None] = {}

    @classmethod
    def of(cls, config: Any) -> TaskRenderer:
        """Create the renderer of a run's configuration (of any kind, or None)."""
        from rl2f_core.dialogue.rollout.build import build_environment

        try:
            return cls(build_environment(config.environment), getattr(config, "rollout", None))
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
        texts = (json.dumps(d, sort_keys=True, ensure_ascii=False) if d else "" for d in (task.public, task.privileged))
        problem, answer = texts
        return (*system, Message(role="user", content=problem)), problem, answer

    def has_secret(self, task: Task) -> bool:
        """Return whether a hint on a task could leak something; True without the environment."""
        environment = self._find_environment(task.environment)
        return environment is None or environment.has_secret(task)

    def new_prompts(self, record: ExportRecord) -> dict[int, tuple[Message, ...] | None]:
        """Return the prompts with `prompting: reprompt` or `enumerate`, see `ExportRecord.new_prompts`."""
        prompts: dict[int, tuple[Message, ...] | None] = {}
        for segment in record.segments():
            for k, turn in enumerate(segment):
                if turn.prompt_template is not None or turn.actions:
                    prompts[turn.index] = None
                    with contextlib.suppress(RL2FError, LookupError, TypeError, ValueError, AttributeError):
                        prompts[turn.index] = self._new_prompt(record.event.task, segment[:k], turn)
        return prompts

    @functools.cached_property
    def _reprompt(self) -> PromptTemplate | None:
        from rl2f_core.dialogue.rollout.prompting import load_reprompt_template

        return load_reprompt_template(self.rollout) if self.rollout is not None else None

    def _new_prompt(self, task: Task, earlier: Sequence[Turn], turn: Turn) -> tuple[Message, ...] | None:
        from rl2f_core.dialogue.rollout import enumeration
        from rl2f_core.dialogue.rollout.prompting import reprompt_text

        environment = self._find_environment(task.environment)
        if self.environment is None or self.rollout is None or environment is None:
            return None
        if turn.actions:
            state = enumeration.state_text(environment, task, earlier)
            text = enumeration.action_text(state, turn.actions, turn.reflection)
        else:
            template = self._reprompt
            if template is None or template.version != turn.prompt_template:
                return None
            text = reprompt_text(template, environment.prompt(task.public), earlier[-1])
        system = enumeration.system_message(self.environment, self.rollout)
        return (*((Message(role="system", content=system),) if system else ()), Message(role="user", content=text))

    def _find_environment(self, name: str) -> Environment | None:
        if self.environment is not None and self.environment.owns_environment(name):
            return self.environment
        if name not in self._others:
            try:
                component: type[Environment] = registry.get("environment", name)
                self._others[name] = component(component.Config())
            except (RL2FError, ValueError, TypeError):
                self._others[name] = None
        return self._others[name]


def from_event(
    event: DialogueEvent,
    run: str,
    run_name: str,
    renderer: TaskRenderer,
    labels: Mapping[int, Sequence[LeakLabel]] | None = None,
) -> ExportRecord:
    """Create the record of a dialogue event with the labels of its hints by turn."""
    task = event.task
    key = task_key(task.environment, task.public, task.privileged)
    ordered = {turn: sorted(given, key=attrgetter("annotator")) for turn, given in (labels or {}).items()}
    record = ExportRecord(run, run_name, event, key, *renderer.render(task), renderer.has_secret(task), ordered)
    return replace(record, new_prompts=renderer.new_prompts(record))


def labels_json(labels: Sequence[LeakLabel]) -> str:
    """Return the labels of a hint as JSON text, which gives the column one type in every row."""
    columns = ("annotator", "label", "start", "end", "note", "blind")
    return json.dumps([{name: getattr(label, name) for name in columns} for label in labels], ensure_ascii=False)
