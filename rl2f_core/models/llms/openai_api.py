"""Endpoints with the OpenAI chat-completions protocol: a vLLM, llama.cpp or Ollama server, or a service.

The API key is read from the environment at request time and never stored in configuration, events or cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from rl2f_core.config.fields import BASIC_FIELD, ENDPOINT_REF, ComponentConfig
from rl2f_core.models.backends import concurrency
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models.llms.disk_cache import DiskCache, key_of
from rl2f_core.models.llms.protocol import Reply, replace_surrogates
from rl2f_core.models.store.store import cache_dir
from rl2f_core.registry import register
from rl2f_core.types import JsonObject, Usage

if TYPE_CHECKING:
    from rl2f_core.models.llms.endpoint import Endpoint

LOOPBACK = ("127.0.0.1", "localhost", "::1")
RESERVED = frozenset({
    "model", "messages", "stream", "n", "max_tokens", "max_completion_tokens", "temperature", "seed", "response_format",
})  # fmt: skip
"""Request fields that `extra` cannot set."""
SEED_BITS = 31


@register("llm")
class OpenAICompatible(ChatModel):
    """A model behind an endpoint."""

    class Config(ComponentConfig):
        """An OpenAI-compatible endpoint."""

        type: Literal["openai_api"] = "openai_api"
        """Location of the model."""
        base_url: str = Field(
            "http://127.0.0.1:8000/v1", max_length=500, json_schema_extra={**BASIC_FIELD, **ENDPOINT_REF}
        )
        """Base URL of `/chat/completions`, e.g. `https://api.openai.com/v1`; http or https."""
        model: str = Field("default", min_length=1, max_length=200, json_schema_extra=BASIC_FIELD)
        """Name of the model at the endpoint."""
        api_key_env: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*_API_KEY$", json_schema_extra=BASIC_FIELD)
        """Environment variable with the key, e.g. `OPENAI_API_KEY`; must end in `_API_KEY`. None: no key."""
        concurrency: int = Field(4, ge=1, le=64)
        """Maximum number of concurrent requests."""
        retries: int = Field(4, ge=0, le=20)
        """Retries of a request after a transient failure."""
        requests_per_minute: float | None = Field(None, gt=0)
        """Maximum requests per minute, spread evenly; None is unlimited."""
        tokens_per_minute: float | None = Field(None, gt=0)
        """Maximum prompt and completion tokens per minute; None is unlimited."""
        connect_timeout: float = Field(10.0, gt=0)
        """Seconds to connect to the endpoint."""
        read_timeout: float = Field(60.0, gt=0)
        """Seconds without a byte before a try fails."""
        total_timeout: float = Field(180.0, gt=0)
        """Seconds for one message, including all tries and waits."""
        max_response_bytes: int = Field(1_000_000, ge=1000, le=1_000_000_000)
        """Maximum size of a reply in bytes."""
        token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
        """Name of the endpoint's token limit; newer OpenAI models require the second."""
        send_seed: bool = True
        """Send a seed; turn off if the endpoint rejects it."""
        extra: JsonObject = Field(default_factory=dict)
        """Further request fields, e.g. `{top_p: 0.9}`. Never a key: this is stored."""
        cache: bool = True
        """Use the disk cache of completions."""
        breaker_failures: int = Field(3, ge=1)
        """Failed messages in a row that open the circuit breaker."""
        breaker_seconds: float = Field(30.0, gt=0)
        """Seconds until the breaker allows a try."""
        usd_per_million_prompt: float | None = Field(None, ge=0)
        """Price of prompt tokens, for the cost of a run; None if free."""
        usd_per_million_completion: float | None = Field(None, ge=0)
        """Price of completion tokens."""

        @field_validator("base_url")
        @classmethod
        def _check_base_url(cls, value: str) -> str:
            try:
                parts = urlsplit(value)
                host, _ = parts.hostname, parts.port
            except ValueError as error:
                raise ValueError("is not a URL; write e.g. http://127.0.0.1:8000/v1") from error
            if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f\x7f]", value):
                raise ValueError("must be an http or https URL, e.g. http://127.0.0.1:8000/v1")
            if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
                raise ValueError(
                    "must not contain a user, password or query: keys come from the variable in api_key_env"
                )
            return value.rstrip("/")

        @field_validator("extra")
        @classmethod
        def _check_extra(cls, value: JsonObject) -> JsonObject:
            if reserved := sorted(set(value) & RESERVED):
                raise ValueError(f"cannot set {', '.join(reserved)}: they have their own fields")
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ValueError("must be plain JSON") from error
            return value

    config: Config

    def __init__(self, config: Config, models: ModelPool | None = None) -> None:
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


def _endpoint(config: OpenAICompatible.Config) -> Endpoint:
    """Return the endpoint of a configuration, shared in this process."""
    from rl2f_core.models.llms.endpoint import Endpoint

    name = config.model_dump_json()
    with _lock:
        if name not in _endpoints:
            _endpoints[name] = Endpoint(config, use_proxy=urlsplit(config.base_url).hostname not in LOOPBACK)
        return _endpoints[name]
