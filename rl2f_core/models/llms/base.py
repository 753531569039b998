"""Base class of language models for teachers and judges: conversations in, messages out.

A failure is a `Completion` with an `error` and an empty text, not an exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.types import JsonObject, Message, Usage


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue."""

    messages: tuple[Message, ...]
    """System, user and assistant messages; the last has role user."""
    seed: int
    """Sampling seed, if the model supports one."""
    schema: JsonObject | None = None
    """JSON schema of the reply; a model without structured output ignores it, so the caller validates the reply."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The next message, or an error."""

    text: str
    finish_reason: Literal["stop", "length", "error"] = "stop"
    """`length`: truncated at the token limit."""
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    """Error message for users; `text` is then empty."""


class ChatModel(ABC):
    """A language model, local (one of `models`) or remote."""

    Config: ClassVar[type[ComponentConfig]]
    config: ComponentConfig

    def __init__(self, config: ComponentConfig, models: ModelPool | None = None) -> None:
        self.config = config
        self.models = models

    @property
    @abstractmethod
    def name(self) -> str:
        """Display name for users and records, e.g. `smollm2-135m`; without secrets."""

    @abstractmethod
    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """Return the next message of each conversation, in order."""

    def price(self, usage: Usage) -> float | None:
        """Return the price of a message's tokens in US dollars, also if it came from a cache; None if unknown."""
        return None
