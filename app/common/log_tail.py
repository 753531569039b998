"""The end of a growing file as text, with control characters escaped."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from app.common.console import visible
from rl2f_core.types import FrozenModel

MAX_BYTES = 65_536
"""Maximum number of bytes that one call reads."""
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
"""Text before a carriage return: a progress bar draws each state over the previous one."""


class LogTail(FrozenModel):
    """A piece of a file."""

    text: str
    """The piece, with control characters escaped."""
    offset: int
    """Offset of the next piece."""
    size: int
    """Bytes of the file."""
    restarted: bool
    """The piece does not continue the previous one."""


def read_tail(path: Path, offset: int | None = None) -> LogTail:
    """Return the text since a byte offset, or whole lines from the last `MAX_BYTES` bytes.

    An incomplete character at the end is left for the next call. A missing file is empty.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            restarted = offset is None or offset > size or size - offset > MAX_BYTES
            start = max(0, size - MAX_BYTES) if restarted or offset is None else offset
            file.seek(start)
            raw = file.read(MAX_BYTES)
    except OSError:
        return LogTail(text="", offset=0, size=0, restarted=True)
    if restarted and start > 0:
        skipped = raw.find(b"\n") + 1
        start, raw = start + skipped, raw[skipped:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw).replace("\r\n", "\n")
    incomplete, _ = decoder.getstate()
    text, end = visible(_OVERWRITTEN.sub("", text)), start + len(raw) - len(incomplete)
    return LogTail(text=text, offset=end, size=size, restarted=restarted)
