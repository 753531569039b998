"""Configuration of alerts."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rl2f_core.config.fields import COMMAND_REF, ENDPOINT_REF, BaseConfig


class AlertsConfig(BaseConfig):
    """Messages about a run, sent to a webhook, a command, or both; without them, none is sent."""

    webhook: str | None = Field(None, json_schema_extra=ENDPOINT_REF)
    """URL that receives each alert as a POST of JSON; `$NAME` is the URL in the environment variable NAME, which must
    be set when the run starts."""
    command: tuple[str, ...] = Field((), json_schema_extra=COMMAND_REF)
    """Program and arguments, run without a shell; `{text}` is the message, and the input is the alert as JSON."""
    failed: bool = True
    """Alert if the run fails or is interrupted."""
    finished: bool = True
    """Alert if the run succeeds or is stopped."""
    leak_rate_above: float | None = Field(None, ge=0, le=1)
    """Alert if the leak rate of a training step rises above this value."""
    no_mixed_groups: int | None = Field(None, ge=1)
    """Alert after this number of consecutive on-policy steps without a mixed group."""

    @field_validator("webhook")
    @classmethod
    def _check_webhook(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/\s]|\$[A-Za-z_][A-Za-z0-9_]*$", value):
            raise ValueError("a webhook begins with http:// or https://, or is $NAME of an environment variable")
        return value
