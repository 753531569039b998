"""Replies of the chat-completions protocol. They are untrusted: every field may be missing or of any type or length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from rl2f_core.errors import shorten
from rl2f_core.types import FrozenModel, JsonObject

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRANSIENT = frozenset({408, 409, 425, 429, *range(500, 600)}) - {501}
"""HTTP statuses to retry."""
UNSUPPORTED = frozenset({400, 422, 501})
"""HTTP statuses of servers that do not support a request field."""
_MEANING = {
    401: "the key is missing or wrong",
    403: "the key may not do this",
    404: "the path or model does not exist",
    429: "too many requests",
}


class RequestError(Exception):
    """A failed request, with a message for users; if it is transient, another try may succeed."""

    def __init__(self, what: str, *, transient: bool, status: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.transient = transient
        self.status = status
        """HTTP status of a refusal."""


class Reply(FrozenModel):
    """A message from an endpoint."""

    text: str = Field(min_length=1)
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)

    @property
    def counted(self) -> bool:
        """The endpoint reported token counts."""
        return self.prompt_tokens + self.completion_tokens > 0


def refusal(status: int, data: bytes, headers: Mapping[str, str]) -> RequestError:
    """Describe an unsuccessful HTTP status."""
    if 300 <= status < 400:
        to = shorten(headers.get("location", "?"), 80)
        return RequestError(
            f"HTTP {status}: the endpoint redirects to {to}; set base_url to that address.", transient=False
        )
    meaning = _MEANING.get(status, "the endpoint failed" if status >= 500 else "the endpoint refused the request")
    detail = error_detail(data)
    what = f"HTTP {status}: {meaning}{f' ({detail})' if detail else ''}."
    return RequestError(what, transient=status in TRANSIENT, status=status)


def error_detail(data: bytes) -> str:
    """Return the endpoint's error message in one short line without final period."""
    text = data[:4000].decode("utf-8", "replace")
    try:
        value: object = json.loads(data)
        for key in ("error", "message", "detail"):
            value = value.get(key, value) if isinstance(value, dict) else value
        text = value if isinstance(value, str) else json.dumps(value)
    except (ValueError, RecursionError):
        pass
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text).split()), 200).rstrip(".")


def read_reply(data: bytes) -> Reply:
    """Parse a reply with status 200; raises `RequestError` without a message."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        start = shorten(repr(data[:60].decode("utf-8", "replace")), 80)
        raise RequestError(f"The reply is not JSON: {start}.", transient=True) from error
    if isinstance(value, dict) and value.get("error"):
        raise RequestError(f"The endpoint answered with an error ({error_detail(data)}).", transient=True)
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise RequestError("The reply contains no message.", transient=True)
    reason: object = choice.get("finish_reason")
    text = replace_surrogates(_content(message.get("content"))).strip()
    if reason == "content_filter":
        raise RequestError("The endpoint's content filter blocked the message.", transient=False)
    if not text:
        raise RequestError(_explain_empty(message, reason), transient=False)
    usage = value.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return Reply(
        text=text,
        finish_reason="length" if reason == "length" else "stop",
        prompt_tokens=_count(counts.get("prompt_tokens")),
        completion_tokens=_count(counts.get("completion_tokens")),
    )


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by question marks."""
    return text.encode("utf-8", "replace").decode()


def _content(value: object) -> str:
    """Return the text of a message or of its parts."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _explain_empty(message: JsonObject, reason: object) -> str:
    if message.get("tool_calls") or message.get("function_call"):
        return "The model called a tool instead of writing a message."
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        return f"The model refused: {shorten(message['refusal'], 100)}"
    if reason == "length":
        return "The model used all its tokens before it wrote a message; raise max_new_tokens."
    return "The model wrote an empty message."


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0
