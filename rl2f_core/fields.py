"""What every configuration class is made from: the base class, and the marks of fields that a form reads."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

BASIC: dict[str, Any] = {"basic": True}
"""Mark of a field that a form shows first (`Field(..., json_schema_extra=BASIC)`); the others are folded away."""

KNOWN_MODEL: dict[str, Any] = {"known": "models"}
"""Mark of a field that names a model to load: a form offers the known ones and takes no other path."""
KNOWN_RUN: dict[str, Any] = {"known": "runs"}
"""Mark of a field that names the folder of a run to read: a form takes the name of one of the studio's runs alone."""
KNOWN_CHECKPOINT: dict[str, Any] = {"known": "checkpoints"}
"""Mark of a field that holds the folder of an adapter to load: a form offers those of the known runs alone."""

KNOWN_DATA: dict[str, Any] = {"known": "data"}
"""Mark of a field that names a data set: a form takes the name of a stage, or a data set's folder in one of the
studio's runs."""
KNOWN_ENDPOINT: dict[str, Any] = {"known": "endpoints"}
"""Mark of a field with an address that is asked: a form takes this machine's own and those that the server's
`RL2F_ENDPOINTS` lists."""
KNOWN_FILE: dict[str, Any] = {"known": "files"}
"""Mark of a field that names a file or a folder of this machine: a form takes none."""
KNOWN_PROBLEMS: dict[str, Any] = {"known": "problems"}
"""Mark of a field that names a set of mathematical problems: a form takes those known by name and reads no file."""
KNOWN_PROMPT: dict[str, Any] = {"known": "prompts"}
"""Mark of a field that names a prompt template: a form takes the shipped ones alone."""


class BaseConfig(BaseModel):
    """Base of all configuration: frozen, unknown keys refused, field docstrings kept as descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
