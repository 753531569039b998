"""The contract of a teacher: it holds the privileged half, and answers a batch of wrong attempts with hints."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import CONTENTLESS, NEUTRAL, Environment
from rl2f_core.types import Task, Turn, Usage, Verdict

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models


@dataclass(frozen=True, slots=True)
class FeedbackRequest:
    """One wrong attempt that wants a hint."""

    task: Task
    turns: tuple[Turn, ...]
    """The dialogue so far; the last turn is the wrong attempt, its `hint` still None."""
    seed: int
    """Fixes whatever the teacher leaves to chance."""
    retry: int = 0
    """How many hints for this attempt were already refused by a leak detector."""
    adapter: str | None = None
    """The weights that made the attempts, by the student's backend's name for them; None is the base."""
    oracle: bool = True
    """The student may know that the attempt is wrong. False where right answers are hinted on too."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts so far, oldest first."""
        return tuple(turn.verdict for turn in self.turns)

    @property
    def contentless(self) -> str:
        """What stands in for a hint that says nothing."""
        return CONTENTLESS if self.oracle else NEUTRAL

    def rng(self) -> random.Random:
        """A generator of its own for this request."""
        return random.Random(f"{self.seed}/{len(self.turns)}/{self.retry}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """A teacher's message, before any leak detector has seen it."""

    text: str
    source_task: str | None = None
    """The task it was written for, where that is another one."""
    error: str | None = None
    """Why no hint could be had; `text` is then not for the student."""
    prompt: str | None = None
    """See `Hint.prompt`."""
    usage: Usage | None = None
    """See `Hint.usage`."""
    fatal: bool = False
    """With an `error`: the dialogue ends as failed, where the student else reads a contentless hint."""


class Teacher(ABC):
    """Answers wrong attempts. Batch-first: a model teacher answers them all in one call.

    Args:
        config: The teacher's own.
        environment: Whose tasks it teaches.
        models: The models of the run, for teachers that speak with one; None where no model is at hand.
    """

    Config: ClassVar[type[BaseConfig]]
    after_right: ClassVar[bool] = False
    """It does not know whether the attempt is right, so it can be asked where no oracle stops the dialogue."""
    waits: bool = False
    """Its answers are a model's words: it can be asked in a thread of its own, while other dialogues go on."""
    not_configurable: ClassVar[str] = ""
    """Why no run can have this teacher, where none can."""

    def __init__(self, config: Any, environment: Environment, models: Models | None = None) -> None:
        self.config = config
        self.environment = environment
        self.models = models

    @property
    def name(self) -> str:
        """The registered name."""
        return self.config.type

    @abstractmethod
    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """One message for each request, in order.  The result depends on the requests alone, not on earlier calls."""
