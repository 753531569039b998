"""One turn of a chat: its responses are streamed from the model process, stored, and followed by any number of tabs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.chat import tree
from jobs.db.models import ChatMessage, MessageSummary
from jobs.db.queries import chats
from jobs.model_server.protocol import ApiError
from rl2f_core.errors import RL2FError
from rl2f_core.types import FrozenModel, JsonObject

if TYPE_CHECKING:
    from jobs.db.engine import Database
    from jobs.model_server.process import ModelProcess

FLUSH_INTERVAL_SECONDS = 1.0
"""Interval of database writes of a growing response; a crash loses at most this much."""
STOP_REASONS = {"stop": "eos", "length": "length"}
"""OpenAI's `finish_reason` → `rl2f_core.types.FinishReason`."""


@dataclass
class ResponseSlot:
    """One checkpoint of a turn, its request, its messages, and what was received."""

    checkpoint: str
    parent: int | None
    """Parent of the response; a hint replaces it."""
    body: JsonObject = field(default_factory=dict)
    """The request."""
    detail: JsonObject = field(default_factory=dict)
    """Metadata of the response: seed and model."""
    message: ChatMessage | None = None
    hint: ChatMessage | None = None
    result: JsonObject = field(default_factory=dict)
    """Results of a turn of an interactive task."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    started: float = 0.0
    """Time at which the generation started."""
    first: float | None = None
    """Seconds from then to the first token."""
    seconds: float = 0.0
    """Seconds from then to the last token."""
    flushed: float = field(default_factory=time.monotonic)
    """Time of the last write to the database."""
    is_finished: bool = False

    def new_message(
        self, chat: int, role: str = "assistant", *, content: str = "", detail: JsonObject | None = None
    ) -> ChatMessage:
        """Create a message of this checkpoint; without `detail` the empty response that is being generated."""
        status = "streaming" if detail is None else "done"
        detail = self.detail if detail is None else detail
        return ChatMessage(
            chat_id=chat, parent=self.parent, checkpoint=self.checkpoint, time=time.time(), role=role, content=content,
            status=status, detail=detail,
        )  # fmt: skip


class TurnUpdate(FrozenModel):
    """State of a turn of a chat. Each update contains the whole text so far."""

    status: str
    """Progress before the first token, e.g. `Loading tiny …`."""
    messages: list[MessageSummary]
    """Messages that the turn has added, one response per checkpoint."""
    error: JsonObject | None
    """what, value, known, fix; responses that had not ended are `failed`."""
    ended: bool
    """This is the last update."""


class Turn:
    """The responses that are being generated in a chat.

    Args:
        db: The database.
        process: The model process.
        chat: The chat.
        slots: The responses.
        on_end: Called at the end of a dialogue with its last message and stop reason; returns details for the message.
    """

    def __init__(
        self,
        db: Database,
        process: ModelProcess,
        chat: int,
        slots: list[ResponseSlot],
        on_end: Callable[[ChatMessage, str], JsonObject],
    ) -> None:
        self.db, self.process, self.chat, self.slots, self.on_end = db, process, chat, slots, on_end
        self.version = 0
        """Increases with every change of `state`."""
        self._status, self._error, self._ended = "", None, False
        self._messages: dict[int | None, MessageSummary] = {}
        self._lock = threading.Lock()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- followers -------------------------------------------------------------------------------------------------
    def state(self) -> TurnUpdate:
        """Return the state now."""
        with self._lock:
            texts = {slot.message.id: slot.text for slot in self.slots if slot.message and not slot.is_finished}
            shown = self._messages.values()
            messages = [m.model_copy(update={"content": texts.get(m.id, m.content)}) for m in shown]
            return TurnUpdate(status=self._status, messages=messages, error=self._error, ended=self._ended)

    def _change(self, **values: object) -> None:
        """Change parts of the state."""
        with self._lock:
            for name, value in values.items():
                setattr(self, f"_{name}", value)
            self.version += 1

    def _show(self, message: ChatMessage | None) -> None:
        """Add a message, or its new version, to the state."""
        if message is not None:
            self._change(messages={**self._messages, message.id: tree.without_tokens(message)})

    def add_messages(self, user: ChatMessage) -> None:
        """Add a user message, unless it is stored, and the empty responses to it."""
        new: list[ChatMessage] = [] if user.id is not None else chats.add(self.db, self.chat, [user])
        for slot in self.slots:
            slot.parent = user.id
        added = chats.add(self.db, self.chat, [slot.new_message(self.chat) for slot in self.slots])
        for slot, message in zip(self.slots, added, strict=True):
            slot.message = message
        for message in [*new, *added]:
            self._show(message)

    def end(self) -> None:
        """Tell all followers that nothing more changes."""
        self._change(ended=True)

    # -- the thread ------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Generate the responses of all slots. An error of the database ends the turn."""
        try:
            asyncio.run(self._respond_all())
        except RL2FError as error:
            self._change(error=ApiError.of(error).details())

    def stop(self) -> None:
        """Stop the responses; they keep their text."""
        self._is_stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _respond_all(self) -> None:
        self._tasks = [asyncio.create_task(self._respond(slot)) for slot in self.slots]
        self._loop = asyncio.get_running_loop()
        if self._is_stopped:
            self._loop.call_soon(self._cancel)  # after the start of the tasks
        await asyncio.gather(*self._tasks)

    async def _respond(self, slot: ResponseSlot) -> None:
        path = "/v1/tasks/turns" if "task" in slot.body else "/v1/chat/completions"
        try:
            async for event in self.process.stream(path, slot.body):
                if isinstance(event, str):
                    slot.started = time.monotonic()
                    self._change(status=event)
                else:
                    self._receive(slot, event)
        except asyncio.CancelledError:
            self._finish(slot, "stopped")
        except ApiError as error:
            self._fail(slot, {**error.details(), "kind": error.code})

    def _receive(self, slot: ResponseSlot, chunk: JsonObject) -> None:
        """Process a chunk of a response."""
        slot.result |= (result := chunk.get("task", {}))
        if "hint" in result:
            detail = {"hint": result["hint"], "by": slot.body["hint_by"], "error": result["hint_error"]}
            slot.hint = self._add(slot.new_message(self.chat, "teacher", content=result["hint"]["text"], detail=detail))
            slot.parent = slot.hint.id
        for choice in chunk["choices"]:
            if choice["token_ids"]:
                slot.seconds = time.monotonic() - slot.started
                slot.first = slot.seconds if slot.first is None else slot.first
            slot.prompt_tokens = len(chunk.get("prompt_token_ids", ())) or slot.prompt_tokens
            slot.token_ids += choice["token_ids"]
            if choice["delta"]["content"]:
                self._message(slot)
                slot.text += choice["delta"]["content"]
                self._change()
            if choice["finish_reason"] is not None:
                self._finish(slot, "done", STOP_REASONS[choice["finish_reason"]])
            elif slot.text and time.monotonic() - slot.flushed >= FLUSH_INTERVAL_SECONDS:
                slot.flushed = time.monotonic()
                if chats.write(self.db, self._message(slot).id or 0, content=slot.text) is None:  # deleted meanwhile
                    self.stop()

    def _message(self, slot: ResponseSlot) -> ChatMessage:
        """Return the response's row, created with its first text."""
        if slot.message is None:
            slot.message = self._add(slot.new_message(self.chat))
        return slot.message

    def _add(self, message: ChatMessage) -> ChatMessage:
        (message,) = chats.add(self.db, self.chat, [message])
        self._show(message)
        return message

    def _finish(self, slot: ResponseSlot, status: str, stop: str | None = None) -> None:
        """Complete a response, or end a dialogue without one."""
        ended = slot.result.get("ended")
        if ended is not None and not slot.token_ids:
            if slot.hint is not None:
                self._end(slot.hint, ended)
            else:
                what = "The prompt exceeds the context of the run."
                self._fail(slot, {"what": what, "fix": "Allow fewer new tokens.", "kind": "context_length_exceeded"})
            return
        names = ("token_ids", "first", "seconds", "prompt_tokens")
        detail = {**{name: getattr(slot, name) for name in names}, "stop": stop, "tokens": len(slot.token_ids)}
        if "turn" in slot.result:
            detail["turn"] = slot.result["turn"]
        message = self._close(slot, status, detail)
        if message is not None and ended is not None:
            self._end(message, ended)

    def _fail(self, slot: ResponseSlot, error: JsonObject) -> None:
        """Mark a response as failed."""
        self._close(slot, "failed", {"error": error})
        self._change(error=error)

    def _close(self, slot: ResponseSlot, status: str, detail: JsonObject) -> ChatMessage | None:
        """Write the last version of a response; None if its hint was not screened, so that there is no message."""
        if slot.message is None and slot.body.get("hint_by") and slot.hint is None:
            return None
        message = self._message(slot)
        assert message.id is not None
        message = chats.write(self.db, message.id, content=slot.text, status=status, detail=detail) or message
        slot.message, slot.is_finished = message, True
        self._show(message)
        return message

    def _end(self, leaf: ChatMessage, stop: str) -> None:
        if leaf.id is not None:
            self._show(chats.write(self.db, leaf.id, detail={"ended": stop, **self.on_end(leaf, stop)}))
