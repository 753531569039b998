"""The contract of a backend: prompts of tokens in, sampled tokens with their log-probabilities out.

The prompt of every call is the whole dialogue so far; a backend that keeps state between turns finds it by the
prompt's `key` and by comparing tokens, so the caller can never be given an answer to another prompt.
Chance comes from each prompt's own seed, so a dialogue does not depend on the company it is played in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.rollout.tokenizer import ChatTokenizer
from rl2f_core.types import TurnStop


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request for a student turn."""

    token_ids: tuple[int, ...]
    seed: int
    key: str = ""
    """Names the dialogue, so that what is known of its earlier turns can be used again. Empty: nothing goes on from it,
    and what is kept of other dialogues stays."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled turn; `logprobs` in nats at the sampling temperature, over the allowed tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop


class Backend(ABC):
    """Generates and scores with one base model and any number of named adapters."""

    Config: ClassVar[type[BaseConfig]]
    tokenizer: ChatTokenizer
    context_limit: int
    """Tokens the model can attend to."""

    def __init__(self, config: Any, model: ModelConfig) -> None:
        self.config = config
        self.model_config = model

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        """Sample one turn for each prompt, in order. `adapter` None is the base model."""

    @abstractmethod
    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        """log p of every token given those before it, the first entry of each 0: in nats, at temperature 1, over the
        whole vocabulary (banned tokens stand in prompts)."""

    @abstractmethod
    def load_adapter(self, name: str, folder: Path) -> None:
        """Read a LoRA adapter in PEFT's format under a name, in place of an earlier one of that name.

        Raises `AdapterError` where it does not fit the base model.
        """

    @abstractmethod
    def forget(self) -> None:
        """Drop what is kept between turns."""
