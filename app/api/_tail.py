"""The end of a file that grows, as text that can do nothing: control characters are written out."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.common.console import visible

TAIL = 65_536
"""Bytes that are read at most."""
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
"""What a carriage return went back over: progress bars draw each state over the last."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A piece of a file."""

    text: str
    at: int
    """Byte after the last that was read; the next piece begins there."""
    size: int
    """Bytes of the file."""
    fresh: bool
    """The piece does not follow the last one: it begins anew, with what came before left out."""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def tail(path: Path, at: int | None = None, limit: int = TAIL) -> Tail:
    """What was written since byte `at`, or the last `limit` bytes from the begin of a line on.

    A character whose last bytes are not written yet waits for the next piece. A file that is not there is empty.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            fresh = at is None or at > size or size - at > limit
            start = max(0, size - limit) if fresh or at is None else at
            file.seek(start)
            raw = file.read(limit)
    except OSError:
        return Tail("", 0, 0, True)
    if fresh and start > 0:
        raw_start = raw.find(b"\n") + 1
        start, raw = start + raw_start, raw[raw_start:]
    raw = raw[: len(raw) - _torn(raw)]
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    return Tail(visible(_OVERWRITTEN.sub("", text)), start + len(raw), size, fresh)


def _torn(raw: bytes) -> int:
    """How many bytes at the end begin a character that is not whole."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        need = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if need > back else 0
    return 0
