"""Answers while they are written: a list of events that any number of browser tabs follow, from any moment on."""

from __future__ import annotations

import threading
from typing import Any

Event = dict[str, Any]


class LiveTurn:
    """One turn of one conversation.

    Events: `status`, `message` (a whole row), `delta` (more text of one), `error`, and `end`, the last.
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
        """Tell everybody."""
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
        """What was written of a message so far."""
        with self._lock:
            return self._texts.get(message, "")

    def follow(self) -> tuple[list[Event], int]:
        """Where a tab that comes now begins: rows and texts so far, and the position of what comes next."""
        with self._lock:
            texts = [{"type": "text", "message": number, "text": text} for number, text in self._texts.items()]
            return [self._status, *self._rows.values(), *texts], len(self._events)

    def since(self, position: int) -> tuple[list[Event], int]:
        """The events after a position, and the new position."""
        with self._lock:
            return self._events[position:], len(self._events)
