"""Local language model: the student's base, another model, or an adapter on either."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import ConfigError
from rl2f_core.models.backends.base import Backend, GenerationRequest, SamplingParams
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models.tokenizer import encode_chat
from rl2f_core.registry import register
from rl2f_core.types import FinishReason, Usage

MAX_BATCH = 64
"""Conversations per batch."""


@register("llm")
class LocalModel(ChatModel):
    """Generates on the run's backend; by default with the student's base model."""

    class Config(ComponentConfig):
        """A model on this machine."""

        type: Literal["local"] = "local"
        """Location of the model."""
        model: ModelConfig | None = None
        """Base model; None is the student's, which is loaded only once."""
        adapter: str | None = Field(None, json_schema_extra={**BASIC_FIELD, **CHECKPOINT_REF})
        """Folder of a LoRA adapter; None is the base model."""

    config: Config
    models: ModelPool

    def __init__(self, config: Config, models: ModelPool | None = None) -> None:
        super().__init__(config, models)
        if models is None:
            fix = "Use an `openai_api` model, or a command that loads one."
            raise ConfigError("No local model is loaded here.", value=config.model_dump(), fix=fix)

    @property
    def name(self) -> str:
        base = (self.config.model or self.models.student.model_config).name
        return base if self.config.adapter is None else f"{base} + {self.config.adapter}"

    def price(self, usage: Usage) -> float:
        """Return 0: only endpoints have prices."""
        return 0.0

    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """Generate messages; a conversation that exceeds the context returns an error."""
        backend = self.models.backend(self.config.model)
        adapter = self.models.adapter(self.config.adapter, self.config.model)
        return complete_local(backend, adapter, requests, SamplingParams(max_new_tokens, temperature))


def complete_local(
    backend: Backend, adapter: str | None, requests: Sequence[ChatRequest], sampling: SamplingParams
) -> list[Completion]:
    """Generate the next messages; a conversation beyond the context gets an error.

    Chat markers in messages are escaped. The prompts have no cache key, so they evict no dialogue from the KV cache.
    """
    prompts: dict[int, GenerationRequest] = {}
    done: dict[int, Completion] = {}
    for i, request in enumerate(requests):
        tokens = encode_chat(backend.tokenizer, request.messages)
        if len(tokens) + sampling.max_new_tokens > backend.max_model_len:
            error = (
                f"{len(tokens)} tokens and {sampling.max_new_tokens} more do not fit the context of "
                f"{backend.model_config.name}, {backend.max_model_len}."
            )
            done[i] = Completion("", "error", Usage(prompt_tokens=len(tokens)), error)
        else:
            prompts[i] = GenerationRequest(tokens, request.seed)
    order = sorted(prompts, key=lambda i: len(prompts[i].token_ids))
    for start in range(0, len(order), MAX_BATCH):
        batch = order[start : start + MAX_BATCH]
        began = time.perf_counter()
        generations = backend.generate_concurrent([prompts[i] for i in batch], sampling, adapter)
        each = (time.perf_counter() - began) / len(batch)
        for i, generation in zip(batch, generations, strict=True):
            usage = Usage(
                prompt_tokens=len(prompts[i].token_ids), completion_tokens=len(generation.token_ids), seconds=each
            )
            finish: Literal["stop", "length"] = "stop" if generation.stop is FinishReason.EOS else "length"
            done[i] = Completion(backend.tokenizer.decode(generation.token_ids).strip(), finish, usage)
    return [done[i] for i in range(len(requests))]
