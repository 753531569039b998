"""Disk cache of completions, shared by all processes of a user (`diskcache`).

Without access to its folder, the cache is empty and stores nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import zlib
from contextlib import suppress
from pathlib import Path

from diskcache import Cache, JSONDisk, Timeout

from rl2f_core.types import JsonObject

LOCK_TIMEOUT_SECONDS = 5.0
"""Time to wait for another process that writes."""
_UNUSABLE = (OSError, sqlite3.Error, Timeout, ValueError, zlib.error)


def key_of(**parts: object) -> str:
    """Hash everything that a completion depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DiskCache:
    """JSON values by key.

    `folder` is created if missing, with access only for its owner.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> JsonObject | None:
        """Return the stored value, or None."""
        with suppress(*_UNUSABLE):
            value = self._cache.get(key)
            return value if isinstance(value, dict) else None
        return None

    def put(self, key: str, value: JsonObject) -> None:
        """Store a value unless the key exists, so that all processes get the same value."""
        with suppress(*_UNUSABLE):
            self._cache.add(key, value)

    @functools.cached_property
    def _cache(self) -> Cache:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Cache(str(self.folder), LOCK_TIMEOUT_SECONDS, JSONDisk, disk_compress_level=0, eviction_policy="none")
