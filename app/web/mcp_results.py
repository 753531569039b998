"""Results of MCP tools in parts: a long result is shortened, and `read_result` returns what was omitted."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json, to_json

from app.endpoints.endpoint import endpoint
from jobs.db.errors import NotFoundError
from rl2f_core.errors import shorten
from rl2f_core.types import JsonObject

MAX_BYTES = 8000
"""Maximum size of an answer."""
NOTE_BYTES = 300
"""Maximum size of the note on a shortened result, without the list of omitted parts."""
MIN_SHARE = 200
"""Bytes below which a value is omitted instead of shortened."""
MAX_STORED_BYTES = 20_000_000
"""Size of all long results that are kept; the oldest are dropped."""


class McpResults:
    """The newest long results of tools. Only the token that called a tool can read its result."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def answer(self, token: int, value: object) -> list[str]:
        """Return a result as text, shortened if it is long; then a second text says what was omitted."""
        text = value if isinstance(value, str) else to_json(value, inf_nan_mode="null").decode()
        content = text.encode("utf-8", "replace")  # a file of a user may have lone surrogates
        if len(content) <= MAX_BYTES:
            return [content.decode()]
        stored = to_json(content.decode()) if isinstance(value, str) else content
        if sum(map(len, _answer("", from_json(stored), "", 0))) > MAX_BYTES:  # many long keys
            stored = to_json(content.decode())
        with self._lock:
            self._count += 1
            name = f"r{self._count}"
            self._stored[name] = token, stored
            while len(self._stored) > 1 and sum(len(text) for _, text in self._stored.values()) > MAX_STORED_BYTES:
                self._stored.popitem(last=False)
        return [text.decode() for text in _answer(name, from_json(stored), "", 0)]

    def read(self, token: int, result: str, part: str, offset: int) -> list[str]:
        """Return a part of a stored result, in the form of `answer`."""
        with self._lock:
            owner, stored = self._stored.get(result, (None, b""))
        if owner != token:
            raise NotFoundError("This result is not stored any more.", value=result, fix="Call the tool again.")
        value = from_json(stored)
        for key in part.split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (LookupError, TypeError, ValueError):
                known = value if isinstance(value, dict) else [f"0 to {len(value) - 1}"] if value else []
                raise NotFoundError("The result has no such part.", value=part, known=[*known][:100]) from None
        return [text.decode() for text in _answer(result, value, part, offset)]

    @endpoint("read")
    def read_result(
        self,
        result: Annotated[str, Field(max_length=20)],
        part: Annotated[str, Field(max_length=2000)] = "",
        offset: Annotated[int, Field(ge=0)] = 0,
    ) -> JsonObject:
        """Return a part of a long result.

        Args:
            result: Name of the result, from the note on what was omitted.
            part: The part as a JSON pointer, e.g. `/rows/3`; empty for the whole result.
            offset: First item, key or character of the part.
        """
        return {"result": result, "part": part, "offset": offset}  # for `read`, which also takes the token


def shorten_error(text: str) -> str:
    """Return an error message of at most `MAX_BYTES`."""
    return shorten(text, MAX_BYTES // 4 - 30)  # a character has up to four bytes


def _answer(name: str, value: Any, part: str, offset: int) -> list[bytes]:
    """Return a shortened value and the note on what was omitted, if anything."""
    short, omitted = shorten_value(value, MAX_BYTES - NOTE_BYTES, part, offset)
    content = short.encode() if isinstance(short, str) else to_json(short)
    if not omitted:
        return [content]
    note = {
        "omitted": omitted,
        "result": name,
        "note": "The result was shortened. `omitted` lists each shortened part and the offset at which it continues. "
        f'Call read_result with result="{name}", part and offset.',
    }
    return [content, to_json(note)]


def shorten_value(value: Any, max_bytes: int, part: str, offset: int = 0) -> tuple[Any, list[JsonObject]]:
    """Return JSON data from `offset` on, shortened to a size, and the omitted parts, which are part of the size.

    Values of an object share the size; a list, a text, or an object with many keys ends early.

    Args:
        value: An object, list or text; other values are returned as they are.
        max_bytes: Maximum size as JSON.
        part: JSON pointer of the value.
        offset: First item, key or character to return.
    """
    if not isinstance(value, str | list | dict):
        return value, []
    rest: Any = dict([*value.items()][offset:]) if isinstance(value, dict) else value[offset:]
    if _size(rest) <= max_bytes:
        return rest, []
    left = max_bytes - _size({"part": part, "offset": len(value), "of": len(value)}) - 4
    if isinstance(rest, str):
        shown = _prefix(rest, left)
        return shown, [{"part": part, "offset": offset + len(shown), "of": len(value)}]
    if isinstance(rest, dict) and left >= len(rest) * MIN_SHARE:
        return _share(rest, max_bytes, part)
    pairs: list[tuple[object, Any]] = list(rest.items()) if isinstance(rest, dict) else list(enumerate(rest, offset))
    taken: list[tuple[object, Any]] = []
    omitted: list[JsonObject] = []
    for key, item in pairs:
        room = left - len(to_json(str(key))) - 2
        size = _size(item)
        if size > room and (room < MIN_SHARE or (taken and size <= max_bytes // 2)):  # it fits into the next part
            break
        short, below = shorten_value(item, room, _pointer(part, key))
        taken.append((key, short))
        omitted += below
        left = room - _size(short) - _size(below)
    if len(taken) < len(pairs):
        omitted.append({"part": part, "offset": offset + len(taken), "of": len(value)})
    return dict(taken) if isinstance(rest, dict) else [item for _, item in taken], omitted


def _share(value: JsonObject, max_bytes: int, part: str) -> tuple[JsonObject, list[JsonObject]]:
    """Return an object whose values are shortened to equal shares; smaller ones leave more to the others."""
    left = max_bytes - 2
    shown: JsonObject = dict.fromkeys(value)
    omitted: list[JsonObject] = []
    order = sorted(value, key=lambda key: _size(value[key]))
    for i, key in enumerate(order):
        overhead = len(to_json(key)) + 2
        shown[key], below = shorten_value(value[key], left // (len(order) - i) - overhead, _pointer(part, key))
        omitted += below
        left -= overhead + _size(shown[key]) + (_size(below) if below else 0)
    return shown, omitted


def _prefix(text: str, max_bytes: int) -> str:
    """Return the longest beginning of a text whose JSON has at most this size, but at least one character."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(text[:middle]) <= max_bytes else (low, middle - 1)
    return text[:low]


def _size(value: object) -> int:
    return len(to_json(value))


def _pointer(part: str, key: object) -> str:
    return f"{part}/{str(key).replace('~', '~0').replace('/', '~1')}"
