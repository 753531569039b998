"""Configuration fields for registered components, selected by `type`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializeAsAny
from pydantic_core import CoreSchema, core_schema

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig, ComponentConfig
from rl2f_core.types import JsonObject


@dataclass(frozen=True)
class Component:
    """Annotation of a field with the config of a registered component."""

    category: str
    """Category in the registry."""
    other_than: tuple[str, ...] = ()
    """Names that are not allowed."""
    reason: str = ""
    """Error message for them; `{}` is the name."""
    also: tuple[str, ...] = ()
    """Names that are allowed although their class has an `unavailable_reason`."""
    replaced: tuple[str, ...] = ()
    """The name of a component, and the removed ones that it replaces in the configurations of recorded runs."""
    kept: tuple[str, ...] = ()
    """Settings of the removed components that have the same meaning in the new one; the others are dropped."""

    def validate(self, value: object) -> BaseModel:
        """Validate a dict or a bare name as the Config of the registered class."""
        if isinstance(value, str):
            value = {"type": value}
        if isinstance(value, BaseModel):
            name = getattr(value, "type", None)
        elif isinstance(value, dict) and "type" in value:
            value = registry.expand_type(self.category, self._replace(value))
            name = value["type"]
        else:
            raise ValueError(f"needs a `type`; known: {', '.join(self.names())}")
        if isinstance(name, str) and name in registry.names(self.category):
            if reason := self._unavailable_reason(name):
                raise ValueError(reason)
            if not isinstance(value, BaseModel):
                value = registry.get(self.category, name).Config.model_validate(value)
        if not isinstance(value, BaseModel):
            raise ValueError(f"unknown {self.category} {name!r}; known: {', '.join(self.names())}")
        return value

    def _replace(self, value: JsonObject) -> JsonObject:
        new, *removed = self.replaced or ("",)
        if value["type"] not in removed:
            return value
        return {"type": new, **{key: value[key] for key in self.kept if key in value}}

    def names(self) -> list[str]:
        """List the registered names that a configuration may use."""
        return [name for name in registry.names(self.category) if not self._unavailable_reason(name)]

    def _unavailable_reason(self, name: str) -> str:
        """Return why a configuration cannot use a component; empty if it can."""
        if name in self.other_than:
            return self.reason.format(name)
        return "" if name in self.also else str(getattr(registry.get(self.category, name), "unavailable_reason", ""))

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        config = handler.generate_schema(SerializeAsAny[BaseConfig])
        return core_schema.no_info_before_validator_function(self.validate, config)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonObject:
        options = [
            _inline_definitions(registry.get(self.category, name).Config.model_json_schema()) for name in self.names()
        ]
        return {"oneOf": options, "x-component": self.category}


EnvironmentConfig = Annotated[ComponentConfig, Component("environment")]
TeacherConfig = Annotated[ComponentConfig, Component("teacher")]
StageTeacherConfig = Annotated[ComponentConfig, Component("teacher", also=("shuffled",))]
REMOVED_DETECTORS = ("equivalent", "candidates", "classifier")
"""Names that configurations of recorded runs have; `mentions` replaces them."""
LeakDetectorConfig = Annotated[
    ComponentConfig, Component("leak_detector", replaced=("mentions", *REMOVED_DETECTORS), kept=("partial",))
]
BackendConfig = Annotated[ComponentConfig, Component("backend")]
LLMConfig = Annotated[ComponentConfig, Component("llm")]
MethodConfig = Annotated[ComponentConfig, Component("method")]
TrackerConfig = Annotated[ComponentConfig, Component("tracker")]


def wrapped_by(name: str) -> Component:
    """Return the field of the teacher that another one wraps; such a teacher cannot wrap one of them."""
    return Component("teacher", other_than=("leaky", "neutral_text", "shuffled"), reason=f"{name} cannot wrap {{}}")


def wrapped_teacher(config: ComponentConfig) -> ComponentConfig:
    """Return the teacher that a teacher wraps (field `base`), or else the teacher itself."""
    base = getattr(config, "base", None)
    return base if isinstance(base, ComponentConfig) else config


def by_name(default: object) -> Any:
    """Return registered names as the default of a component field; validation replaces them by their configs."""
    return default


def _inline_definitions(schema: JsonObject) -> JsonObject:
    """Replace all references to `$defs` in a JSON schema by the definitions."""
    known = schema.pop("$defs", {})

    def walk(node: object) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        definition = known[node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
        return {key: walk(value) for key, value in {**definition, **node}.items() if key != "$ref"}

    result: JsonObject = walk(schema)
    return result
