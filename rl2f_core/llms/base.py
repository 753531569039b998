"""The contract of a language model that teachers and judges talk to: conversations in, messages out.

Failure is a value: what could not be had comes back as a `Completion` with an `error` and an empty text, never as an
exception and never as words that somebody could take for a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseConfig
from rl2f_core.types import Message, Usage


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation that wants the next message."""

    messages: tuple[Message, ...]
    """System, user and assistant messages; the last is a user's."""
    seed: int
    """Fixes what is left to chance, as far as the model lets it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The next message, or why there is none."""

    text: str
    finish: Literal["stop", "length", "error"] = "stop"
    """`length`: cut off at the token limit."""
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    """Why no message could be had, for people; `text` is then empty."""


class ChatModel(ABC):
    """A model behind one interface, wherever it runs.

    Args:
        config: Its own.
        models: The models of the run; None where none is at hand.
    """

    Config: ClassVar[type[BaseConfig]]

    def __init__(self, config: Any, models: Models | None = None) -> None:
        self.config = config
        self.models = models

    @property
    @abstractmethod
    def name(self) -> str:
        """Which model this is, for people and records, e.g. `smollm2-135m`; no secrets."""

    @abstractmethod
    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """The next message of each conversation, in order. Failures are values, see above."""
