"""Base class of configurations, and the marks of fields for forms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_before_validator_function

BASIC_FIELD: JsonDict = {"basic": True}
"""Field that a form always shows (`Field(..., json_schema_extra=BASIC_FIELD)`); others are collapsed."""

# References: a form restricts these fields to known values.
MODEL_REF: JsonDict = {"known": "models"}
"""Name of a model; not a path."""
RUN_REF: JsonDict = {"known": "runs"}
"""Run directory; a form accepts the names of the workspace's runs."""
CHECKPOINT_REF: JsonDict = {"known": "checkpoints"}
"""Folder of an adapter; a form accepts checkpoints of known runs."""
DETECTOR_REF: JsonDict = {"known": "detectors"}
"""File of fitted weights of a leak detector; a form accepts those of the workspace."""
DATASET_REF: JsonDict = {"known": "data"}
"""Dataset: the name of a stage, or a dataset folder in a run of the workspace."""
ENDPOINT_REF: JsonDict = {"known": "endpoints"}
"""Address of an endpoint; a form accepts those of this machine and of `RL2F_ENDPOINTS`."""
FILE_REF: JsonDict = {"known": "files"}
"""File or folder of this machine; a form accepts none."""
COMMAND_REF: JsonDict = {"known": "commands"}
"""Program and its arguments; a form accepts none."""
PROBLEMS_REF: JsonDict = {"known": "problems"}
"""Set of math problems; a form accepts known names, but no files."""
QUESTIONS_REF: JsonDict = {"known": "questions"}
"""File of questions; a form accepts the files that were uploaded into the workspace."""
PROMPT_REF: JsonDict = {"known": "prompts"}
"""Prompt template; a form accepts the shipped ones."""

MAX_COUNT, MAX_INTEGER = 1_000_000, 2**63 - 1
"""Bounds of whole numbers without an upper bound of their own: of counts, which have a lower one, and of others."""


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


def _restrict_numbers(schema: Any) -> None:
    """Bound whole numbers, and refuse booleans in place of numbers, which pydantic converts to 0 and 1."""
    if isinstance(schema, list | tuple):
        for item in schema:
            _restrict_numbers(item)
    elif isinstance(schema, dict):
        if schema.get("function") == {"type": "no-info", "function": _refuse_boolean}:
            return  # of a configuration inside
        if schema.get("type") == "int" and not {"le", "lt"} & schema.keys():
            is_count = bool({"ge", "gt"} & schema.keys())
            schema |= {"le": MAX_COUNT} if is_count else {"ge": -MAX_INTEGER, "le": MAX_INTEGER}
        if schema.get("type") == "union":  # without labels, locations of errors would name the function
            choices, numbers = schema["choices"], ("int", "float")
            schema["choices"] = [(c, c["type"]) if isinstance(c, dict) and c["type"] in numbers else c for c in choices]
        for key in schema.keys() - {"metadata", "cls", "config", "default"}:
            _restrict_numbers(schema[key])
        if schema.get("type") in ("int", "float"):
            inner = schema.copy()
            schema.clear()
            schema |= no_info_before_validator_function(_refuse_boolean, inner)


class BaseConfig(BaseModel):
    """Base of all configurations: frozen, without unknown keys, with field docstrings as descriptions.

    Whole numbers are bounded (`MAX_COUNT`, `MAX_INTEGER`), so that no configuration exhausts a server's memory.
    Booleans are no numbers.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Restrict the numbers."""
        schema = handler(source)
        _restrict_numbers(schema)
        return schema


class ComponentConfig(BaseConfig):
    """Base of the configuration of a registered component."""

    type: str = ""
    """Registered name; subclasses narrow it to a one-value `Literal` with a default."""
