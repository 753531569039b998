"""Requests and errors of the OpenAI protocol.

Extensions: prompts of token ids are OpenAI's own; `return_token_ids` adds `prompt_token_ids` and `token_ids` to the
response, as in vLLM. A parameter that this server does not support is an error unless it has its neutral value. Only
the studio sends `source` and `TaskRequest`.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import from_json

from rl2f_core.errors import AdapterError, ModelError, RL2FError
from rl2f_core.models.device import out_of_memory
from rl2f_core.types import JsonObject, Message, Task, Turn

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 200
DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of `/v1/completions` in OpenAI's API."""
DEFAULT_CHAT_TOKENS = 1024
"""Maximum new tokens of a chat completion without `max_tokens`, if the context has room for them."""
IGNORED = frozenset({"metadata", "parallel_tool_calls", "safety_identifier", "service_tier", "store", "user"})
"""Parameters that never change the response."""
WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
}
"""Unsupported parameters with the values that have no effect; of unknown fields these are `EMPTY`."""
EMPTY: tuple[object, ...] = (None, False, "", [], {})


class ApiError(RL2FError):
    """A refused or failed request.

    Args:
        what: One sentence: what failed.
        status: HTTP status.
        code: Machine-readable reason, e.g. `model_not_found`.
        param: The offending parameter.
        retry_after: Seconds after which the client should try again.
        details: `value`, `known` and `fix` of `RL2FError`, which only the studio receives.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        **details: Any,
    ) -> None:
        super().__init__(what, **details)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """Describe a failure; the log describes one that is not deliberate."""
        if isinstance(error, ApiError):
            return error
        if out_of_memory(error):
            fix = "Start a shorter chat, allow fewer new tokens, use fewer checkpoints, or free memory."
            what = "The model ran out of memory, so there is no response."
            return cls(what, status=503, code="memory", fix=fix)
        if not isinstance(error, RL2FError):
            traceback.print_exception(error)
            what = "The model failed; the server's log has the details."
            return cls(what, status=500, code="internal_error", value=f"{type(error).__name__}: {error}")
        status, code = 400, "request"
        if isinstance(error, AdapterError):
            status, code = 500, "adapter"
        elif isinstance(error, ModelError):
            status, code = (503, "memory") if "not enough free" in error.what else (500, "model")
        value = error.value if isinstance(error.value, int | float | None) else str(error.value)
        return cls(error.what, status=status, code=code, value=value, known=error.known, fix=error.fix)

    def details(self) -> JsonObject:
        """Return the parts of the error as JSON."""
        return {"what": self.what, "value": self.value, "known": list(self.known or ()), "fix": self.fix}

    def body(self) -> JsonObject:
        """Return OpenAI's error object."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else kinds.get(self.status, "invalid_request_error")
        # names in requests may contain characters that UTF-8 cannot encode
        message, param = (text and text.encode("utf-8", "replace").decode() for text in (self.what, self.param))
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


class ModelSource(BaseModel):
    """The weights that a model name means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: str
    """Base model, as the model store knows it."""
    adapter: str | None = None
    """Folder of a LoRA adapter, or of a checkpoint with all weights; None for the base model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"


class Part(BaseModel):
    """A part of a request. A field that this server does not know is an error unless it is empty."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        unknown = [name[:100] for name, value in (self.model_extra or {}).items() if not _is_in(value, EMPTY)]
        if unknown:
            raise ValueError(f"this server does not support {', '.join(unknown)}")
        return self


def _is_in(value: object, values: Sequence[object]) -> bool:
    """Return whether a value is one of `values`; booleans are no numbers."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)


class StreamOptions(Part):
    """Options of a stream."""

    include_usage: bool = False


def _as_list(value: object) -> object:
    if not isinstance(value, str | list):
        raise ValueError("it should be a text or a list")
    return [value] if isinstance(value, str) else value


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class Request(BaseModel):
    """Fields that chat and text completions share. Parameters that are null have their default value.

    A value of another type, such as a number as text, is an error.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, strict=True)

    model: str
    temperature: float = Field(1.0, ge=0, le=10)
    """0 selects the most likely token."""
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = None
    """Seed of the first choice of each prompt; further ones have seeds derived from it. None: all are random."""
    stop: Annotated[list[StopText], BeforeValidator(_as_list), Field(max_length=MAX_STOPS)] = []
    """Texts that end a choice; not part of its text."""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    source: ModelSource | None = None
    """The weights of `model`, which need not be served then; only in requests of the studio."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class TextPart(Part):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


def _as_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else _as_list([] if value is None else value)


class ChatMessage(Part):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)] = []

    def as_message(self) -> Message:
        """Return the message for a chat template."""
        text = "".join(part.text for part in self.content)
        return Message(role="system" if self.role == "developer" else self.role, content=text)


class ChatRequest(Request):
    """A request for `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`."""
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    prompt_cache_key: str = ""
    """Names the conversation. The KV cache of its earlier turns is reused in requests of the studio."""

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_tokens and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens differ; set one of them")
        return self


class TaskRequest(ChatRequest):
    """A request for `/v1/tasks/turns`: the next turn of one student's dialogue on a task.

    The hint on the last attempt is screened, then an attempt is sampled and verified. Responses have the key `task`:
    first `hint` and `hint_error`, then `turn` and `ended` (why the dialogue ended, or null).
    """

    messages: list[ChatMessage] = []
    max_tokens: int = Field(ge=1)
    seed: int
    """Seed of the dialogue."""
    config: JsonObject
    """Fields of `rl2f_core.config.run.BaseRun`: environment, leak_detection, reward, rollout."""
    task: Task
    turns: list[Turn] = []
    """Earlier turns, oldest first."""
    hint_by: Literal["scripted", "person"] | None = None
    """Teacher of a hint on the last attempt; None at the first turn, and if the last turn has its hint already."""
    hint: str = ""
    """The person's hint."""
    max_turns: int = Field(ge=1, le=64)


def _parse_prompts(value: object) -> Sequence[str | tuple[int, ...]]:
    def parse(prompt: object) -> str | tuple[int, ...]:
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return tuple(prompt)
        if not isinstance(prompt, str):
            raise ValueError("it should be a text, a list of token ids, or a list of such prompts")
        return prompt

    is_several = isinstance(value, list) and not (value and type(value[0]) is int)
    return [parse(prompt) for prompt in (cast("list[object]", value) if is_several else [value])]


class CompletionRequest(Request):
    """A request for `/v1/completions`."""

    prompts: Annotated[Sequence[str | tuple[int, ...]], PlainValidator(_parse_prompts)] = Field(alias="prompt")
    """One or several prompts, each a text or token ids."""
    max_tokens: int = Field(DEFAULT_COMPLETION_TOKENS, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """Most likely tokens to report at each position; None reports no logprobs."""
    echo: bool = False
    """Put the prompt before the completion, with its logprobs if `logprobs` is set."""


AnyRequest = TypeVar("AnyRequest", bound=Request)


def parse_request(data: bytes, kind: type[AnyRequest]) -> AnyRequest:
    """Parse and validate the body of a request. Raises `ApiError` naming the first wrong parameter."""
    try:
        request = kind.model_validate(from_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        place = ".".join(map(str, first["loc"])) or "the body"
        reason = "it should be an object" if first["type"] == "model_type" else first["msg"]
        raise ApiError(f"Invalid value of {place}: {reason.removeprefix('Value error, ')}.", param=param) from error
    except ValueError as error:
        raise ApiError("The body is not valid JSON.") from error
    for name, value in (request.model_extra or {}).items():
        if name not in IGNORED and not _is_in(value, WITHOUT_EFFECT.get(name, EMPTY)):
            raise ApiError(
                f"This server does not support the parameter {name[:100]} with this value.",
                param=name[:100],
                code="unsupported_parameter",
            )
    return request
