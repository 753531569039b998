"""A configuration's field that holds the config of a registered component: chosen by `type`, checked by its class."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, GetJsonSchemaHandler, SerializeAsAny

from rl2f_core import registry
from rl2f_core.fields import BaseConfig


class Component:
    """Annotation of a field that holds the config of a registered component, narrowed by its `type`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def narrow(self, value: Any) -> Any:
        """A dict (or a bare name) becomes the registered class's own Config."""
        if isinstance(value, BaseModel):
            self._refuse(getattr(value, "type", None))
            return value
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict) or "type" not in value:
            raise ValueError(f"needs a `type`; known: {', '.join(self.names())}")
        value = registry.long_form(self.kind, value)
        self._refuse(value["type"])
        if value["type"] not in self.names():
            raise ValueError(f"unknown {self.kind} {value['type']!r}; known: {', '.join(self.names())}")
        return registry.get(self.kind, value["type"]).Config.model_validate(value)  # type: ignore[attr-defined]

    def names(self) -> list[str]:
        """The registered names that a configuration can hold."""
        return [name for name in registry.names(self.kind) if not _refusal(self.kind, name)]

    def _refuse(self, name: Any) -> None:
        if isinstance(name, str) and name in registry.names(self.kind) and (refusal := _refusal(self.kind, name)):
            raise ValueError(refusal)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        options = {}
        for name in self.names():
            options[name] = _inlined(registry.get(self.kind, name).Config.model_json_schema())  # type: ignore[attr-defined]
        return {"oneOf": list(options.values()), "x-component": self.kind}


def _refusal(kind: str, name: str) -> str:
    """Why no configuration can hold a registered component; empty where it can."""
    return str(getattr(registry.get(kind, name), "not_configurable", ""))


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without `$defs`: models that a component nests stand where they are used."""
    known = schema.pop("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        found = known[node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
        return {key: walk(value) for key, value in {**found, **node}.items() if key != "$ref"}

    return walk(schema)  # type: ignore[no-any-return]


def component(kind: str) -> Any:
    """The type of a component field."""
    mark = Component(kind)
    return Annotated[SerializeAsAny[BaseConfig], mark, BeforeValidator(mark.narrow)]
