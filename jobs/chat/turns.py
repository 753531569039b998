"""One turn of a conversation: what the model process says becomes rows and events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobs.chat import tree
from jobs.chat.live import LiveTurn
from jobs.store import chats
from jobs.tables import ChatMessage
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    from jobs.database import Database

Frame = dict[str, Any]
FLUSH = 1.0
"""Seconds between two writes of an answer that grows, so that a dead server loses a second of it."""


@dataclass
class Column:
    """One row of a request: the speaker, and the messages it fills."""

    speaker: str
    parent: int | None
    """What its answer is a child of; known later where a hint comes first."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What is known of the answer before it is written: seed, model, adapter."""
    message: ChatMessage | None = None
    hinted: ChatMessage | None = None
    hint_by: str = ""
    finished: bool = False


class Pump:
    """Reads the frames of one request and keeps database and tabs up to date.

    Args:
        ended: Called for a dialogue that is over, with its last message and how it ended; returns what to note on it.
    """

    def __init__(
        self,
        db: Database,
        turn: LiveTurn,
        columns: list[Column],
        ended: Callable[[ChatMessage, str], dict[str, Any]],
    ) -> None:
        self.db = db
        self.turn = turn
        self.columns = columns
        self.ended = ended
        self._flushed = time.monotonic()

    def run(self, frames: Iterable[Frame]) -> None:
        """Until the last frame. The boundary at which a failing database ends a turn."""
        try:
            for frame in frames:
                self._take(frame)
        except RL2FError as error:
            self.turn.emit({"type": "error", "error": _told(error)})
        finally:
            self.turn.emit({"type": "end"})

    def _take(self, frame: Frame) -> None:
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

    def _message(self, column: Column) -> ChatMessage:
        """The answer's row, made when the first of it comes."""
        if column.message is None:
            fresh = ChatMessage(
                chat_id=self.turn.chat, parent=column.parent, role="assistant", speaker=column.speaker,
                status="streaming", detail=column.detail, time=time.time(),
            )  # fmt: skip
            (column.message,) = chats.add(self.db, self.turn.chat, [fresh])
            self._show(column.message)
        return column.message

    def _show(self, message: ChatMessage | None) -> None:
        if message is not None:
            self.turn.emit({"type": "message", "message": tree.shown(message)})

    def _flush(self) -> None:
        if time.monotonic() - self._flushed >= FLUSH:
            self._flushed = time.monotonic()
            for column in self.columns:
                if column.message is not None and column.message.id is not None and not column.finished:
                    chats.write(self.db, column.message.id, content=self.turn.text(column.message.id))

    def _hint(self, column: Column, frame: Frame) -> None:
        """The guard has read the hint: it stands in the dialogue."""
        hint = frame["hint"]
        fresh = ChatMessage(
            chat_id=self.turn.chat, parent=column.parent, role="teacher", speaker=column.speaker, content=hint["text"],
            detail={"hint": hint, "by": column.hint_by, "error": frame["error"]}, time=time.time(),
        )  # fmt: skip
        (column.hinted,) = chats.add(self.db, self.turn.chat, [fresh])
        column.parent = column.hinted.id
        self._show(column.hinted)

    def _done(self, column: Column, frame: Frame) -> None:
        """An answer is finished, or the dialogue ended before it."""
        column.finished = True
        stop = frame.get("ended")
        if "token_ids" not in frame:
            if column.hinted is not None:
                self._end(column.hinted, stop)
            else:
                told = {"what": "The problem does not fit the context of the run.", "fix": "Allow fewer new tokens."}
                self._close(column, "", "failed", {"error": {**told, "kind": "context"}})
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

    def _close(self, column: Column, text: str, status: str, detail: dict[str, Any]) -> ChatMessage | None:
        number = self._message(column).id
        assert number is not None
        column.message = chats.write(self.db, number, content=text, status=status, detail=detail) or column.message
        column.finished = True
        self._show(column.message)
        return column.message

    def _end(self, leaf: ChatMessage, stop: str | None) -> None:
        if leaf.id is not None and stop is not None:
            noted = {"ended": stop, **self.ended(leaf, stop)}
            self._show(chats.write(self.db, leaf.id, detail=noted))

    def _failed(self, frame: Frame) -> None:
        """The request failed: what is not finished is an error, not an answer."""
        error = {**frame["error"], "kind": frame["kind"]}
        for column in self.columns:
            if column.finished:
                continue
            if column.parent is None or (column.message is None and column.hint_by and column.hinted is None):
                continue  # the hint was never read: nothing was said yet
            text = self.turn.text(column.message.id) if column.message is not None and column.message.id else ""
            self._close(column, text, "failed", {"error": error})
        self.turn.emit({"type": "error", "error": error})


def _told(error: RL2FError) -> dict[str, Any]:
    value = None if error.value is None else str(error.value)[:200]
    return {"what": error.what, "value": value, "known": list(error.known or ()), "fix": error.fix}
