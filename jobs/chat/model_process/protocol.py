"""Requests and responses of the model process: the OpenAI HTTP protocol with a few extensions.

| route | |
|---|---|
| `GET /health` | what is loaded |
| `GET /v1/models` | base models and checkpoints that a request may name |
| `POST /v1/chat/completions` | one response to a conversation |
| `POST /v1/tasks/turns` | the next turn of an interactive task: screen the hint, sample the attempt, verify it |

Extensions to OpenAI's protocol: `source` (which weights a model name refers to), `token_ids` of a message,
`return_token_ids`, and `stats` in a chunk. A stream reports progress in comment lines, e.g. `: Loading tiny …`, which
every client of server-sent events skips. Closing the stream cancels the request.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

MAX_TEXT = 20_000
"""Maximum characters of one message."""
MAX_CHECKPOINTS = 4
"""The base model and three checkpoints."""
CHECKPOINT_REF = r"base|[1-9][0-9]{0,11}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}@[0-9]{1,9}"
"""`base` or `RUN:stage@step`."""
DEFAULT_TEMPERATURE = 0.7
DEFAULT_MAX_TOKENS = 256
TOKEN_VARIABLE = "RL2F_MODEL_PROCESS_TOKEN"
"""Environment variable with the bearer token of the model process."""

ErrorKind = Literal["memory", "context", "model", "adapter", "process", "request", "bug", "token"]
HTTP_STATUS: dict[ErrorKind, int] = {"memory": 503, "model": 404, "process": 502, "bug": 500, "token": 401}
"""Status of an error response; 400 for the other kinds."""

TokenLimit = Annotated[int, Field(ge=1, le=4096)]
TopP = Annotated[float, Field(gt=0, le=1)]


class Strict(BaseModel):
    """Base of requests: unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ChatSampling(Strict):
    """Sampling settings of all checkpoints."""

    max_new_tokens: TokenLimit = DEFAULT_MAX_TOKENS
    """Tokens of one answer."""
    temperature: float = Field(DEFAULT_TEMPERATURE, ge=0, le=10)
    """0 selects the most likely token."""
    top_p: TopP = 1.0
    """Nucleus sampling."""
    seed: int = Field(0, ge=0, lt=2**31)
    """The same for all checkpoints."""


# -- requests ----------------------------------------------------------------------------------------------------------
class ModelSource(Strict):
    """The weights that a model name refers to."""

    base: str
    """Base model, as the model store knows it."""
    adapter: str | None = None
    """Folder of a LoRA adapter; None for the base model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"

    @property
    def base_key(self) -> tuple[str, str, str]:
        """Sources with equal keys share one loaded base model."""
        return self.base, self.dtype, self.device


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = False


class InferenceRequest(Strict):
    """Fields that chat completions and task turns share."""

    model: str
    source: ModelSource | None = None
    """Registers `model`; later requests may omit it. Base models of the model store need none."""
    max_tokens: TokenLimit = Field(
        DEFAULT_MAX_TOKENS, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    temperature: float = Field(DEFAULT_TEMPERATURE, ge=0, le=10)
    """0 selects the most likely token."""
    top_p: TopP = 1.0
    seed: int | None = Field(None, ge=0, lt=2**64)
    """None draws a random seed."""
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    return_token_ids: bool = False
    prompt_cache_key: str = ""
    """Names the conversation, so that the KV cache of its earlier turns can be reused."""
    user: str = ""
    """Accepted and ignored."""


class InputMessage(Strict):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str
    token_ids: tuple[int, ...] = ()
    """Sampled tokens of a response; empty if a person wrote or edited it."""


class ChatCompletionRequest(InferenceRequest):
    """Request a response to an optional system message, then user, assistant, user …"""

    messages: tuple[InputMessage, ...] = Field(min_length=1)


class HintRequest(Strict):
    """The hint on the last attempt."""

    by: Literal["scripted", "person"]
    text: str = Field("", max_length=MAX_TEXT)


class TaskTurnRequest(InferenceRequest):
    """The next turn of one student's dialogue on a task. `seed` is that of the dialogue."""

    config: JsonObject
    """Fields of `rl2f_core.config.run.BaseRun`: environment, leak_detection, reward, rollout."""
    task: JsonObject
    """`rl2f_core.types.Task` as JSON."""
    turns: tuple[JsonObject, ...] = ()
    """`rl2f_core.types.Turn` as JSON, oldest first."""
    hint: HintRequest | None = None
    """None at the first turn, and if the last turn has its hint already."""
    max_turns: int = Field(ge=1, le=64)


ModelRequest = ChatCompletionRequest | TaskTurnRequest


# -- responses ---------------------------------------------------------------------------------------------------------
class TokenLogprob(BaseModel):
    """One sampled token; `logprob` in nats at the sampling temperature."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[JsonObject] = []


class Logprobs(BaseModel):
    """Log-probabilities of the tokens of a choice."""

    content: list[TokenLogprob]


class OutputMessage(BaseModel):
    """A message or a part of one."""

    role: Literal["assistant"] | None = None
    content: str = ""


class Choice(BaseModel):
    """The response (`message`) or the part of it that a chunk adds (`delta`)."""

    index: int = 0
    delta: OutputMessage | None = None
    message: OutputMessage | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Usage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Stats(BaseModel):
    """Progress of a response, measured from the start of its prefill."""

    prompt_tokens: int
    first_token_seconds: float | None = None
    seconds: float = 0.0


class TurnResult(BaseModel):
    """Result of a task turn: first the screened hint, in the last chunk the verified turn."""

    hint: JsonObject | None = None
    hint_error: str | None = None
    turn: JsonObject | None = None
    ended: str | None = None
    """Why the dialogue ended; None if it continues."""


class Completion(BaseModel):
    """A whole response, or one chunk of a streamed response."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice] = []
    usage: Usage | None = None
    stats: Stats | None = None
    task: TurnResult | None = None


class ErrorBody(BaseModel):
    """An error object in OpenAI's form, with the parts of a `RL2FError`."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    code: ErrorKind
    param: str | None = None
    value: str | int | float | None = None
    known: list[str] = []
    fix: str | None = None

    @classmethod
    def of(cls, kind: ErrorKind, error: RL2FError | str, param: str | None = None) -> ErrorBody:
        """Describe a failure."""
        body = cls(message=str(error), type="invalid_request_error", code=kind, param=param)
        if body.status >= 500:
            body.type = "server_error"
        if isinstance(error, RL2FError):
            value = error.value if error.value is None or isinstance(error.value, int | float) else str(error.value)
            body.message, body.value, body.fix = error.what, value, error.fix
            body.known = [str(name) for name in error.known or ()]
        return body

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return HTTP_STATUS.get(self.code, 400)
