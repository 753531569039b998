"""Messages that were had before, on disk: one SQLite file in the user's cache that any number of processes share.

A cache is a convenience: where its file cannot be read or written, everything is asked anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

WAIT = 5.0
"""Seconds to wait for another process that writes."""
_TABLE = "CREATE TABLE IF NOT EXISTS completion (key TEXT PRIMARY KEY, value TEXT NOT NULL, time REAL NOT NULL)"


def key_of(**parts: Any) -> str:
    """A hash of everything that a message depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DiskCache:
    """Values by key, as JSON.

    Args:
        path: The file; made where it is missing, readable by its owner alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._ready = False

    def get(self, key: str) -> dict[str, Any] | None:
        """What is held, or None."""
        with suppress(OSError, sqlite3.Error, ValueError), self._lock, closing(self._open()) as db:
            row = db.execute("SELECT value FROM completion WHERE key = ?", (key,)).fetchone()
            held = json.loads(row[0]) if row else None
            return held if isinstance(held, dict) else None
        return None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value; what is held already stays, so that every process reads the same."""
        row = (key, json.dumps(value), time.time())
        with suppress(OSError, sqlite3.Error), self._lock, closing(self._open()) as db:
            db.execute("INSERT OR IGNORE INTO completion (key, value, time) VALUES (?, ?, ?)", row)
            db.commit()

    def _open(self) -> sqlite3.Connection:
        if not self._ready:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(self.path, timeout=WAIT)
        if not self._ready:
            db.execute(_TABLE)
            db.commit()
            self._ready = True
        return db
