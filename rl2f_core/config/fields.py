"""Base class of configurations, and the marks of fields for forms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import CoreSchema

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


def _bound_integers(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _bound_integers(item)
    elif isinstance(schema, dict):
        if schema.get("type") == "int" and not {"le", "lt"} & schema.keys():
            is_count = bool({"ge", "gt"} & schema.keys())
            schema |= {"le": MAX_COUNT} if is_count else {"ge": -MAX_INTEGER, "le": MAX_INTEGER}
        for key in schema.keys() - {"metadata", "cls", "config", "default"}:
            _bound_integers(schema[key])


class BaseConfig(BaseModel):
    """Base of all configurations: frozen, without unknown keys, with field docstrings as descriptions.

    Whole numbers are bounded (`MAX_COUNT`, `MAX_INTEGER`), so that no configuration exhausts a server's memory.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Add the bounds of whole numbers."""
        schema = handler(source)
        _bound_integers(schema)
        return schema


class ComponentConfig(BaseConfig):
    """Base of the configuration of a registered component."""

    type: str = ""
    """Registered name; subclasses narrow it to a one-value `Literal` with a default."""
