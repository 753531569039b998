"""Requests and responses of the model process: the OpenAI HTTP protocol with a few extensions.

| route | |
|---|---|
| `GET /health` | what is loaded |
| `GET /v1/models` | base models and checkpoints that a request may name |
| `POST /v1/chat/completions` | one answer to a conversation |
| `POST /v1/tasks/turns` | the next turn of an interactive task: screen the hint, sample the attempt, verify it |

Extensions to OpenAI's protocol: `source` (which weights a model name refers to), `token_ids` of a message,
`return_token_ids`, and `stats` in a chunk. A stream reports progress in comment lines, e.g. `: Loading tiny …`, which
every client of server-sent events skips. Closing the stream cancels the request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from rl2f_core.errors import RL2FError

MAX_TEXT = 20_000
"""Characters of one message."""
MAX_SPEAKERS = 4
"""The base and three checkpoints."""
CHECKPOINT_REF = r"base|[1-9][0-9]{0,11}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}@[0-9]{1,9}"
"""`base` or `RUN:stage@step`."""
DEFAULT_IDLE_SECONDS = 600.0
"""Seconds without a request after which the model process ends."""
DEFAULT_TEMPERATURE = 0.7
GREEDY_TEMPERATURE = 1e-5
"""Stands in for a temperature of 0."""
DEFAULT_MAX_TOKENS = 256
TOKEN_VARIABLE = "RL2F_MODEL_PROCESS_TOKEN"
"""Environment variable with the bearer token of the model process."""

ErrorKind = Literal["memory", "context", "model", "adapter", "process", "request", "bug", "token"]
HTTP_STATUS: dict[ErrorKind, int] = {"memory": 503, "model": 404, "process": 502, "bug": 500, "token": 401}
"""Status of an error response; 400 for the other kinds."""

TokenLimit = Annotated[int, Field(ge=1, le=4096)]
TopP = Annotated[float, Field(gt=0, le=1)]


class Strict(BaseModel):
    """Unknown keys are errors, and so are numbers that are none."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ChatSampling(Strict):
    """How every speaker's tokens are drawn."""

    max_new_tokens: TokenLimit = DEFAULT_MAX_TOKENS
    """Tokens of one answer."""
    temperature: float = Field(DEFAULT_TEMPERATURE, ge=0.01, le=10)
    """0.01 takes the likeliest token."""
    top_p: TopP = 1.0
    """Nucleus sampling."""
    seed: int = Field(0, ge=0, lt=2**31)
    """The same for all speakers."""


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
    """An answer's tokens as they were sampled; empty if a person wrote or changed it."""


class ChatCompletionRequest(InferenceRequest):
    """Answer a conversation: an optional system message, then user, assistant, user …"""

    messages: tuple[InputMessage, ...] = Field(min_length=1)


class HintRequest(Strict):
    """Who hints on the last attempt."""

    by: Literal["scripted", "person"]
    text: str = Field("", max_length=MAX_TEXT)


class TaskTurnRequest(InferenceRequest):
    """The next turn of one student's dialogue on a task. `seed` is that of the dialogue."""

    config: dict[str, Any]
    """What `rl2f_core.config.run.BaseRun` takes: environment, leak_detection, reward, rollout."""
    task: dict[str, Any]
    """`rl2f_core.types.Task` as JSON."""
    turns: tuple[dict[str, Any], ...] = ()
    """`rl2f_core.types.Turn` as JSON, oldest first."""
    hint: HintRequest | None = None
    """None at the first turn, and if the last turn has its hint already."""
    max_turns: int = Field(ge=1, le=64)


# -- responses ---------------------------------------------------------------------------------------------------------
class TokenLogprob(BaseModel):
    """One sampled token; `logprob` in nats at the sampling temperature."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Any] = []


class Logprobs(BaseModel):
    """Log-probabilities of the tokens of a choice."""

    content: list[TokenLogprob]


class OutputMessage(BaseModel):
    """A message or a part of one."""

    role: Literal["assistant"] | None = None
    content: str = ""


class Choice(BaseModel):
    """The answer (`message`) or the part of it that a chunk adds (`delta`)."""

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
    """Progress of an answer, counted from the start of its prefill."""

    prompt_tokens: int
    first_token_seconds: float | None = None
    seconds: float = 0.0


class TurnResult(BaseModel):
    """What a task turn adds: first the screened hint, in the last chunk the judged turn."""

    hint: dict[str, Any] | None = None
    hint_error: str | None = None
    turn: dict[str, Any] | None = None
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
        fault: Literal["invalid_request_error", "server_error"]
        fault = "server_error" if HTTP_STATUS.get(kind, 400) >= 500 else "invalid_request_error"
        if isinstance(error, str):
            return cls(message=error, type=fault, code=kind, param=param)
        value = error.value if error.value is None or isinstance(error.value, int | float) else str(error.value)
        known = [str(name) for name in error.known or ()]
        return cls(message=error.what, type=fault, code=kind, param=param, value=value, known=known, fix=error.fix)

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return HTTP_STATUS.get(self.code, 400)
