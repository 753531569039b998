"""Conversion of the model process's frames to database rows and events of one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobs.chat import tree
from jobs.chat.response_stream import ResponseStream
from jobs.db.models import ChatMessage
from jobs.db.queries import chats
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    from jobs.db.engine import Database

Frame = dict[str, Any]
FLUSH_INTERVAL_SECONDS = 1.0
"""Interval of database writes of a growing response; a crash loses at most this much."""


@dataclass
class ResponseSlot:
    """One checkpoint of a turn, and its messages."""

    speaker: str
    parent: int | None
    """Parent of the response; a hint replaces it."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Metadata of the response: seed and model."""
    message: ChatMessage | None = None
    hinted: ChatMessage | None = None
    hint_by: str = ""
    finished: bool = False

    def new_message(self, chat: int, role: str = "assistant", **columns: Any) -> ChatMessage:
        """Create a message of this checkpoint; by default its empty response."""
        columns = columns or {"status": "streaming", "detail": self.detail}
        values: dict[str, Any] = {
            "chat_id": chat,
            "parent": self.parent,
            "checkpoint": self.speaker,
            "time": time.time(),
        }
        return ChatMessage(**values, role=role, **columns)


class StreamWriter:
    """Processes the frames of one turn.

    Args:
        ended: Called at the end of a dialogue with its last message and stop reason; returns details for the message.
    """

    def __init__(
        self,
        db: Database,
        turn: ResponseStream,
        columns: list[ResponseSlot],
        ended: Callable[[ChatMessage, str], dict[str, Any]],
    ) -> None:
        self.db = db
        self.turn = turn
        self.columns = columns
        self.ended = ended
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
        kind = frame["type"]
        if kind == "status":
            self.turn.emit({"type": "status", "text": frame["text"]})
        elif kind == "delta":
            message = self._message(self.columns[frame["row"]])
            self.turn.emit({"type": "delta", "message": message.id, "text": frame["text"]})
            self._flush()
        elif kind == "hint":
            self._hint(self.columns[frame["row"]], frame)
        elif kind == "done":
            self._done(self.columns[frame["row"]], frame)
        elif kind == "error":
            self._failed(frame)

    def _message(self, column: ResponseSlot) -> ChatMessage:
        """Return the response's row, created with its first text."""
        if column.message is None:
            (column.message,) = chats.add(self.db, self.turn.chat, [column.new_message(self.turn.chat)])
            self._show(column.message)
        return column.message

    def _show(self, message: ChatMessage | None) -> None:
        if message is not None:
            self.turn.emit({"type": "message", "message": tree.shown(message)})

    def _flush(self) -> None:
        if time.monotonic() - self._flushed >= FLUSH_INTERVAL_SECONDS:
            self._flushed = time.monotonic()
            for column in self.columns:
                if column.message is not None and column.message.id is not None and not column.finished:
                    chats.write(self.db, column.message.id, content=self.turn.text(column.message.id))

    def _hint(self, column: ResponseSlot, frame: Frame) -> None:
        """Add the screened hint to the dialogue."""
        hint = frame["hint"]
        detail = {"hint": hint, "by": column.hint_by, "error": frame["error"]}
        fresh = column.new_message(self.turn.chat, "teacher", content=hint["text"], detail=detail)
        (column.hinted,) = chats.add(self.db, self.turn.chat, [fresh])
        column.parent = column.hinted.id
        self._show(column.hinted)

    def _done(self, column: ResponseSlot, frame: Frame) -> None:
        """Complete a response, or end a dialogue without one."""
        column.finished = True
        stop = frame.get("ended")
        if "token_ids" not in frame:
            if column.hinted is not None:
                self._end(column.hinted, stop)
            else:
                error = {"what": "The prompt exceeds the context of the run.", "fix": "Allow fewer new tokens."}
                self._close(column, "", "failed", {"error": {**error, "kind": "context"}})
            return
        names = ("token_ids", "logprobs", "stop", "first", "seconds", "prompt_tokens")
        detail = {**{name: frame[name] for name in names}, "tokens": len(frame["token_ids"])}
        if frame.get("turn") is not None:
            detail["turn"] = frame["turn"]
        if frame.get("error") is not None:
            detail["error"] = {**frame["error"], "kind": frame["kind"]}
        message = self._close(column, frame["text"], frame["status"], detail)
        if stop is not None and message is not None:
            self._end(message, stop)

    def _close(self, column: ResponseSlot, text: str, status: str, detail: dict[str, Any]) -> ChatMessage | None:
        number = self._message(column).id
        assert number is not None
        column.message = chats.write(self.db, number, content=text, status=status, detail=detail) or column.message
        column.finished = True
        self._show(column.message)
        return column.message

    def _end(self, leaf: ChatMessage, stop: str | None) -> None:
        if leaf.id is not None and stop is not None:
            detail = {"ended": stop, **self.ended(leaf, stop)}
            self._show(chats.write(self.db, leaf.id, detail=detail))

    def _failed(self, frame: Frame) -> None:
        """Mark the unfinished responses of a failed request as failed."""
        error = {**frame["error"], "kind": frame["kind"]}
        for column in self.columns:
            if column.finished:
                continue
            if column.parent is None or (column.message is None and column.hint_by and column.hinted is None):
                continue  # the hint was not screened: there is no message yet
            text = self.turn.text(column.message.id) if column.message is not None and column.message.id else ""
            self._close(column, text, "failed", {"error": error})
        self.turn.emit({"type": "error", "error": error})


def _error_details(error: RL2FError) -> dict[str, Any]:
    value = None if error.value is None else str(error.value)[:200]
    return {"what": error.what, "value": value, "known": list(error.known or ()), "fix": error.fix}
