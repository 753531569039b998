"""Disk cache of completions, shared by all processes of a user (`diskcache`).

Without access to its folder, the cache is empty and stores nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from diskcache import Cache, JSONDisk, Timeout

LOCK_TIMEOUT_SECONDS = 5.0
"""Time to wait for another process that writes."""
_UNUSABLE = (OSError, sqlite3.Error, Timeout, ValueError, zlib.error)


def key_of(**parts: Any) -> str:
    """Hash everything that a completion depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DiskCache:
    """JSON values by key.

    `folder` is created if missing, with access only for its owner.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._opened: Cache | None = None

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the stored value, or None."""
        with suppress(*_UNUSABLE):
            value = self._cache().get(key)
            return value if isinstance(value, dict) else None
        return None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Store a value unless the key exists, so that all processes get the same value."""
        with suppress(*_UNUSABLE):
            self._cache().add(key, value)

    def _cache(self) -> Cache:
        with self._lock:
            if self._opened is None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._opened = Cache(
                    str(self.folder), LOCK_TIMEOUT_SECONDS, JSONDisk, disk_compress_level=0, eviction_policy="none"
                )
            return self._opened
