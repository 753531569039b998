"""Conversion of the model process's frames to database rows and events of one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.chat import tree
from jobs.chat.model_process.client import Frame
from jobs.chat.response_stream import ResponseStream
from jobs.db.models import ChatMessage
from jobs.db.queries import chats
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from jobs.db.engine import Database

FLUSH_INTERVAL_SECONDS = 1.0
"""Interval of database writes of a growing response; a crash loses at most this much."""


@dataclass
class ResponseSlot:
    """One checkpoint of a turn, and its messages."""

    checkpoint: str
    parent: int | None
    """Parent of the response; a hint replaces it."""
    detail: JsonObject = field(default_factory=dict)
    """Metadata of the response: seed and model."""
    message: ChatMessage | None = None
    hint: ChatMessage | None = None
    hint_by: str = ""
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


class StreamWriter:
    """Processes the frames of one turn.

    Args:
        on_end: Called at the end of a dialogue with its last message and stop reason; returns details for the message.
    """

    def __init__(
        self,
        db: Database,
        turn: ResponseStream,
        slots: list[ResponseSlot],
        on_end: Callable[[ChatMessage, str], JsonObject],
    ) -> None:
        self.db = db
        self.turn = turn
        self.slots = slots
        self.on_end = on_end
        self._flushed = time.monotonic()

    def run(self, frames: Iterable[Frame]) -> None:
        """Process all frames. A database error ends the turn."""
        try:
            for frame in frames:
                self._process(frame)
        except RL2FError as error:
            self.turn.emit({"type": "error", "error": _error_details(error)})
        finally:
            self.turn.emit({"type": "end"})

    def _process(self, frame: Frame) -> None:
        match frame["type"]:
            case "status":
                self.turn.emit({"type": "status", "text": frame["text"]})
            case "delta":
                message = self._message(self.slots[frame["row"]])
                self.turn.emit({"type": "delta", "message": message.id, "text": frame["text"]})
                self._flush()
            case "hint":
                self._add_hint(self.slots[frame["row"]], frame)
            case "done":
                self._complete(self.slots[frame["row"]], frame)
            case "error":
                self._fail(frame)

    def _message(self, slot: ResponseSlot) -> ChatMessage:
        """Return the response's row, created with its first text."""
        if slot.message is None:
            slot.message = self._add(slot.new_message(self.turn.chat))
        return slot.message

    def _add(self, message: ChatMessage) -> ChatMessage:
        (message,) = chats.add(self.db, self.turn.chat, [message])
        self._emit(message)
        return message

    def _emit(self, message: ChatMessage | None) -> None:
        if message is not None:
            self.turn.emit({"type": "message", "message": tree.to_json(message)})

    def _flush(self) -> None:
        if time.monotonic() - self._flushed >= FLUSH_INTERVAL_SECONDS:
            self._flushed = time.monotonic()
            for slot in self.slots:
                if slot.message is not None and slot.message.id is not None and not slot.is_finished:
                    chats.write(self.db, slot.message.id, content=self.turn.text(slot.message.id))

    def _add_hint(self, slot: ResponseSlot, frame: Frame) -> None:
        """Add the screened hint to the dialogue."""
        hint = frame["hint"]
        detail = {"hint": hint, "by": slot.hint_by, "error": frame["error"]}
        slot.hint = self._add(slot.new_message(self.turn.chat, "teacher", content=hint["text"], detail=detail))
        slot.parent = slot.hint.id

    def _complete(self, slot: ResponseSlot, frame: Frame) -> None:
        """Complete a response, or end a dialogue without one."""
        slot.is_finished = True
        stop = frame.get("ended")
        if "token_ids" not in frame:
            if slot.hint is not None:
                self._end(slot.hint, stop)
            else:
                error = {"what": "The prompt exceeds the context of the run.", "fix": "Allow fewer new tokens."}
                self._close(slot, "", "failed", {"error": {**error, "kind": "context"}})
            return
        names = ("token_ids", "logprobs", "stop", "first", "seconds", "prompt_tokens")
        detail = {**{name: frame[name] for name in names}, "tokens": len(frame["token_ids"])}
        if frame.get("turn") is not None:
            detail["turn"] = frame["turn"]
        if frame.get("error") is not None:
            detail["error"] = {**frame["error"], "kind": frame["kind"]}
        message = self._close(slot, frame["text"], frame["status"], detail)
        if stop is not None:
            self._end(message, stop)

    def _close(self, slot: ResponseSlot, text: str, status: str, detail: JsonObject) -> ChatMessage:
        message = self._message(slot)
        assert message.id is not None
        slot.message = chats.write(self.db, message.id, content=text, status=status, detail=detail) or message
        slot.is_finished = True
        self._emit(slot.message)
        return slot.message

    def _end(self, leaf: ChatMessage, stop: str | None) -> None:
        if leaf.id is not None and stop is not None:
            self._emit(chats.write(self.db, leaf.id, detail={"ended": stop, **self.on_end(leaf, stop)}))

    def _fail(self, frame: Frame) -> None:
        """Mark the unfinished responses of a failed request as failed."""
        error = {**frame["error"], "kind": frame["kind"]}
        for slot in self.slots:
            if slot.is_finished:
                continue
            if slot.parent is None or (slot.message is None and slot.hint_by and slot.hint is None):
                continue  # the hint was not screened: there is no message yet
            text = self.turn.text(slot.message.id) if slot.message is not None and slot.message.id else ""
            self._close(slot, text, "failed", {"error": error})
        self.turn.emit({"type": "error", "error": error})


def _error_details(error: RL2FError) -> JsonObject:
    value = None if error.value is None else str(error.value)[:200]
    return {"what": error.what, "value": value, "known": list(error.known or ()), "fix": error.fix}
