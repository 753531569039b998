"""The chat-completions protocol as pure functions: what is sent, and what an answer says, whoever wrote it.

An endpoint is not trusted: every field of its answer may be missing, of another type, or of any length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from rl2f_core.errors import shorten
from rl2f_core.llms.base import ChatRequest

TRANSIENT = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses that another try may change; every other one that is no success stays what it is."""
RESERVED = frozenset({"model", "messages", "stream", "n", "max_tokens", "max_completion_tokens", "temperature", "seed"})
"""Fields of a request that `extra` cannot set."""
_SEED_BITS = 31
_MEANING = {
    401: "the key is missing or wrong",
    403: "the key may not do this",
    404: "there is no such path or model",
    429: "too many requests",
}


class Failure(Exception):
    """Why a request gave no message.

    Args:
        what: For people; holds no key.
        transient: Another try may succeed.
        wait: Seconds that the endpoint asked to wait, or None.
    """

    def __init__(self, what: str, *, transient: bool, wait: float | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.transient = transient
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Reply:
    """A message that an endpoint sent."""

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int

    @property
    def counted(self) -> bool:
        """The endpoint said how many tokens there were."""
        return self.prompt_tokens + self.completion_tokens > 0


def body(request: ChatRequest, *, model: str, max_new_tokens: int, temperature: float, limit: str, seeded: bool,
         extra: Mapping[str, Any]) -> dict[str, Any]:  # fmt: skip
    """The JSON that is posted.

    Args:
        request: The conversation.
        model: As the endpoint calls it.
        max_new_tokens: Tokens allowed.
        temperature: Of sampling.
        limit: Name of the field for the tokens allowed.
        seeded: Whether the seed is sent, folded to 31 bits.
        extra: More fields.
    """
    made: dict[str, Any] = {
        **extra,
        "model": model,
        "messages": [{"role": m["role"], "content": m["content"]} for m in request.messages],
        "temperature": temperature,
        limit: max_new_tokens,
        "stream": False,
    }
    if seeded:
        made["seed"] = request.seed & ((1 << _SEED_BITS) - 1)
    return made


def refusal(status: int, data: bytes, headers: Mapping[str, str]) -> Failure:
    """What a status that is no success means."""
    if 300 <= status < 400:
        to = shorten(headers.get("location", "?"), 80)
        return Failure(f"HTTP {status}: the endpoint redirects to {to}; set base_url to where it is.", transient=False)
    meaning = _MEANING.get(status, "the endpoint failed" if status >= 500 else "the endpoint refused the request")
    told = _told(data)
    what = f"HTTP {status}: {meaning}{f' ({told})' if told else ''}."
    return Failure(what, transient=status in TRANSIENT, wait=wait_of(headers.get("retry-after")))


def _told(data: bytes) -> str:
    """The endpoint's own words about an error, in one short line."""
    text = data[:4000].decode("utf-8", "replace")
    try:
        held: Any = json.loads(data)
        held = held.get("error", held) if isinstance(held, dict) else held
        held = held.get("message", held) if isinstance(held, dict) else held
        text = held if isinstance(held, str) else json.dumps(held)
    except (ValueError, RecursionError):
        pass
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text).split()), 200)


def wait_of(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a Retry-After header (a number or a date), or None where there is none that can be read."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            at = parsedate_to_datetime(header)
        except ValueError:
            return None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        seconds = (at - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds and seconds < 1e9 else None


def read_reply(data: bytes) -> Reply:
    """The message in an answer of status 200; raises `Failure` where there is none."""
    try:
        held = json.loads(data)
    except (ValueError, RecursionError) as error:
        start = shorten(repr(data[:60].decode("utf-8", "replace")), 80)
        raise Failure(f"The answer is no JSON: {start}.", transient=True) from error
    if isinstance(held, dict) and held.get("error"):
        raise Failure(f"The endpoint answered with an error ({_told(data)}).", transient=True)
    choices = held.get("choices") if isinstance(held, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise Failure("The answer holds no message.", transient=True)
    reason = choice.get("finish_reason")
    text = _content(message.get("content")).encode("utf-8", "replace").decode().strip()  # half a surrogate pair is none
    if reason == "content_filter":
        raise Failure("The endpoint's content filter held the message back.", transient=False)
    if not text:
        raise Failure(_why_empty(message, reason), transient=False)
    usage = held.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    finish: Literal["stop", "length"] = "length" if reason == "length" else "stop"
    return Reply(text, finish, _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")))


def _content(held: Any) -> str:
    """The words of a message: a text, or the texts of its parts."""
    if isinstance(held, list):
        parts = [part.get("text") for part in held if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return held if isinstance(held, str) else ""


def _why_empty(message: Mapping[str, Any], reason: Any) -> str:
    if message.get("tool_calls") or message.get("function_call"):
        return "The model called a tool in place of a message."
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        return f"The model refused: {shorten(message['refusal'], 100)}"
    if reason == "length":
        return "The model used all its tokens before it wrote a message; allow more."
    return "The model wrote an empty message."


def _count(held: Any) -> int:
    return held if isinstance(held, int) and not isinstance(held, bool) and 0 <= held < 2**31 else 0
