"""What client and model process say to each other: JSON lines over a socket that only the two of them hold.

A request carries an `id`; every frame that answers it carries the same `id`, and the last one is `end` or `error`.

| request | |
|---|---|
| `generate` | answers to a conversation, one row a speaker |
| `play` | the next turn of a played task: the hint is read by the guard, the student answers, the verifier judges |
| `stop` | end the request named in `target` after its current token |
| `state` | what is loaded |

| frame | |
|---|---|
| `status` | a sentence on what is going on |
| `delta` | more text of a row |
| `hint` | what the guard made of the hint of a row (play) |
| `done` | a row is finished: status, tokens, log-probabilities, seconds; in play the turn and how the dialogue ended |
| `end` | the request is finished; what is loaded |
| `error` | the request failed; `kind` says how |
| `bye` | the process leaves on its own accord |
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rl2f_core.errors import RL2FError

MAX_TEXT = 20_000
"""Characters of one message."""
MAX_SPEAKERS = 4
"""The base and three checkpoints."""
SPEAKER = r"base|[1-9][0-9]{0,11}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}@[0-9]{1,9}"
"""`base` or `RUN:stage@step`."""

ErrorKind = Literal["memory", "context", "model", "adapter", "process", "request", "bug"]


class Strict(BaseModel):
    """Unknown keys are errors, and so are numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ChatSampling(Strict):
    """How every speaker's tokens are drawn."""

    max_new_tokens: int = Field(256, ge=1, le=4096)
    """Tokens of one answer."""
    temperature: float = Field(0.7, ge=0.01, le=10)
    """0.01 takes the likeliest token."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling."""
    seed: int = Field(0, ge=0, lt=2**31)
    """The same for all speakers."""


class ModelRequest(Strict):
    """Which base model is to be loaded, and the adapters that the rows name."""

    name: str
    """As the model store knows it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    adapters: dict[str, str] = Field(default_factory=dict)
    """Name → folder, from the database."""


class Piece(Strict):
    """An earlier message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    token_ids: tuple[int, ...] = ()
    """An answer's tokens as they were sampled; empty where a person wrote or changed it."""


class ChatRow(Strict):
    """One speaker and what it is to answer: a user message, or user, assistant, user …"""

    key: str
    """Names the conversation and column, so that what is known of earlier turns can be used again."""
    adapter: str | None = None
    seed: int
    pieces: tuple[Piece, ...] = Field(min_length=1)


class GenerateRequest(Strict):
    """Answers to a conversation."""

    op: Literal["generate"] = "generate"
    id: str
    model: ModelRequest
    system: str = ""
    sampling: ChatSampling
    rows: tuple[ChatRow, ...] = Field(min_length=1, max_length=MAX_SPEAKERS)


class HintRequest(Strict):
    """Who hints on the last attempt."""

    by: Literal["scripted", "person"]
    text: str = Field("", max_length=MAX_TEXT)


class PlayRow(Strict):
    """One speaker's dialogue on the task."""

    key: str
    adapter: str | None = None
    seed: int
    """Of the dialogue."""
    turns: tuple[dict[str, Any], ...] = ()
    """`rl2f_core.types.Turn` as JSON, oldest first."""
    hint: HintRequest | None = None
    """None at the first turn, and where the last turn carries its hint already."""


class PlayRequest(Strict):
    """The next turn of a played task."""

    op: Literal["play"] = "play"
    id: str
    model: ModelRequest
    config: dict[str, Any]
    """What `rl2f_core.config.BaseRun` takes: environment, leaks, reward, rollout."""
    task: dict[str, Any]
    """`rl2f_core.types.Task` as JSON."""
    sampling: ChatSampling
    max_turns: int = Field(ge=1, le=64)
    rows: tuple[PlayRow, ...] = Field(min_length=1, max_length=MAX_SPEAKERS)


def error_frame(kind: ErrorKind, error: RL2FError | str, **more: Any) -> dict[str, Any]:
    """A failure as a frame."""
    if isinstance(error, str):
        told: dict[str, Any] = {"what": error, "value": None, "known": [], "fix": None}
    else:
        value = error.value if error.value is None or isinstance(error.value, int | float) else str(error.value)
        told = {"what": error.what, "value": value, "known": list(error.known or ()), "fix": error.fix}
    return {"type": "error", "kind": kind, "error": told, **more}
