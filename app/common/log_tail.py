"""The end of a growing file as text, with control characters escaped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from app.common.console import visible

MAX_BYTES = 65_536
"""Maximum number of bytes that one call reads."""
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
"""Text before a carriage return: a progress bar draws each state over the previous one."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """A piece of a file."""

    text: str
    offset: int
    """Byte after the last one that was read; the next piece begins there."""
    size: int
    """Bytes of the file."""
    restarted: bool
    """The piece does not continue the previous one."""


def read_tail(path: Path, offset: int | None = None, limit: int = MAX_BYTES) -> LogTail:
    """Return the text since a byte offset, or whole lines from the last `limit` bytes.

    An incomplete character at the end is left for the next call. A missing file is empty.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            restarted = offset is None or offset > size or size - offset > limit
            start = max(0, size - limit) if restarted or offset is None else offset
            file.seek(start)
            raw = file.read(limit)
    except OSError:
        return LogTail("", 0, 0, True)
    if restarted and start > 0:
        skipped = raw.find(b"\n") + 1
        start, raw = start + skipped, raw[skipped:]
    raw = raw[: len(raw) - _incomplete_bytes(raw)]
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    return LogTail(visible(_OVERWRITTEN.sub("", text)), start + len(raw), size, restarted)


def _incomplete_bytes(raw: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete UTF-8 character."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0
