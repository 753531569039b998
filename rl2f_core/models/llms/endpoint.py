"""The connection to one endpoint, through the OpenAI SDK.

The SDK builds and retries requests. `_Client` makes each try: it applies the rate limits, bounds the size of the reply
and sends only the headers that a request needs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx2

from rl2f_core.models.llms import protocol
from rl2f_core.models.llms.endpoint_config import Config
from rl2f_core.models.llms.protocol import UNSUPPORTED, Reply, RequestError
from rl2f_core.models.llms.rate_limit import CircuitBreaker, RateLimiter
from rl2f_core.types import JsonObject

CHARS_PER_TOKEN = 3.5
"""Estimate for prompts, until the endpoint reports the token count."""
_NEEDED = ("host", "connection", "user-agent", "content-type", "content-length")
"""Headers to send; the SDK adds others, some of them from the environment."""
_READ = ("retry-after", "location")
"""Response headers to keep."""
_log = logging.getLogger(__name__)


@dataclass
class Call:
    """A request for one message, over all tries. It ends with a reply or a failure."""

    estimate: int
    """Estimated tokens of prompt and completion."""
    tries: int = 0
    key: str | None = field(default=None, repr=False)
    timeout: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    reply: Reply | None = None
    failure: RequestError | None = None
    """Failure of the last try."""

    def redact(self, text: str) -> str:
        """Return `text` without the key."""
        return text if self.key is None else text.replace(self.key, "[key]")


_call: ContextVar[Call] = ContextVar("call")


class Endpoint:
    """An endpoint with its rate limiter and breaker, shared by all its users in this process.

    Requests run in the endpoint's own event loop, in a daemon thread.
    """

    def __init__(self, config: Config, *, use_proxy: bool) -> None:
        import openai  # takes a second, and most processes ask no endpoint

        self.config = config
        self.rate_limiter = RateLimiter(config.requests_per_minute, config.tokens_per_minute)
        self.breaker = CircuitBreaker(config.breaker_failures, config.breaker_seconds)
        self.supports_schemas: bool | None = None
        """The endpoint accepts `response_format`; None before the first reply to a request with it."""
        self.loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(config.concurrency)
        self._sdk = openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key="unused",  # `_Client` sends the call's key
            max_retries=config.retries,
            timeout=httpx2.Timeout(config.read_timeout, connect=config.connect_timeout, pool=None),
            http_client=_Client(
                self.rate_limiter,
                config.max_response_bytes,
                follow_redirects=False,  # the key goes to the configured host alone
                trust_env=use_proxy,
                limits=httpx2.Limits(max_connections=config.concurrency),
            ),
        )
        threading.Thread(target=self.loop.run_forever, name="llm", daemon=True).start()

    async def ask(self, body: JsonObject, max_new_tokens: int) -> Call:
        """Request a message, with retries; the result has a reply or a failure.

        If the endpoint refuses a body with `response_format` and accepts it without, the field is left out from then
        on.
        """
        call = Call(int(len(json.dumps(body)) / CHARS_PER_TOKEN) + max_new_tokens)
        async with self._slots:
            state = self.breaker.state()
            if state == "open":
                call.failure = RequestError(self.breaker.refusal(), transient=True)
                return call
            await self._exchange_supported(body, call, retries=0 if state == "trial" else self.config.retries)
            if call.failure is not None:
                self.breaker.record_failure(call.failure.what)
                tries = f" After {call.tries} tries." if call.tries > 1 else ""
                call.failure = RequestError(call.failure.what + tries, transient=call.failure.transient)
            elif call.reply is not None:
                self.breaker.record_success()
                if call.reply.counted:
                    tokens = call.reply.prompt_tokens + call.reply.completion_tokens
                    self.rate_limiter.correct_estimate(call.estimate, tokens)
        return call

    async def _exchange_supported(self, body: JsonObject, call: Call, retries: int) -> None:
        """Exchange a body, without `response_format` if the endpoint does not support it."""
        plain = {name: value for name, value in body.items() if name != "response_format"}
        if self.supports_schemas is False or plain == body:
            await self._exchange(plain, call, retries)
            return
        await self._exchange(body, call, retries)
        refusal = call.failure
        if refusal is None:
            self.supports_schemas = True
        elif refusal.status in UNSUPPORTED and not self.supports_schemas:
            call.failure = None
            await self._exchange(plain, call, retries)
            if call.failure is not None:
                call.failure = refusal
            elif self.supports_schemas is None:
                self.supports_schemas = False
                what = "%s does not support response_format; its replies are parsed without it. %s"
                _log.warning(what, self.config.base_url, refusal.what)

    async def _exchange(self, body: JsonObject, call: Call, retries: int) -> None:
        from openai import OpenAIError

        try:
            call.key = self._key()
            _call.set(call)
            async with asyncio.timeout(self.config.total_timeout) as call.timeout:
                sdk = self._sdk.with_options(max_retries=retries)
                chat = sdk.chat.completions.with_raw_response
                await chat.create(model=body["model"], messages=body["messages"], extra_body=body)
        except RequestError as failure:
            call.failure = failure
        except (OpenAIError, TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            cause = error.__cause__ if isinstance(error, OpenAIError) else None
            call.failure = call.failure or _connection_error(cause or error)

    def _key(self) -> str | None:
        """Return the current API key; raises `RequestError` if it is missing or invalid."""
        name = self.config.api_key_env
        if name is None:
            return None
        key = os.environ.get(name, "").strip()
        if not key:
            raise RequestError(f"The environment variable {name} holds no key.", transient=False)
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise RequestError(f"The key in {name} has characters no key has.", transient=False)
        return key


class _Client(httpx2.AsyncClient):
    """The SDK's HTTP client, which makes one try of a call."""

    def __init__(self, rate_limiter: RateLimiter, max_response_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._rate_limiter = rate_limiter
        self._max_response_bytes = max_response_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request within the rate limits; the SDK retries transient failures."""
        call = _call.get()
        await self._wait_for_rate_limit(call)
        call.tries += 1
        call.failure = None
        kept = {name: request.headers[name] for name in _NEEDED if name in request.headers}
        key = {} if call.key is None else {"authorization": f"Bearer {call.key}"}
        request.headers = httpx2.Headers({**kept, "accept": "application/json", "accept-encoding": "identity", **key})
        try:
            response = await super().send(request, **{**options, "stream": True})
            try:
                data = await self._read(response)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            call.failure = _connection_error(error)
            raise
        data = data if call.key is None else data.replace(call.key.encode(), b"[key]")  # before it is shortened
        headers = {name: call.redact(response.headers[name]) for name in _READ if name in response.headers}
        try:
            if not response.is_success:
                raise protocol.refusal(response.status_code, data, headers)
            reply = protocol.read_reply(data)
        except RequestError as failure:
            call.failure = RequestError(call.redact(failure.what), transient=failure.transient, status=failure.status)
            if not failure.transient:
                raise call.failure from None
            if response.is_success:
                raise httpx2.DecodingError(failure.what, request=request) from None
            headers["x-should-retry"] = "true"
        else:
            call.reply = reply.model_copy(update={"text": call.redact(reply.text)})
        return httpx2.Response(response.status_code, headers=headers, content=data, request=request)

    async def _wait_for_rate_limit(self, call: Call) -> None:
        queued = self._rate_limiter.reserve(call.estimate)
        end = call.timeout.when()
        if queued and end is not None:  # the timeout does not include waiting for the rate limit
            call.timeout.reschedule(end + queued)
        await asyncio.sleep(queued)

    async def _read(self, response: httpx2.Response) -> bytes:
        data = bytearray()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > self._max_response_bytes:
                raise RequestError(f"The reply is longer than {self._max_response_bytes} bytes.", transient=False)
        return bytes(data)


def _connection_error(error: BaseException) -> RequestError:
    """Describe a failure without a reply."""
    match error:
        case httpx2.ConnectTimeout():
            what = "The connection to the endpoint timed out."
        case httpx2.TimeoutException():
            what = "The endpoint did not reply in time."
        case httpx2.ConnectError():
            what = "The endpoint cannot be reached: nothing listens at its address."
        case httpx2.TransportError():
            what = f"The connection broke ({type(error).__name__})."
        case TimeoutError():
            what = "The total timeout expired: the reply was too slow."
        case _:
            what = f"The reply cannot be read ({type(error).__name__})."
    return RequestError(what, transient=True)
