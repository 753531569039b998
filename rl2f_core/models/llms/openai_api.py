"""Endpoints with the OpenAI chat-completions protocol: a vLLM, llama.cpp or Ollama server, or a service.

The API key is read from the environment at request time and never stored in configuration, events or cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError

from rl2f_core.models.backends import concurrency
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.llms import endpoint_config as settings
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models.llms.disk_cache import DiskCache, key_of
from rl2f_core.models.llms.protocol import LOOPBACK, Reply, replace_surrogates
from rl2f_core.models.store.store import cache_dir
from rl2f_core.registry import register
from rl2f_core.types import JsonObject, Usage

if TYPE_CHECKING:
    from rl2f_core.models.llms.endpoint import Endpoint

SEED_BITS = 31


@register("llm")
class OpenAICompatible(ChatModel):
    """A model behind an endpoint."""

    Config = settings.Config
    config: settings.Config

    def __init__(self, config: settings.Config, models: ModelPool | None = None) -> None:
        super().__init__(config, models)
        self.endpoint = _endpoint(config)
        self.cache = DiskCache(cache_dir() / "llm" / "completions") if config.cache else None

    @property
    def name(self) -> str:
        return f"{self.config.model} at {urlsplit(self.config.base_url).netloc}"

    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """Complete all conversations, up to `concurrency` at once."""
        if not requests:
            return []
        ended = threading.Event()
        work = asyncio.run_coroutine_threadsafe(self._all(requests, max_new_tokens, temperature), self.endpoint.loop)
        work.add_done_callback(lambda _: ended.set())
        try:
            with concurrency.lock_released(ended):
                ended.wait()
            return work.result()
        finally:
            work.cancel()  # after an interrupt

    async def _all(self, requests: Sequence[ChatRequest], max_new_tokens: int, temperature: float) -> list[Completion]:
        return await asyncio.gather(*(self._one(request, max_new_tokens, temperature) for request in requests))

    async def _one(self, request: ChatRequest, max_new_tokens: int, temperature: float) -> Completion:
        began, config = time.monotonic(), self.config
        body: JsonObject = {
            **config.extra,
            "model": config.model,
            "messages": [{"role": m["role"], "content": replace_surrogates(m["content"])} for m in request.messages],
            "temperature": temperature,
            config.token_field: max_new_tokens,
            "stream": False,
        }
        if config.send_seed:
            body["seed"] = request.seed & ((1 << SEED_BITS) - 1)
        schema = {} if request.schema is None else {"schema": request.schema}
        key = key_of(base_url=config.base_url, body=body, seed=request.seed, **schema)
        cached = self._read_cache(key)
        if cached is not None:
            cost = None if self.price(Usage(**_counts(cached))) is None else 0.0
            return _completion(cached, Usage(cached=True, cost=cost, seconds=time.monotonic() - began))
        if request.schema is not None:
            json_schema = {"name": "reply", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        call = await self.endpoint.ask(body, max_new_tokens)
        usage = Usage(seconds=time.monotonic() - began, requests=call.tries)
        if call.failure is not None:
            return Completion("", "error", usage, call.failure.what)
        assert call.reply is not None
        if self.cache is not None:
            self.cache.put(key, call.reply.model_dump())
        return _completion(call.reply, usage.model_copy(update={"cost": self.price(Usage(**_counts(call.reply)))}))

    def _read_cache(self, key: str) -> Reply | None:
        """Return a valid cached reply, or None."""
        with contextlib.suppress(ValidationError):
            return Reply.model_validate(self.cache.get(key), strict=True) if self.cache is not None else None
        return None

    def price(self, usage: Usage) -> float | None:
        """Return US dollars; None without a price or token counts."""
        prices = (self.config.usd_per_million_prompt, self.config.usd_per_million_completion)
        if prices == (None, None) or not usage.prompt_tokens + usage.completion_tokens:
            return None
        return ((prices[0] or 0) * usage.prompt_tokens + (prices[1] or 0) * usage.completion_tokens) / 1e6


def _completion(reply: Reply, usage: Usage) -> Completion:
    return Completion(reply.text, reply.finish_reason, usage.model_copy(update=_counts(reply)))


def _counts(reply: Reply) -> dict[str, int]:
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}


_endpoints: dict[str, Endpoint] = {}
_lock = threading.Lock()


def _endpoint(config: settings.Config) -> Endpoint:
    """Return the endpoint of a configuration, shared in this process."""
    from rl2f_core.models.llms.endpoint import Endpoint

    name = config.model_dump_json()
    with _lock:
        if name not in _endpoints:
            _endpoints[name] = Endpoint(config, use_proxy=urlsplit(config.base_url).hostname not in LOOPBACK)
        return _endpoints[name]
