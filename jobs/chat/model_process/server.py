"""The model process: `python -m jobs.chat.model_process.server --fd N`, started by its client and by nothing else.

The client binds the listening socket to a free port of the loopback interface and passes it on, so that requests can be
sent before the server is ready. Every request needs the bearer token of the environment variable `TOKEN_VARIABLE`. The
process ends after an idle time, and when its standard input is closed, i.e. when its parent ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jobs.chat.model_process import memory
from jobs.chat.model_process.inference import Event, InferenceEngine, Job, describe_failure
from jobs.chat.model_process.protocol import (
    TOKEN_VARIABLE,
    ChatCompletionRequest,
    Choice,
    Completion,
    ErrorBody,
    InferenceRequest,
    Logprobs,
    ModelRequest,
    ModelSource,
    OutputMessage,
    TaskTurnRequest,
    TurnResult,
)
from rl2f_core.errors import ModelError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DISCONNECT_CHECK_SECONDS = 0.5


class BearerAuth:
    """Refuse every request without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not secrets.compare_digest(given, self.expected):
                app = _error_response(ErrorBody.of("token", "The bearer token is missing or wrong."))
        await app(scope, receive, send)


class Routes:
    """The routes of the model process."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.sources: dict[str, ModelSource] = {}
        """Models that earlier requests registered."""

    def app(self, token: str) -> Starlette:
        """Return the application; every route requires `token`."""
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/tasks/turns", self.task_turns, methods=["POST"]),
        ]
        app = Starlette(routes=routes, middleware=[Middleware(BearerAuth, token=token)])
        for error in (ValidationError, ModelError, HTTPException):
            app.add_exception_handler(error, _failed)
        return app

    async def health(self, request: Request) -> Response:
        """Return the number of requests and the loaded models."""
        num_requests = len(self.engine.running) + len(self.engine.waiting)
        return JSONResponse({"status": "ok", "requests": num_requests, "loaded": self.engine.state()})

    async def models(self, request: Request) -> Response:
        """List the base models of the model store and the models that requests registered."""
        cards = [
            {"id": name, "object": "model", "created": 0, "owned_by": "rl2f", "parent": parent}
            for name, parent in self._known_models().items()
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def chat_completions(self, request: Request) -> Response:
        """Respond to a conversation."""
        return await self._respond(request, ChatCompletionRequest.model_validate_json(await request.body()))

    async def task_turns(self, request: Request) -> Response:
        """Generate the next turn of an interactive task."""
        return await self._respond(request, TaskTurnRequest.model_validate_json(await request.body()))

    def _known_models(self) -> dict[str, str | None]:
        """Return the model names with the base of each adapter."""
        from rl2f_core.models.store.store import list_models

        models: dict[str, str | None] = {entry.name: None for entry in list_models() if entry.path is not None}
        return models | {name: s.base if s.adapter is not None else None for name, s in self.sources.items()}

    def _source(self, body: InferenceRequest) -> ModelSource:
        """Return the weights of the requested model. Raises `ModelError` if the name is unknown."""
        if body.source is not None:
            self.sources[body.model] = body.source
            self.sources.setdefault(body.source.base, body.source.model_copy(update={"adapter": None}))
        elif body.model not in self.sources:
            known = self._known_models()
            if body.model not in known:
                raise ModelError("The model process has no such model.", value=body.model, known=known)
            self.sources[body.model] = ModelSource(base=body.model)
        return self.sources[body.model]

    async def _respond(self, request: Request, body: ModelRequest) -> Response:
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        job = Job(body, self._source(body), lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
        self.engine.arrived.put(job)
        first = await events.get()
        if isinstance(first, ErrorBody):
            return _error_response(first)
        if body.stream:
            cancel = BackgroundTask(job.cancel)  # runs after a disconnect too
            return StreamingResponse(_stream(first, events), media_type="text/event-stream", background=cancel)
        chunks = [first] if isinstance(first, Completion) else []
        while not await request.is_disconnected():
            try:
                event = await asyncio.wait_for(events.get(), DISCONNECT_CHECK_SECONDS)
            except TimeoutError:
                continue
            if isinstance(event, ErrorBody):
                return _error_response(event)
            if event is None:
                return JSONResponse(join_chunks(chunks).model_dump(mode="json", exclude_none=True))
            chunks += [event] if isinstance(event, Completion) else []
        job.cancel()
        return Response(status_code=499)


async def _stream(first: Event, events: asyncio.Queue[Event]) -> AsyncIterator[str]:
    """Yield server-sent events; progress messages are comments."""
    event = first
    while event is not None:
        if isinstance(event, str):
            yield f": {event}\n\n"
        elif isinstance(event, ErrorBody):
            yield f'data: {{"error": {event.model_dump_json()}}}\n\n'
        else:
            yield f"data: {event.model_dump_json(exclude_none=True)}\n\n"
        event = await events.get()
    yield "data: [DONE]\n\n"


def join_chunks(chunks: list[Completion]) -> Completion:
    """Join all chunks of a stream into one response."""
    parts = [choice for chunk in chunks for choice in chunk.choices]
    tasks = [chunk.task.model_dump(exclude_none=True) for chunk in chunks if chunk.task is not None]
    choice = Choice(
        message=OutputMessage(role="assistant", content="".join(part.delta.content for part in parts if part.delta)),
        finish_reason=parts[-1].finish_reason if parts else None,
    )
    if logprobs := [part.logprobs for part in parts if part.logprobs]:
        choice.logprobs = Logprobs(content=[token for part in logprobs for token in part.content])
    if any(part.token_ids is not None for part in parts):
        choice.token_ids = [token for part in parts for token in part.token_ids or ()]
    result = TurnResult.model_validate({key: value for task in tasks for key, value in task.items()}) if tasks else None
    update = {"object": "chat.completion", "choices": [choice] if parts else [], "task": result}
    return chunks[-1].model_copy(update=update)


def _error_response(error: ErrorBody) -> JSONResponse:
    return JSONResponse({"error": error.model_dump(mode="json")}, status_code=error.status)


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _error_response(describe_failure(error))
    body = ErrorBody.of("request", f"{request.method} {request.url.path}: {error.detail}.")
    return JSONResponse({"error": body.model_dump(mode="json")}, status_code=error.status_code)


def _serve(app: Starlette, listener: socket.socket) -> None:
    """Serve until the process ends."""
    import uvicorn

    try:
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        os._exit(1)  # inference is useless without the server


def _end_with_parent() -> None:
    """End the process when its parent ends, which closes the pipe to standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="The model process of the chat.")
    parser.add_argument("--fd", type=int, required=True, help="Inherited listening socket.")
    parser.add_argument("--idle", type=float, required=True, help="Seconds without a request after which it ends.")
    parser.add_argument("--limit", type=int, default=0, help="Bytes of memory it may take; 0 is no limit.")
    parser.add_argument("--reserve", type=int, default=0, help="Bytes that must stay free when a model is loaded.")
    options = parser.parse_args(arguments)
    token = os.environ.pop(TOKEN_VARIABLE)  # child processes must not inherit it
    for name in {"SIGINT", "SIGHUP"} & {number.name for number in signal.Signals}:  # Windows has no SIGHUP
        signal.signal(signal.Signals[name], signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    memory.limit_process(options.limit)
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} model process {os.getpid()} started", file=sys.stderr, flush=True)
    engine = InferenceEngine(options.reserve)
    listener = socket.socket(fileno=options.fd)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    threading.Thread(target=_serve, args=(Routes(engine).app(token), listener), name="http", daemon=True).start()
    engine.run(options.idle)
    sys.stderr.flush()
    os._exit(0)  # skips the libraries' shutdown, which takes seconds


if __name__ == "__main__":
    main()
