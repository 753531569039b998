"""HTTP server of the OpenAI protocol: `/v1/models`, `/v1/chat/completions` and `/v1/completions`.

Limits: body size (413), time to send a body (408), waiting sequences (429 with `Retry-After`), context (400) and time
per request (504, or an error event in a begun stream). A client that closes its connection cancels its request.
Without an API key, only loopback names are accepted as Host, and `application/json` as body, so that pages of other
origins cannot send requests.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.model_server.protocol import (
    DEFAULT_CHAT_TOKENS,
    ApiError,
    ChatRequest,
    CompletionRequest,
    parse_request,
)
from app.model_server.responses import ResponseBuilder
from app.model_server.scheduler import ChoiceSequence, Output, Scheduler
from app.model_server.served_models import ServedModels
from app.model_server.text_stream import TextStream
from app.web.failure_limit import FailureLimit
from app.web.security import check_secret, host_name, is_loopback
from rl2f_core.errors import ModelError
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.tokenizer import HFChatTokenizer, encode_chat
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend

DISCONNECT_CHECK_SECONDS = 0.2

AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest)
T = TypeVar("T")


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server."""

    max_running: int = 32
    """Sequences that are generated together."""
    max_waiting: int = 256
    """Sequences that wait for the running ones."""
    max_model_len: int = 4096
    """Tokens of a prompt and its completion; the memory of the KV cache is proportional to it."""
    max_body_bytes: int = 4_000_000
    body_seconds: float = 30.0
    """Time for sending a body."""
    request_seconds: float = 600.0
    """Time from the body to the end of the response."""


def check_access(host: str, api_key: str | None) -> None:
    """Raise `ServerError` if other machines can reach the server and there is no API key, or a short one."""
    check_secret(
        host,
        api_key,
        "The model server can be reached from other machines, so it needs an API key",
        "Put one into the environment and name its variable: RL2F_API_KEY=… rl2f serve-model … "
        f"--host {host} --api-key-env RL2F_API_KEY.",
    )


@dataclass(eq=False)
class ActiveRequest:
    """A validated request and its sequences."""

    request: ChatRequest | CompletionRequest
    builder: ResponseBuilder
    deadline: float
    sequences: list[ChoiceSequence] = field(default_factory=list)
    outputs: asyncio.Queue[Output | ApiError] = field(default_factory=asyncio.Queue)

    def cancel(self) -> None:
        """Cancel all unfinished sequences before the next decode step."""
        for sequence in self.sequences:
            sequence.is_cancelled = True

    async def next_output(self, http: Request | None = None) -> Output:
        """Wait for an output.

        Raises `ApiError` for a failure or if the time is over, and `ClientDisconnect` if the client of `http` is gone.
        """
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise ApiError("The request exceeded its time limit.", status=504, code="timeout")
            with suppress(TimeoutError):
                wait = min(left, DISCONNECT_CHECK_SECONDS) if http is not None else left
                output = await asyncio.wait_for(self.outputs.get(), wait)
                if isinstance(output, ApiError):
                    raise output
                return output
            if http is not None and await http.is_disconnected():
                raise ClientDisconnect


class ModelServer:
    """The routes of one server.

    Args:
        models: The served models.
        backend: Their backend, with all adapters loaded.
        limits: The limits.
        api_key: Bearer token of every request; None requires a loopback Host instead.
    """

    def __init__(
        self, models: ServedModels, backend: HFBackend, limits: ServerLimits | None = None, api_key: str | None = None
    ) -> None:
        assert isinstance(backend.tokenizer, HFChatTokenizer)
        self.models, self.backend, self.tokenizer, self.api_key = models, backend, backend.tokenizer, api_key
        self.limits, self.failures = limits or ServerLimits(), FailureLimit()
        self.max_model_len = min(self.limits.max_model_len, backend.max_model_len)
        self.scheduler = Scheduler(backend, self.limits.max_running, self.limits.max_waiting)
        self.started = int(time.time())
        self._encoding = asyncio.Lock()

    def app(self) -> Starlette:
        """Return the application."""
        app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.list_models),
                Route("/v1/models/{name:path}", self.get_model),
                Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
            ]
        )
        for error in (ApiError, ClientDisconnect, HTTPException, Exception):
            app.add_exception_handler(error, _error_response)
        return app

    def close(self) -> None:
        """End the scheduler; unfinished requests fail."""
        self.scheduler.close()

    # -- routes ------------------------------------------------------------------------------------------------
    async def health(self, http: Request) -> Response:
        """Return the number of unfinished sequences; needs no API key."""
        return JSONResponse({"status": "ok", "sequences": self.scheduler.num_unfinished})

    async def list_models(self, http: Request) -> Response:
        """List the served models."""
        self._check_access(http)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self.models.names]})

    async def get_model(self, http: Request) -> Response:
        """Describe one model."""
        self._check_access(http)
        return JSONResponse(self._card(self._find_model(http.path_params["name"])))

    async def chat_completions(self, http: Request) -> Response:
        """Respond to a conversation."""
        request = await self._read(http, ChatRequest)
        self._check_choices(request.n)
        messages = [message.as_message() for message in request.messages]
        try:
            prompt = await self._encode(lambda: encode_chat(self.tokenizer, messages))
        except ModelError as error:
            raise ApiError(error.what, param="messages") from error
        room = self._check_prompt(prompt, "messages")
        max_tokens = request.max_completion_tokens or request.max_tokens or max(1, min(room, DEFAULT_CHAT_TOKENS))
        top = request.top_logprobs if request.logprobs else None
        return await self._respond(http, request, [prompt], self._sampling(request, max_tokens, top))

    async def completions(self, http: Request) -> Response:
        """Complete one or several prompts."""
        request = await self._read(http, CompletionRequest)
        if not request.prompts:
            raise ApiError("There is no prompt.", param="prompt")
        self._check_choices(len(request.prompts) * request.n)
        prompts = await self._encode(
            lambda: [tuple(self.tokenizer.encode(p)) if isinstance(p, str) else p for p in request.prompts]
        )
        for prompt in prompts:
            self._check_prompt(prompt, "prompt")
        sampling = self._sampling(request, request.max_tokens, request.logprobs, score_prompt=request.echo)
        return await self._respond(http, request, prompts, sampling)

    # -- requests ----------------------------------------------------------------------------------------------
    def _check_access(self, http: Request) -> None:
        """Raise `ApiError` without the API key, after wrong keys, or, if there is none, with a foreign Host."""
        if self.api_key is not None:
            given = http.headers.get("authorization", "").encode("latin-1")  # as it was sent
            address = http.client.host if http.client else ""
            if seconds := math.ceil(self.failures.seconds_left(address)):
                what = f"There were too many wrong API keys. Try again in {seconds} seconds."
                raise ApiError(what, status=429, code="too_many_failures", retry_after=seconds)
            if not secrets.compare_digest(given, f"Bearer {self.api_key}".encode()):
                if given:
                    self.failures.add(address)
                raise ApiError("The API key is missing or wrong.", status=401, code="invalid_api_key")
        elif not is_loopback(host_name(http.headers.get("host", ""))):
            raise ApiError("The server accepts only loopback names as Host.", status=421, code="invalid_host")

    async def _read(self, http: Request, kind: type[AnyRequest]) -> AnyRequest:
        """Read and validate the body of a request for a served model."""
        self._check_access(http)
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError("The body must have the type application/json.", status=415)
        limit = self.limits.max_body_bytes
        too_large = ApiError(f"The body has more than {limit:,} bytes.", status=413, code="body_too_large")
        declared = http.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in http.stream():
                    body += part
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise ApiError("The body did not arrive in time.", status=408, code="timeout") from None
        request = parse_request(bytes(body), kind)
        self._find_model(request.model)
        return request

    def _find_model(self, name: str) -> str:
        if name not in self.models.names:
            raise ApiError(
                f"There is no model {name[:200]!r}. Known: {', '.join(self.models.names)}.",
                status=404, code="model_not_found", param="model",
            )  # fmt: skip
        return name

    def _card(self, name: str) -> JsonObject:
        is_base = name not in self.models.adapters
        return {
            "id": name, "object": "model", "created": self.started, "owned_by": "rl2f",
            "parent": None if is_base else self.models.base_name, "max_model_len": self.max_model_len,
        }  # fmt: skip

    def _check_choices(self, count: int) -> None:
        """Raise `ApiError` if the server never accepts so many sequences at once."""
        most = self.limits.max_running + self.limits.max_waiting
        if count > most:
            raise ApiError(f"A request can have at most {most} choices in total.", param="n")

    async def _encode(self, encode: Callable[[], T]) -> T:
        """Encode prompts in another thread, since long ones take seconds; those of one request at a time."""
        async with self._encoding:
            return await run_in_threadpool(encode)

    def _check_prompt(self, prompt: Sequence[int], param: str) -> int:
        """Return how many tokens fit after a prompt. Raises `ApiError` for an invalid one."""
        if not prompt:
            raise ApiError("A prompt is empty.", param=param)
        size = self.backend.model.config.vocab_size
        if not all(0 <= token < size for token in prompt):
            raise ApiError(f"A token id is not in the vocabulary of {size} tokens.", param=param)
        return self.max_model_len - len(prompt)

    def _sampling(
        self, request: ChatRequest | CompletionRequest, max_tokens: int, top: int | None, *, score_prompt: bool = False
    ) -> SamplingParams:
        if top is None:
            return SamplingParams(max_tokens, request.temperature, request.top_p)
        from rl2f_core.models.backends.hf.token_scores import ScoredSampling

        return ScoredSampling(max_tokens, request.temperature, request.top_p, top, score_prompt)

    def _start(
        self, request: ChatRequest | CompletionRequest, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams
    ) -> ActiveRequest:
        """Submit the sequences of a request. Raises `ApiError` if they do not fit."""
        longest = max(map(len, prompts)) + sampling.max_new_tokens
        if longest > self.max_model_len:
            raise ApiError(
                f"The model's context has {self.max_model_len} tokens. The request needs {longest}: "
                f"{longest - sampling.max_new_tokens} for the prompt and {sampling.max_new_tokens} for the completion.",
                code="context_length_exceeded",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
            )
        tokenizer, loop = self.tokenizer, asyncio.get_running_loop()
        builder = ResponseBuilder(request, prompts, lambda ids: tokenizer.hf.decode(list(ids)))
        active = ActiveRequest(request, builder, time.monotonic() + self.limits.request_seconds)
        adapter = request.model if request.model in self.models.adapters else None
        seed = random.getrandbits(63) if request.seed is None else request.seed % 2**64

        def emit(output: Output | ApiError) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(active.outputs.put_nowait, output)

        active.sequences = [
            ChoiceSequence(
                index=i,
                prompt=GenerationRequest(prompts[i // request.n], choice_seed(seed, i % request.n)),
                sampling=sampling,
                adapter=adapter,
                text=TextStream(tokenizer.decode, request.stop),
                emit=emit,
                streams=request.stream,
            )
            for i in range(len(prompts) * request.n)
        ]
        self.scheduler.submit(active.sequences)
        return active

    # -- responses ---------------------------------------------------------------------------------------------
    async def _respond(
        self,
        http: Request,
        request: ChatRequest | CompletionRequest,
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
    ) -> Response:
        active = self._start(request, prompts, sampling)
        try:
            if request.stream:
                first = await active.next_output(http)  # an earlier failure has its own status
                return StreamingResponse(
                    _stream(active, first),
                    media_type="text/event-stream",
                    headers={"Cache-Control": "no-cache"},
                    background=BackgroundTask(active.cancel),  # runs after a disconnect too
                )
            outputs = [await active.next_output(http) for _ in active.sequences]
        except BaseException:
            active.cancel()
            raise
        # many logprobs take seconds
        return await run_in_threadpool(lambda: JSONResponse(active.builder.whole(outputs)))


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of a choice; that of the first choice is the request's."""
    return seed if choice == 0 else random.Random(f"{seed}:{choice}").getrandbits(63)


async def _stream(active: ActiveRequest, output: Output) -> AsyncIterator[str]:
    """Yield server-sent events, from the first output on."""
    unfinished = {sequence.index for sequence in active.sequences}
    begun: set[int] = set()
    try:
        while True:
            yield _event(active.builder.chunk(output, is_first=output.index not in begun))
            begun.add(output.index)
            if output.finish_reason is not None:
                unfinished.remove(output.index)
            if not unfinished:
                break
            output = await active.next_output()
        if active.request.stream_options.include_usage:
            yield _event(active.builder.usage_chunk())
    except ApiError as error:
        yield _event(error.body())
    finally:
        active.cancel()
    yield "data: [DONE]\n\n"


def _event(data: JsonObject) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def _error_response(http: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody receives it
    if isinstance(error, HTTPException):
        error = ApiError(f"{http.method} {http.url.path[:200]}: {error.detail}.", status=error.status_code)
    elif not isinstance(error, ApiError):
        error = ApiError("The server failed; its log has the details.", status=500, code="internal_error")
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)
