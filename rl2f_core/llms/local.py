"""A model of this project's own: the student's base, another local model, or a trained adapter on either."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from rl2f_core.backends.base import Backend, Prompt, Sampling
from rl2f_core.backends.pool import Models
from rl2f_core.config import ModelConfig
from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, KNOWN_CHECKPOINT, BaseConfig
from rl2f_core.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.registry import register
from rl2f_core.rollout.tokenizer import conversation
from rl2f_core.types import TurnStop, Usage

MAX_BATCH = 64
"""Conversations that are read at once."""
COLDEST = 1e-3
"""The temperature that stands for 0: the most probable token, whatever the seed."""


@register("llm")
class LocalModel(ChatModel):
    """Runs on the run's own backend; with neither `model` nor `adapter` it is the student's base model."""

    class Config(BaseConfig):
        """A model on this machine."""

        type: Literal["local"] = "local"
        """Where the model is."""
        model: ModelConfig | None = None
        """Base model; None is the student's own, which is then held only once."""
        adapter: str | None = Field(None, json_schema_extra={**BASIC, **KNOWN_CHECKPOINT})
        """Folder of a LoRA adapter that speaks; None is the base model."""

    def __init__(self, config: Any, models: Models | None = None) -> None:
        super().__init__(config, models)
        if models is None:
            raise ConfigError("A local model is not at hand here.", value=config.model_dump(),
                              fix="Use an `openai_api` model, or a command that loads one.")  # fmt: skip

    @property
    def name(self) -> str:
        assert self.models is not None
        base = (self.config.model or self.models.student.model_config).name
        return base if self.config.adapter is None else f"{base} + {self.config.adapter}"

    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """As `ChatModel.complete`; a conversation that does not fit the context is an error of its own alone."""
        assert self.models is not None
        backend = self.models.backend(self.config.model)
        adapter = self.models.adapter(self.config.adapter, self.config.model)
        return speak(backend, adapter, requests, Sampling(max_new_tokens, max(temperature, COLDEST)))


def speak(
    backend: Backend, adapter: str | None, requests: Sequence[ChatRequest], sampling: Sampling
) -> list[Completion]:
    """The next message of each conversation from a backend; one that does not fit the context is an error of its own.

    Chat markers in the messages are made harmless. The prompts have no key, so that what the backend keeps of the
    dialogues in play stays.
    """
    prompts: dict[int, Prompt] = {}
    done: dict[int, Completion] = {}
    for i, request in enumerate(requests):
        tokens = conversation(backend.tokenizer, request.messages)
        if len(tokens) + sampling.max_new_tokens > backend.context_limit:
            error = f"{len(tokens)} tokens and {sampling.max_new_tokens} more do not fit the context of " \
                    f"{backend.model_config.name}, {backend.context_limit}."  # fmt: skip
            done[i] = Completion("", "error", Usage(prompt_tokens=len(tokens)), error)
        else:
            prompts[i] = Prompt(tokens, request.seed)
    order = sorted(prompts, key=lambda i: len(prompts[i].token_ids))
    for start in range(0, len(order), MAX_BATCH):
        batch = order[start : start + MAX_BATCH]
        began = time.perf_counter()
        said = backend.answer([prompts[i] for i in batch], sampling, adapter)
        each = (time.perf_counter() - began) / len(batch)
        for i, generation in zip(batch, said, strict=True):
            usage = Usage(
                prompt_tokens=len(prompts[i].token_ids), completion_tokens=len(generation.token_ids), seconds=each
            )
            finish: Literal["stop", "length"] = "stop" if generation.stop is TurnStop.EOS else "length"
            done[i] = Completion(backend.tokenizer.decode(generation.token_ids).strip(), finish, usage)
    return [done[i] for i in range(len(requests))]
