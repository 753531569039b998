"""What every configuration class is made from: the base class, and the mark of a field that a form shows first."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

BASIC: dict[str, Any] = {"basic": True}
"""Mark of a field that a form shows first (`Field(..., json_schema_extra=BASIC)`); the others are folded away."""


class BaseConfig(BaseModel):
    """Base of all configuration: frozen, unknown keys refused, field docstrings kept as descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
