"""Event log of a turn, which any number of browser tabs can follow from any position."""

from __future__ import annotations

import threading

from rl2f_core.types import JsonObject

Event = JsonObject


class ResponseStream:
    """Events of one turn of a chat.

    Events: `status`, `message` (a whole row), `delta` (text appended to one), `error`, and `end`, the last.
    """

    def __init__(self, turn: str, chat: int) -> None:
        self.id = turn
        self.chat = chat
        self.ended = False
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._rows: dict[int, Event] = {}
        self._texts: dict[int, str] = {}
        self._status: Event = {"type": "status", "text": ""}

    def emit(self, event: Event) -> None:
        """Append an event."""
        with self._lock:
            kind = event["type"]
            if kind == "delta":
                self._texts[event["message"]] = self._texts.get(event["message"], "") + event["text"]
            elif kind == "message":
                row = event["message"]
                self._rows[row["id"]] = event
                if row["status"] != "streaming":
                    self._texts.pop(row["id"], None)
            elif kind == "status":
                self._status = event
            self._events.append(event)
            self.ended = self.ended or kind == "end"

    def text(self, message: int) -> str:
        """Return the current text of a message."""
        with self._lock:
            return self._texts.get(message, "")

    def follow(self) -> tuple[list[Event], int]:
        """Return the current state as events, and the position of the next event."""
        with self._lock:
            texts = [{"type": "text", "message": number, "text": text} for number, text in self._texts.items()]
            return [self._status, *self._rows.values(), *texts], len(self._events)

    def since(self, position: int) -> tuple[list[Event], int]:
        """Return the events after a position, and the new position."""
        with self._lock:
            return self._events[position:], len(self._events)
