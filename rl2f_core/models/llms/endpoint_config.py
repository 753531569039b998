"""Settings of an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl2f_core.config.fields import BASIC_FIELD, ENDPOINT_REF, ComponentConfig
from rl2f_core.types import JsonObject

RESERVED = frozenset({
    "model", "messages", "stream", "n", "max_tokens", "max_completion_tokens", "temperature", "seed", "response_format",
})  # fmt: skip
"""Request fields that `extra` cannot set."""


class Config(ComponentConfig):
    """An OpenAI-compatible endpoint."""

    type: Literal["openai_api"] = "openai_api"
    """Location of the model."""
    base_url: str = Field("http://127.0.0.1:8000/v1", max_length=500, json_schema_extra={**BASIC_FIELD, **ENDPOINT_REF})
    """Base URL of `/chat/completions`, e.g. `https://api.openai.com/v1`; http or https."""
    model: str = Field("default", min_length=1, max_length=200, json_schema_extra=BASIC_FIELD)
    """Name of the model at the endpoint."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*_API_KEY$", json_schema_extra=BASIC_FIELD)
    """Environment variable with the key, e.g. `OPENAI_API_KEY`; must end in `_API_KEY`. None: no key."""
    concurrency: int = Field(4, ge=1, le=64)
    """Maximum number of concurrent requests."""
    retries: int = Field(4, ge=0, le=20)
    """Retries of a request after a transient failure."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Maximum requests per minute, spread evenly; None is unlimited."""
    tokens_per_minute: float | None = Field(None, gt=0)
    """Maximum prompt and completion tokens per minute; None is unlimited."""
    connect_timeout: float = Field(10.0, gt=0)
    """Seconds to connect to the endpoint."""
    read_timeout: float = Field(60.0, gt=0)
    """Seconds without a byte before a try fails."""
    total_timeout: float = Field(180.0, gt=0)
    """Seconds for one message, including all tries and waits."""
    max_response_bytes: int = Field(1_000_000, ge=1000, le=1_000_000_000)
    """Maximum size of a reply in bytes."""
    token_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the endpoint's token limit; newer OpenAI models require the second."""
    send_seed: bool = True
    """Send a seed; turn off if the endpoint rejects it."""
    extra: JsonObject = Field(default_factory=dict)
    """Further request fields, e.g. `{top_p: 0.9}`. Never a key: this is stored."""
    cache: bool = True
    """Use the disk cache of completions."""
    breaker_failures: int = Field(3, ge=1)
    """Failed messages in a row that open the circuit breaker."""
    breaker_seconds: float = Field(30.0, gt=0)
    """Seconds until the breaker allows a try."""
    usd_per_million_prompt: float | None = Field(None, ge=0)
    """Price of prompt tokens, for the cost of a run; None if free."""
    usd_per_million_completion: float | None = Field(None, ge=0)
    """Price of completion tokens."""

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError("is not a URL; write e.g. http://127.0.0.1:8000/v1") from error
        if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f\x7f]", value):
            raise ValueError("must be an http or https URL, e.g. http://127.0.0.1:8000/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("must not contain a user, password or query: keys come from the variable in api_key_env")
        return value.rstrip("/")

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, value: JsonObject) -> JsonObject:
        if reserved := sorted(set(value) & RESERVED):
            raise ValueError(f"cannot set {', '.join(reserved)}: they have their own fields")
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError("must be plain JSON") from error
        return value
