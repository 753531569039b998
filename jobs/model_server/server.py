"""HTTP server of the OpenAI protocol: `/v1/models`, `/v1/chat/completions` and `/v1/completions`.

Limits: body size (413), time to send a body (408), waiting sequences (429 with `Retry-After`), context (400) and time
per request (504, or an error event in a begun stream). A client that closes its connection cancels its request.
Without an API key, only loopback names are accepted as Host, and `application/json` as body, so that pages of other
origins cannot send requests.

Requests with the studio's token may name any weights (`source`) and use three more routes:

| route | |
|---|---|
| `POST /v1/tasks/turns` | the next turn of an interactive task |
| `POST /models` | serve more models: an object of names and `ModelSource` |
| `GET /state` | what is in memory and served |
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
from dataclasses import dataclass
from typing import TypeVar

import psutil
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jobs.http_access import FailureLimit, host_name, is_loopback
from jobs.model_server.generation_loop import ChoiceSequence, Event, GenerationLoop, Output
from jobs.model_server.limits import ServerLimits
from jobs.model_server.models import BaseInfo, base_info, base_name
from jobs.model_server.protocol import (
    DEFAULT_CHAT_TOKENS,
    ApiError,
    ChatRequest,
    CompletionRequest,
    ModelSource,
    TaskRequest,
    parse_request,
)
from jobs.model_server.responses import ResponseBuilder
from jobs.model_server.tasks import TaskTurn
from jobs.model_server.text_stream import TextStream
from rl2f_core.dialogue.rollout.request import turn_seed
from rl2f_core.errors import ModelError, RL2FError
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.tokenizer import encode_chat
from rl2f_core.types import JsonObject

DISCONNECT_CHECK_SECONDS = 0.2

AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest, TaskRequest)
AnyOf = ChatRequest | CompletionRequest
Prompts = Sequence[tuple[int, ...]]
T = TypeVar("T")


@dataclass(eq=False)
class ActiveRequest:
    """A validated request and its sequences."""

    builder: ResponseBuilder
    deadline: float
    sequences: list[ChoiceSequence]
    events: asyncio.Queue[Event]

    def cancel(self) -> None:
        """Cancel all unfinished sequences before the next decode step."""
        for sequence in self.sequences:
            sequence.is_cancelled = True

    async def next_event(self, http: Request | None = None) -> Output | JsonObject | str:
        """Wait for an event.

        Raises `ApiError` for a failure or if the time is over, and `ClientDisconnect` if the client of `http` is gone.
        """
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise ApiError("The request exceeded its time limit.", status=504, code="timeout")
            with suppress(TimeoutError):
                wait = min(left, DISCONNECT_CHECK_SECONDS) if http is not None else left
                event = await asyncio.wait_for(self.events.get(), wait)
                if isinstance(event, ApiError):
                    raise event
                return event
            if http is not None and await http.is_disconnected():
                raise ClientDisconnect


class ModelServer:
    """The routes of one server.

    Args:
        limits: The limits.
        models: The served models by name.
        api_key: Bearer token of every request; None requires a loopback Host instead.
        studio_token: Bearer token of the studio's requests; None refuses them.
        on_idle: Called when the model was unloaded after the idle time and nothing is served.
    """

    def __init__(
        self,
        limits: ServerLimits,
        models: dict[str, ModelSource],
        api_key: str | None = None,
        studio_token: str | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        self.limits, self.models, self.api_key, self.studio_token = limits, models, api_key, studio_token
        self.failures = FailureLimit()
        self.loop = GenerationLoop(limits, models, lambda: models or on_idle())
        self.started, self.num_requests = int(time.time()), 0
        self._encoding = asyncio.Lock()

    def app(self) -> Starlette:
        """Return the application."""
        app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/state", self.state),
                Route("/models", self.serve_models, methods=["POST"]),
                Route("/v1/models", self.list_models),
                Route("/v1/models/{name:path}", self.get_model),
                Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/tasks/turns", self.task_turns, methods=["POST"]),
            ]
        )
        for error in (RL2FError, ClientDisconnect, HTTPException, Exception):
            app.add_exception_handler(error, _error_response)
        return app

    def load_models(self) -> None:
        """Load all served models before the first request. Raises `ModelError` or `AdapterError`."""
        for name, source in self.models.items():
            self.loop.loader.load(name, source)

    def close(self) -> None:
        """End the loop; unfinished requests fail."""
        self.loop.close()

    # -- routes ------------------------------------------------------------------------------------------------
    async def health(self, http: Request) -> Response:
        """Return the number of unfinished sequences; needs no API key."""
        return JSONResponse({"status": "ok", "sequences": self.loop.num_unfinished})

    async def state(self, http: Request) -> Response:
        """Return what is in memory and served, and the number of other clients' requests."""
        self._check_access(http, studio=True)
        state = {
            "served": list(self.models),
            "requests": self.num_requests,
            "bytes": psutil.Process().memory_info().rss,
        }
        return JSONResponse({**self.loop.loader.state(), **state, "sequences": self.loop.num_unfinished})

    async def serve_models(self, http: Request) -> Response:
        """Serve more models."""
        self._check_access(http, studio=True)
        self.models.update(TypeAdapter(dict[str, ModelSource]).validate_json(await http.body()))
        return JSONResponse({"served": list(self.models)})

    async def list_models(self, http: Request) -> Response:
        """List the served models."""
        self._check_access(http)
        return JSONResponse({"object": "list", "data": [await self._card(name) for name in self.models]})

    async def get_model(self, http: Request) -> Response:
        """Describe one model."""
        self._check_access(http)
        return JSONResponse(await self._card(http.path_params["name"]))

    async def chat_completions(self, http: Request) -> Response:
        """Respond to a conversation."""
        request, source, base = await self._read(http, ChatRequest)
        self._check_choices(request.n)
        messages = [message.as_message() for message in request.messages]
        try:
            prompt = await self._encode(lambda: encode_chat(base.tokenizer, messages))
        except ModelError as error:
            raise ApiError(error.what, param="messages") from error
        room = self._check_prompt(base, prompt, "messages")
        max_tokens = request.max_completion_tokens or request.max_tokens or max(1, min(room, DEFAULT_CHAT_TOKENS))
        sampling = _sampling(request, max_tokens, request.top_logprobs if request.logprobs else None)
        return await _respond(http, self._start(request, source, [prompt], sampling))

    async def completions(self, http: Request) -> Response:
        """Complete one or several prompts."""
        request, source, base = await self._read(http, CompletionRequest)
        if not request.prompts:
            raise ApiError("There is no prompt.", param="prompt")
        self._check_choices(len(request.prompts) * request.n)
        prompts = await self._encode(
            lambda: [tuple(base.tokenizer.encode(p)) if isinstance(p, str) else p for p in request.prompts]
        )
        for prompt in prompts:
            self._check_prompt(base, prompt, "prompt")
        sampling = _sampling(request, request.max_tokens, request.logprobs, score_prompt=request.echo)
        return await _respond(http, self._start(request, source, prompts, sampling))

    async def task_turns(self, http: Request) -> Response:
        """Sample the next turn of an interactive task."""
        self._check_access(http, studio=True)
        request, source, _ = await self._read(http, TaskRequest)
        return await _respond(http, self._start(request, source, [()], _sampling(request, request.max_tokens, None)))

    # -- requests ----------------------------------------------------------------------------------------------
    def _check_access(self, http: Request, *, studio: bool = False) -> None:
        """Raise `ApiError` without the API key, after wrong keys, or, if there is none, with a foreign Host.

        `studio` requires the studio's token instead.
        """
        given = http.headers.get("authorization", "").encode("latin-1")  # as it was sent
        http.state.is_studio = self.studio_token is not None and secrets.compare_digest(
            given, f"Bearer {self.studio_token}".encode()
        )
        if http.state.is_studio:
            return
        if self.api_key is not None:
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
        if studio:
            raise ApiError("Only the studio may send this request.", status=403, code="studio_only")

    async def _read(self, http: Request, kind: type[AnyRequest]) -> tuple[AnyRequest, ModelSource, BaseInfo]:
        """Read and validate the body of a request; return it with the weights of its model, and what their base is."""
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
        if request.source is not None and not http.state.is_studio:
            raise ApiError("Only the studio may name weights.", status=403, code="studio_only", param="source")
        source = request.source or self._find_source(request.model)
        return request, source, await self._encode(lambda: base_info(source.base))

    def _find_source(self, name: str) -> ModelSource:
        if name not in self.models:
            raise ApiError(
                f"There is no model {name[:200]!r}. Known: {', '.join(self.models)}.",
                status=404, code="model_not_found", param="model",
            )  # fmt: skip
        return self.models[name]

    async def _card(self, name: str) -> JsonObject:
        source = self._find_source(name)
        base = await self._encode(lambda: base_info(source.base))
        return {
            "id": name, "object": "model", "created": self.started, "owned_by": "rl2f",
            "parent": None if source.adapter is None else base_name(source),
            "max_model_len": min(self.limits.max_model_len, base.context),
        }  # fmt: skip

    def _check_choices(self, count: int) -> None:
        """Raise `ApiError` if the server never accepts so many sequences at once."""
        most = self.limits.max_running + self.limits.max_waiting
        if count > most:
            raise ApiError(f"A request can have at most {most} choices in total.", param="n")

    async def _encode(self, encode: Callable[[], T]) -> T:
        """Load a tokenizer or encode prompts in another thread, which takes seconds; for one request at a time."""
        async with self._encoding:
            return await run_in_threadpool(encode)

    def _check_prompt(self, base: BaseInfo, prompt: Sequence[int], param: str) -> int:
        """Return how many tokens fit after a prompt. Raises `ApiError` for an invalid one."""
        if not prompt:
            raise ApiError("A prompt is empty.", param=param)
        if not all(0 <= token < base.vocab_size for token in prompt):
            raise ApiError(f"A token id is not in the vocabulary of {base.vocab_size} tokens.", param=param)
        return min(self.limits.max_model_len, base.context) - len(prompt)

    def _start(self, request: AnyOf, source: ModelSource, prompts: Prompts, sampling: SamplingParams) -> ActiveRequest:
        """Submit the sequences of a request. Raises `ApiError` if they do not fit."""
        base = base_info(source.base)
        context = min(self.limits.max_model_len, base.context)
        longest = max(map(len, prompts)) + sampling.max_new_tokens
        if longest > context:
            raise ApiError(
                f"The model's context has {context} tokens. The request needs {longest}: "
                f"{longest - sampling.max_new_tokens} for the prompt and {sampling.max_new_tokens} for the completion.",
                code="context_length_exceeded",
                param="prompt" if isinstance(request, CompletionRequest) else "messages",
                fix="Start a new chat, shorten a message, or allow fewer new tokens.",
            )
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def emit(event: Event) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        seed = None if request.seed is None else request.seed % 2**64
        is_studio = request.source is not None
        key = request.prompt_cache_key if isinstance(request, ChatRequest) and is_studio else ""
        task = None
        if isinstance(request, TaskRequest):
            task, seed = TaskTurn(request, emit), turn_seed(request.seed % 2**64, len(request.turns))
        sequences = [
            ChoiceSequence(
                model=request.model,
                source=source,
                index=i,
                prompt=GenerationRequest(prompts[i // request.n], choice_seed(seed, i % request.n), key),
                sampling=sampling,
                text=TextStream(base.tokenizer.decode, request.stop),
                emit=emit,
                streams=request.stream,
                task=task,
            )
            for i in range(len(prompts) * request.n)
        ]
        hf = base.tokenizer.hf
        has_byte_fallback = hf.convert_tokens_to_ids("<0x80>") not in (None, hf.unk_token_id)
        builder = ResponseBuilder(
            request, task.prompts if task else prompts, lambda ids: hf.decode(list(ids)), has_byte_fallback
        )
        self.loop.submit(sequences)
        self.num_requests += not is_studio
        deadline = math.inf if is_studio else time.monotonic() + self.limits.request_seconds
        return ActiveRequest(builder, deadline, sequences, events)


async def _respond(http: Request, active: ActiveRequest) -> Response:
    """Return the response to a request, or its stream."""
    outputs: list[Output] = []
    task: JsonObject = {}
    try:
        if active.builder.request.stream:
            first = await active.next_event(http)  # an earlier failure has its own status
            return StreamingResponse(
                _stream(active, first),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-cache"},
                background=BackgroundTask(active.cancel),  # runs after a disconnect too
            )
        while len(outputs) < len(active.sequences):
            event = await active.next_event(http)
            if isinstance(event, Output):
                outputs.append(event)
            elif isinstance(event, dict):
                task |= event
    except BaseException:
        active.cancel()
        raise
    # many logprobs take seconds
    return await run_in_threadpool(lambda: JSONResponse(active.builder.whole(outputs, task)))


def _sampling(request: AnyOf, max_tokens: int, top: int | None, *, score_prompt: bool = False) -> SamplingParams:
    if top is None:
        return SamplingParams(max_tokens, request.temperature, request.top_p)
    from rl2f_core.models.backends.hf.token_scores import ScoredSampling

    return ScoredSampling(max_tokens, request.temperature, request.top_p, top, score_prompt)


def choice_seed(seed: int | None, choice: int) -> int:
    """Return the seed of a choice: that of the first choice is the request's; without one, each is random."""
    if seed is None:
        return random.getrandbits(63)
    return seed if choice == 0 else random.Random(f"{seed}:{choice}").getrandbits(63)


async def _stream(active: ActiveRequest, event: Output | JsonObject | str) -> AsyncIterator[str]:
    """Yield server-sent events, from the first event on; progress messages are comments."""
    unfinished = {sequence.index for sequence in active.sequences}
    begun: set[int] = set()
    try:
        while True:
            if isinstance(event, str):
                yield f": {event}\n\n"
            elif isinstance(event, dict):
                yield _event(active.builder.task_chunk(event))
            else:
                yield _event(active.builder.chunk(event, is_first=event.index not in begun))
                begun.add(event.index)
                if event.finish_reason is not None:
                    unfinished.remove(event.index)
            if not unfinished:
                break
            event = await active.next_event()
        if active.builder.request.stream_options.include_usage:
            yield _event(active.builder.usage_chunk())
    except ApiError as error:
        yield _event(_error_body(error, is_studio=active.builder.request.source is not None))
    finally:
        active.cancel()
    yield "data: [DONE]\n\n"


def _event(data: JsonObject) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _error_body(error: ApiError, *, is_studio: bool) -> JsonObject:
    """Return OpenAI's error object; the studio also receives the parts of the error."""
    body = error.body()
    return {"error": {**body["error"], **error.details()}} if is_studio else body


async def _error_response(http: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody receives it
    if isinstance(error, HTTPException):
        error = ApiError(f"{http.method} {http.url.path[:200]}: {error.detail}.", status=error.status_code)
    described = ApiError.of(error)
    headers = {"Retry-After": str(described.retry_after)} if described.retry_after is not None else None
    body = _error_body(described, is_studio=getattr(http.state, "is_studio", False))
    return JSONResponse(body, status_code=described.status, headers=headers)
