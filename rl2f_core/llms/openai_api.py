"""Any endpoint that speaks the OpenAI chat-completions protocol: a vLLM, llama.cpp or Ollama server, or a service.

Plain HTTP through httpx2, which the model hub's client brings along: one request is one small JSON, and retries, limits
and failures must end as values here, so a vendor's client would be more to work around than to use.

The key is read from the environment when a request is made and stands in no configuration, event, cache or message.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl2f_core import baton
from rl2f_core.fields import BASIC, KNOWN_ENDPOINT, BaseConfig
from rl2f_core.llms import _wire
from rl2f_core.llms._cache import DiskCache, key_of
from rl2f_core.llms._pace import Breaker, Pacer
from rl2f_core.llms._wire import Failure, Reply
from rl2f_core.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models import home
from rl2f_core.registry import register
from rl2f_core.types import Usage

CHARS_A_TOKEN = 3.5
"""To estimate a prompt's tokens before they are counted by the endpoint."""
BACKOFF, LONGEST_BACKOFF = 1.0, 30.0
"""Seconds before the second try, doubled for each further one up to the longest, and drawn from the upper half."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@register("llm")
class OpenAICompatible(ChatModel):
    """A model behind an endpoint."""

    class Config(BaseConfig):
        """An OpenAI-compatible endpoint."""

        type: Literal["openai_api"] = "openai_api"
        """Where the model is."""
        base_url: str = Field("http://127.0.0.1:8000/v1", max_length=500, json_schema_extra={**BASIC, **KNOWN_ENDPOINT})
        """Where `/chat/completions` is found, e.g. `https://api.openai.com/v1`; http or https."""
        model: str = Field("default", min_length=1, max_length=200, json_schema_extra=BASIC)
        """Name of the model at the endpoint."""
        api_key_env: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*_API_KEY$", json_schema_extra=BASIC)
        """Environment variable that holds the key, e.g. `OPENAI_API_KEY`; it must end in `_API_KEY`. None: no key."""
        concurrency: int = Field(4, ge=1, le=64)
        """Requests under way at once."""
        retries: int = Field(4, ge=0, le=20)
        """Further tries of a request that failed for a reason that may pass."""
        requests_per_minute: float | None = Field(None, gt=0)
        """Most requests in a minute, spread evenly; None is no limit."""
        tokens_per_minute: float | None = Field(None, gt=0)
        """Most tokens in a minute, prompts and answers together; None is no limit."""
        connect_timeout: float = Field(10.0, gt=0)
        """Seconds to reach the endpoint."""
        read_timeout: float = Field(60.0, gt=0)
        """Seconds without a byte before a try fails."""
        total_timeout: float = Field(180.0, gt=0)
        """Seconds for one message, all tries and waits together."""
        max_response_bytes: int = Field(1_000_000, ge=1000)
        """Longer answers are refused."""
        token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
        """What the endpoint calls the limit of an answer; newer OpenAI models want the second."""
        send_seed: bool = True
        """Send a seed, where the endpoint knows one; off where it refuses it."""
        extra: dict[str, Any] = Field(default_factory=dict)
        """More fields of a request, e.g. `{top_p: 0.9}`. Never a key: this is stored."""
        cache: bool = True
        """Take messages that were had before from this machine's cache, and keep new ones there."""
        breaker_failures: int = Field(3, ge=1)
        """After so many messages in a row could not be had, the endpoint is left alone for a while."""
        breaker_seconds: float = Field(30.0, gt=0)
        """For how long."""
        usd_per_million_prompt: float | None = Field(None, ge=0)
        """Price of prompt tokens, to sum up what a run cost; None where there is none."""
        usd_per_million_completion: float | None = Field(None, ge=0)
        """Price of written tokens."""

        @field_validator("base_url")
        @classmethod
        def _is_an_address(cls, value: str) -> str:
            try:
                parts = urlsplit(value)
                host, _ = parts.hostname, parts.port
            except ValueError as error:
                raise ValueError("is no address; write e.g. http://127.0.0.1:8000/v1") from error
            if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f\x7f]", value):
                raise ValueError("must be an http or https address, e.g. http://127.0.0.1:8000/v1")
            if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
                raise ValueError("must hold no user, password or query: keys come from the variable in api_key_env")
            return value.rstrip("/")

        @field_validator("extra")
        @classmethod
        def _leaves_the_rest(cls, value: dict[str, Any]) -> dict[str, Any]:
            if taken := sorted(set(value) & _wire.RESERVED):
                raise ValueError(f"cannot set {', '.join(taken)}: they have fields of their own")
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ValueError("must hold plain JSON") from error
            return value

    def __init__(self, config: Any, models: Any = None) -> None:
        super().__init__(config, models)
        self.endpoint = _endpoint(config)
        self.cache = DiskCache(home() / "llm" / "completions.sqlite") if config.cache else None

    @property
    def name(self) -> str:
        return f"{self.config.model} at {urlsplit(self.config.base_url).netloc}"

    def complete(self, requests: Sequence[ChatRequest], *, max_new_tokens: int, temperature: float) -> list[Completion]:
        """As `ChatModel.complete`; up to `concurrency` requests at once."""
        if not requests:
            return []
        ended = threading.Event()
        pool = ThreadPoolExecutor(min(self.config.concurrency, len(requests)), thread_name_prefix="llm")
        try:
            with baton.waiting(ended):
                return list(pool.map(lambda r: self._one(r, max_new_tokens, temperature, ended), requests))
        finally:
            ended.set()  # where the caller was interrupted, threads that wait come home
            pool.shutdown(wait=False, cancel_futures=True)

    def _one(self, request: ChatRequest, max_new_tokens: int, temperature: float, ended: threading.Event) -> Completion:
        began, config = time.monotonic(), self.config
        body = _wire.body(request, model=config.model, max_new_tokens=max_new_tokens, temperature=temperature,
                          limit=config.token_field, seeded=config.send_seed, extra=config.extra)  # fmt: skip
        key = key_of(base_url=config.base_url, body=body, seed=request.seed)
        held = _held(self.cache.get(key)) if self.cache is not None else None
        if held is not None:
            usage = Usage(prompt_tokens=held.prompt_tokens, completion_tokens=held.completion_tokens, cached=True,
                          cost=None if self._cost(held) is None else 0.0, seconds=time.monotonic() - began)  # fmt: skip
            return Completion(held.text, held.finish, usage)
        asked = [0]
        try:
            with self.endpoint.place(ended):
                reply = self.endpoint.ask(body, max_new_tokens, asked, ended)
        except Failure as failure:
            return Completion("", "error", Usage(requests=asked[0], seconds=time.monotonic() - began), failure.what)
        if self.cache is not None:
            self.cache.put(key, {"text": reply.text, "finish": reply.finish, "prompt_tokens": reply.prompt_tokens,
                                 "completion_tokens": reply.completion_tokens})  # fmt: skip
        usage = Usage(prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens,
                      cost=self._cost(reply), seconds=time.monotonic() - began, requests=asked[0])  # fmt: skip
        return Completion(reply.text, reply.finish, usage)

    def _cost(self, reply: Reply) -> float | None:
        """US dollars, or None where no price is configured or the endpoint counted no tokens."""
        prices = (self.config.usd_per_million_prompt, self.config.usd_per_million_completion)
        if prices == (None, None) or not reply.counted:
            return None
        return ((prices[0] or 0) * reply.prompt_tokens + (prices[1] or 0) * reply.completion_tokens) / 1e6


def _held(value: dict[str, Any] | None) -> Reply | None:
    """A message from the cache; None where what lies there is none."""
    try:
        made = Reply(**value) if value is not None else None
    except TypeError:
        return None
    if made is None or not (isinstance(made.text, str) and made.text and made.finish in ("stop", "length")):
        return None
    return made if all(isinstance(n, int) and n >= 0 for n in (made.prompt_tokens, made.completion_tokens)) else None


class Endpoint:
    """The connection to one endpoint, shared by all that ask it in this process: limits and breaker count them all."""

    def __init__(self, config: OpenAICompatible.Config) -> None:
        import httpx2

        self.config = config
        self.pacer = Pacer(config.requests_per_minute, config.tokens_per_minute)
        self.breaker = Breaker(config.breaker_failures, config.breaker_seconds)
        self.url = f"{config.base_url}/chat/completions"
        self._random = random.Random()
        self._places = threading.Semaphore(config.concurrency)
        self._client = httpx2.Client(
            follow_redirects=False,  # the key goes to the configured host alone
            trust_env=urlsplit(config.base_url).hostname not in LOOPBACK,  # a proxy does not reach this machine's own
            limits=httpx2.Limits(max_connections=config.concurrency),
            timeout=httpx2.Timeout(config.read_timeout, connect=config.connect_timeout, pool=None),
        )

    @contextmanager
    def place(self, ended: threading.Event) -> Iterator[None]:
        """One of the `concurrency` places, for the block; raises `Failure` where nobody waits for it any more."""
        while not self._places.acquire(timeout=0.2):
            if ended.is_set():
                raise Failure("Nobody waits for the message any more.", transient=False)
        try:
            yield
        finally:
            self._places.release()

    def ask(self, body: dict[str, Any], max_new_tokens: int, asked: list[int], ended: threading.Event) -> Reply:
        """The message, after as many tries as are allowed; raises `Failure`.

        Args:
            body: As `_wire.body` made it.
            max_new_tokens: For the estimate of tokens.
            asked: Its one number grows by every request that was sent.
            ended: Set where nobody waits for the message any more.
        """
        deadline = time.monotonic() + self.config.total_timeout
        data = json.dumps(body).encode()
        estimate = int(len(data) / CHARS_A_TOKEN) + max_new_tokens
        for attempt in range(self.config.retries + 1):
            state = self.breaker.state()
            if state == "open":
                raise Failure(self.breaker.refusal(), transient=True)
            last = state == "trial" or attempt == self.config.retries
            try:
                queued = self.pacer.reserve(estimate)
                deadline += queued  # the time-out is the endpoint's, not that of the limits kept here
                _sleep(queued, ended)
                key = self._key()
                asked[0] += 1
                reply = self._post(data, key, deadline)
            except Failure as failure:
                wait = self._pause(attempt, failure)
                if last or not failure.transient or ended.is_set() or time.monotonic() + wait >= deadline:
                    self.breaker.gave_up(failure.what)
                    tries = f" After {asked[0]} tries." if asked[0] > 1 else ""
                    raise Failure(failure.what + tries, transient=failure.transient) from None
                if failure.wait is not None:
                    self.pacer.hold(failure.wait)
                _sleep(wait, ended)
            else:
                self.breaker.succeeded()
                if reply.counted:
                    self.pacer.used(estimate, reply.prompt_tokens + reply.completion_tokens)
                return reply
        raise AssertionError("unreachable: the last try returns or raises")

    def _pause(self, attempt: int, failure: Failure) -> float:
        """Seconds before the next try: what the endpoint asked for, or longer each time; spread, so that not all come
        back at the same moment."""
        backoff = min(LONGEST_BACKOFF, BACKOFF * 2**attempt) * self._random.uniform(0.5, 1.0)
        return backoff if failure.wait is None else failure.wait + 0.1 * backoff

    def _post(self, data: bytes, key: str | None, deadline: float) -> Reply:
        """One try; raises `Failure`. Whatever the endpoint says, the key is not in it."""
        try:
            reply = self._exchange(data, key, deadline)
        except Failure as failure:
            raise Failure(_without(key, failure.what), transient=failure.transient, wait=failure.wait) from None
        return replace(reply, text=_without(key, reply.text))

    def _exchange(self, data: bytes, key: str | None, deadline: float) -> Reply:
        import httpx2

        headers = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "identity"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        read = min(self.config.read_timeout, max(0.1, deadline - time.monotonic()))
        timeout = httpx2.Timeout(read, connect=min(self.config.connect_timeout, read), pool=None)
        try:
            with self._client.stream("POST", self.url, content=data, headers=headers, timeout=timeout) as response:
                held = self._read(response.iter_bytes(), deadline)
                status, told = response.status_code, dict(response.headers)
        except httpx2.TimeoutException as error:
            slow = "reached" if isinstance(error, httpx2.ConnectTimeout) else "heard of"
            raise Failure(f"The endpoint was not {slow} in time.", transient=True) from None
        except httpx2.ConnectError:
            raise Failure("The endpoint cannot be reached: nothing answers at its address.", transient=True) from None
        except httpx2.TransportError as error:
            raise Failure(f"The connection broke ({type(error).__name__}).", transient=True) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise Failure(f"The answer cannot be read ({type(error).__name__}).", transient=True) from None
        if key is not None:  # before anything is shortened, which could leave the beginning of the key
            held = held.replace(key.encode(), b"[key]")
            told = {name: _without(key, value) for name, value in told.items()}
        if 200 <= status < 300:
            return _wire.read_reply(held)
        raise _wire.refusal(status, held, told)

    def _read(self, chunks: Any, deadline: float) -> bytes:
        """The whole body; raises `Failure` where it is too long or too slow."""
        held = bytearray()
        for chunk in chunks:
            held += chunk
            if len(held) > self.config.max_response_bytes:
                limit = self.config.max_response_bytes
                raise Failure(f"The answer is longer than {limit} bytes.", transient=False)
            if time.monotonic() > deadline:
                raise Failure("Out of time: the answer came too slowly.", transient=False)
        return bytes(held)

    def _key(self) -> str | None:
        """The key of the moment; raises `Failure` where it cannot be had or sent."""
        if self.config.api_key_env is None:
            return None
        key = os.environ.get(self.config.api_key_env, "").strip()
        if not key:
            raise Failure(f"The environment variable {self.config.api_key_env} holds no key.", transient=False)
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise Failure(f"The key in {self.config.api_key_env} has characters no key has.", transient=False)
        return key


def _without(key: str | None, text: str) -> str:
    return text if key is None else text.replace(key, "[key]")


def _sleep(seconds: float, ended: threading.Event) -> None:
    if seconds > 0 and ended.wait(seconds):
        raise Failure("Nobody waits for the message any more.", transient=False)


_endpoints: dict[str, Endpoint] = {}
_lock = threading.Lock()


def _endpoint(config: OpenAICompatible.Config) -> Endpoint:
    """The one connection of a configuration."""
    name = config.model_dump_json()
    with _lock:
        if name not in _endpoints:
            _endpoints[name] = Endpoint(config)
        return _endpoints[name]
