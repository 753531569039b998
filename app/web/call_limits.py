"""Limits of the memory that calls of programs take: sessions, waiting calls, and results that nobody fetches."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import json
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.types import Scope

from app.web.program_access import Refusal

if TYPE_CHECKING:
    import gradio as gr

MAX_RESULT_BYTES = 8_000_000
"""Maximum size, as JSON, of all results that wait until they are fetched; the oldest are dropped."""
RESULT_SECONDS = 120.0
"""Time after which a result that nobody has fetched is dropped."""
MAX_QUEUED_EVENTS = 200
"""Maximum number of calls and events of pages that wait in the queue."""
MAX_UNFINISHED_CALLS = 32
"""Maximum number of calls of one token in the queue."""
MAX_PARALLEL_REQUESTS, MAX_WAITING_REQUESTS = 8, 64
"""Requests of one token that are handled at once, and that wait for them."""
MAX_STREAMS = 64
"""Open streams of results of one token."""
STREAM = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?[^/]+/(?P<event>[^/]+))")
"""Routes that return results as a stream."""
QUEUE_ROUTES = re.compile(r"/gradio_api/(queue/join|call/.+)")
TOO_MANY = "The token has too many unfinished calls."
WAIT = "Fetch their results, then try again."


class CallLimits:
    """Limits of the queue and the sessions of a Gradio app, and of the requests of each token.

    Args:
        blocks: The app; None if there is only MCP.
    """

    def __init__(self, blocks: gr.Blocks | None = None) -> None:
        self._requests: defaultdict[int, _Requests] = defaultdict(_Requests)
        self._blocks = blocks
        self._results: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Session → size of its results, and the time of the last one."""
        if blocks is not None:
            _shrink_sessions()
            self._queue: Any = blocks._queue
            self._send = self._queue.send_message
            setattr(self._queue, "send_message", self._send_result)  # noqa: B010 (a method of Gradio is replaced)

    # -- requests --------------------------------------------------------------------------------------------------
    def refuse(self, scope: Scope, token: int | None) -> Refusal | None:
        """Return why a request is refused: it asks for an unknown result, or its token has too many open requests."""
        stream = STREAM.fullmatch(scope["path"]) if scope["method"] == "GET" else None
        if stream is not None and self._blocks is not None and not self._is_known(scope, stream["event"]):
            seconds = f"{RESULT_SECONDS:.0f} seconds"
            return 404, "There is no such result.", f"Call the endpoint again, and fetch its result within {seconds}."
        if token is None:
            return None
        requests = self._requests[token]
        is_full = requests.streams >= MAX_STREAMS if stream else requests.waiting >= MAX_WAITING_REQUESTS
        if QUEUE_ROUTES.fullmatch(scope["path"]) and scope["method"] == "POST" and self._blocks is not None:
            events = [event for event in self._queue.event_ids_to_events.values() if _token_of(event) == token]
            is_full |= len(events) >= MAX_UNFINISHED_CALLS
        return (429, TOO_MANY, WAIT) if is_full else None

    def _is_known(self, scope: Scope, event: str | None) -> bool:
        """Return whether the session or event of a stream exists."""
        sessions, queue = self._queue.pending_messages_per_session, self._queue
        if event is None:
            return "".join(parse_qs(scope["query_string"].decode()).get("session_hash", [])) in sessions
        ids = queue.pending_event_ids_session.values()
        return event in sessions or event in queue.event_ids_to_events or any(event in events for events in ids)

    @asynccontextmanager
    async def slot(self, scope: Scope, token: int | None) -> AsyncIterator[None]:
        """Wait until a request of a token is handled; a stream, and a request without a token, do not wait."""
        if token is None:
            yield
            return
        requests = self._requests[token]
        if STREAM.fullmatch(scope["path"]) and scope["method"] == "GET":
            requests.streams += 1
            try:
                yield
            finally:
                requests.streams -= 1
            return
        requests.waiting += 1
        try:
            await requests.slots.acquire()
        finally:
            requests.waiting -= 1
        try:
            yield
        finally:
            requests.slots.release()

    # -- results ---------------------------------------------------------------------------------------------------
    def _send_result(self, event: Any, message: Any) -> None:
        """Add a message to the results of a session, and drop what is too much."""
        if event.session_hash not in self._queue.pending_messages_per_session:  # its client has left
            return
        output, is_program = getattr(message, "output", None), _token_of(event) is not None
        if output is None:  # it is not a result; such messages may come from another thread
            self._send(event, message)
            return
        text = json.dumps(output, default=str)
        is_completed = message.msg == "process_completed"
        if is_completed and is_program:
            message = _stored_result()(text=text, **{**dict(message), "output": {}})
        self._send(event, message)
        size, _ = self._results.pop(event.session_hash, (0, 0.0))
        self._results[event.session_hash] = size + len(text), time.monotonic()
        if is_completed and is_program:  # endpoints have no state
            self._forget_state(event.session_hash)
        self._drop_results(kept=event.session_hash)
        loop, context = asyncio.get_running_loop(), contextvars.Context()  # the timer keeps no request
        loop.call_later(RESULT_SECONDS, self._drop_results, context=context)

    def _drop_results(self, kept: str | None = None) -> None:
        """Drop expired results, and the oldest of too many but those of `kept`; forget sessions without results."""
        sessions, ids = self._queue.pending_messages_per_session, self._queue.pending_event_ids_session
        for session in list(self._results):
            if session not in sessions or sessions[session].empty():
                del self._results[session]
                if not ids.get(session):
                    self._forget(session)
        total = sum(size for size, _ in self._results.values())
        for session, (size, at) in list(self._results.items()):
            if session == kept or (total <= MAX_RESULT_BYTES and time.monotonic() < at + RESULT_SECONDS):
                break
            total -= size
            del self._results[session]
            self._forget(session)

    def _forget(self, session: str) -> None:
        """Drop the results of a session; it stays while events of it are not finished."""
        sessions, ids = self._queue.pending_messages_per_session, self._queue.pending_event_ids_session
        messages = sessions.pop(session, None)
        unfinished = ids.pop(session, set()) & self._queue.event_ids_to_events.keys()
        if messages is not None and unfinished:
            while not messages.empty():
                messages.get_nowait()
            sessions[session], ids[session] = messages, unfinished

    def _forget_state(self, session: str) -> None:
        holder = self._blocks.state_holder  # type: ignore[union-attr]
        holder.session_data.pop(session, None)
        holder.time_last_used.pop(session, None)


@functools.cache
def _stored_result() -> Any:
    """Return the class of a result that waits as JSON, which takes a fraction of the memory of its objects."""
    from gradio.server_messages import ProcessCompletedMessage

    class StoredResult(ProcessCompletedMessage):
        text: str
        """The output."""

        def model_dump(self, **options: Any) -> dict[str, Any]:
            """Return the message that Gradio sends."""
            message = super().model_dump(**options | {"exclude": {"text"}})
            return message | {"output": json.loads(self.text)}

    return StoredResult


class _Requests:
    """Open requests of a token."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)
        self.waiting = self.streams = 0


def _token_of(event: Any) -> int | None:
    """Return the id of the token that made an event; None for a browser."""
    token = event.request.scope.get("state", {}).get("rl2f_token")
    return None if token is None else token.id


class _Discarded(dict[int, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: int, value: Any) -> None:
        pass


def _shrink_sessions() -> None:
    """Let Gradio's sessions copy no settings of all components: 1 MB that only deep links read, which are off."""
    from gradio.state_holder import SessionState

    def create(self: Any, blocks: gr.Blocks) -> None:
        self.blocks_config = copy.copy(blocks.default_config)
        self.config_values = _Discarded()
        self.state_data, self._state_ttl = {}, {}
        self.is_closed, self.STATE_TTL_WHEN_CLOSED = False, 3600

    patched: Any = SessionState
    patched.__init__ = create
    patched._update_config = patched._update_value_in_config = lambda *_: None
