"""Base class of teachers: privileged data and a batch of wrong attempts in, messages out."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import CONTENTLESS, NO_VERDICT_HINT, Environment
from rl2f_core.environments.capabilities import check_parts, missing_part
from rl2f_core.types import Message, Task, Turn, Usage, Verdict

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool


@dataclass(frozen=True, slots=True)
class RecordedHint:
    """A hint of a recorded dialogue, in the names of another problem."""

    text: str
    source_task: str
    """Id of the task that it was written for."""


@dataclass(frozen=True, slots=True)
class FeedbackRequest:
    """A request for a hint on one wrong attempt."""

    task: Task
    turns: tuple[Turn, ...]
    """The dialogue so far; the last turn is the wrong attempt without a hint."""
    seed: int
    """Seed of the teacher's random choices."""
    retry: int = 0
    """Number of hints for this attempt that a leak detector rejected."""
    adapter: str | None = None
    """Name of the student's adapter at its backend; None is the base model."""
    reveals_verdict: bool = True
    """The student may learn that the attempt is wrong; False if correct attempts get hints too."""
    recorded: tuple[RecordedHint, ...] = ()
    """Hints on other problems after as many attempts, best first, for teacher `shuffled`."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts so far, oldest first."""
        return tuple(turn.verdict for turn in self.turns)

    @property
    def observed(self) -> bool:
        """Whether the student reads an observation of a stateful environment after the last attempt."""
        return bool(self.turns) and self.turns[-1].verdict.observation is not None

    @property
    def fallback_hint(self) -> str:
        """Contentless replacement for a missing or leaking hint; empty if the student reads an observation."""
        if self.observed:
            return ""
        return CONTENTLESS if self.reveals_verdict else NO_VERDICT_HINT

    def rng(self) -> random.Random:
        """Return a random generator for this request."""
        return random.Random(f"{self.seed}/{len(self.turns)}/{self.retry}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """A teacher's message before leak screening."""

    text: str
    source_task: str | None = None
    """Another task that the message was written for."""
    error: str | None = None
    """Why the teacher failed; `text` is then not for the student."""
    prompt: str | None = None
    """See `Hint.prompt_template`."""
    usage: Usage | None = None
    """See `Hint.usage`."""
    planted: str | None = None
    """See `Hint.planted`."""
    ends_dialogue: bool = False
    """With an `error`: the dialogue ends as failed instead of continuing with a contentless hint."""


class Teacher(ABC):
    """Answers batches of wrong attempts.

    Args:
        config: The teacher's configuration.
        environment: Environment of all requests.
        models: Models of the run, for teachers with a model.
    """

    Config: ClassVar[type[ComponentConfig]]
    handles_correct_attempts: ClassVar[bool] = False
    """The teacher ignores the verdict, so it also works if no oracle stops the dialogue."""
    runs_async: bool = False
    """The teacher waits for generated text; a separate thread calls it while other dialogues continue."""
    requires: ClassVar[tuple[type[Environment], ...]] = ()
    """Capabilities that the environment must have."""
    unavailable_reason: ClassVar[str] = ""
    """Why runs cannot use this teacher; empty if they can."""

    def __init__(self, config: ComponentConfig, environment: Environment, models: ModelPool | None = None) -> None:
        self.config = config
        self.environment = environment
        self.models = models

    @property
    def name(self) -> str:
        """Registered name."""
        return self.config.type

    @classmethod
    def check_environment(cls, environment: ComponentConfig) -> None:
        """Raise `ValueError` if the configured environment lacks a required capability."""
        compatible = [
            name
            for name in registry.names("teacher")
            if not (cls_ := registry.get("teacher", name)).unavailable_reason
            and not missing_part(environment, cls_.requires)
        ]
        fix = f"choose another teacher ({', '.join(compatible)})"
        check_parts(environment, cls.requires, f"teacher {cls.Config.model_fields['type'].default!r}", fix)

    @classmethod
    def build_prompt(
        cls, config: ComponentConfig, environment: Environment, request: FeedbackRequest
    ) -> tuple[str, tuple[Message, ...]] | None:
        """Return the template's version and the messages that a model teacher reads, without loading a model.

        The result is None for a teacher without a prompt. Raises `ConfigError` if the template cannot be read.
        """
        return None

    @abstractmethod
    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return one message per request, in order; each depends only on its request, not on earlier calls."""
