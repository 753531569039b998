"""From pydantic config classes to a description of a form, in plain JSON.

A node is a dict with a `kind`:

    object      name, fields        a section: a nested config and its name
    component   component, types    a registered class, chosen by its `type` (see `options`)
    list        item, min, max      any number of items; has `choices` if the items are from a fixed set
    tuple       items               a fixed number of items
    map         value, min          names to values
    union       options             one of several nodes
    choice      values              a fixed set of values
    integer, number, string, boolean        scalars with their bounds
    any         -                   another type that a plug-in declares, edited as YAML

`nullable` permits None; `known` names the list of permitted texts (models, checkpoints).
A field is `{key, label, help, basic, required, default, node}`.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from rl2f_core import registry
from rl2f_core.config.components import Component
from rl2f_core.types import JsonObject

Node = JsonObject
Path = tuple[str | int, ...]
"""Keys and positions from the top."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern")
_SCALARS = {"integer", "number", "string", "boolean"}
_LISTS = (list, tuple, set, frozenset, Sequence)


def run_node(kind: str) -> Node:
    """Return the form of a run kind; raises `UnknownNameError`."""
    return _run_node(kind, _registered())


def options(component: str) -> dict[str, Node]:
    """Return the registered classes of a component category by name, each as a section.

    They are not part of the nodes because a component may contain another one of its category.
    """
    return _options(component, _registered())


def _registered() -> tuple[tuple[str, ...], ...]:
    """Return all registered names, which invalidate the caches when a plug-in registers a class."""
    return tuple(tuple(registry.names(kind)) for kind in registry.PACKAGES)


@functools.lru_cache(maxsize=32)
def _run_node(kind: str, registered: tuple[tuple[str, ...], ...]) -> Node:
    return object_node(config_class(kind))


@functools.lru_cache(maxsize=64)
def _options(component: str, registered: tuple[tuple[str, ...], ...]) -> dict[str, Node]:
    classes = ((name, component_class(component, name)) for name in registry.names(component))
    return {name: object_node(cls) for name, cls in classes if cls is not None}


def config_class(kind: str) -> type[BaseModel]:
    """Return the config class of a registered run kind."""
    return registry.get("run_kind", kind).config_class


def component_class(kind: str, name: object) -> type[BaseModel] | None:
    """Return the Config of a registered component, or None if unknown."""
    if not isinstance(name, str) or name not in registry.names(kind):
        return None
    return registry.get(kind, name).Config


def object_node(cls: type[BaseModel], inside: tuple[type, ...] = ()) -> Node:
    """Return a config class as a section; a class inside itself (one of `inside`) becomes `any`."""
    if cls in inside:
        return {"kind": "any"}
    fields = [_field(name, info, (*inside, cls)) for name, info in cls.model_fields.items()]
    about = {"name": _words(cls), "help": (cls.__doc__ or "").strip()}
    return {"kind": "object", **about, "fields": [f for f in fields if f is not None]}


def _words(cls: type[BaseModel]) -> str:
    """Return the name of a class as words: `Schedule[float]` is a `schedule`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__.partition("[")[0]).lower()


def _field(name: str, info: FieldInfo, inside: tuple[type, ...]) -> Node | None:
    if _is_constant(info.annotation):
        return None
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    node = _node(info.annotation, info.metadata, str(extra.get("known", "")), inside)
    made: Node = {
        "key": name,
        "label": name.removeprefix("num_").replace("_", " "),
        "help": " ".join((info.description or "").split()),
        "basic": bool(extra.get("basic")) or _holds_basic(node),
        "required": info.is_required(),
        "node": node,
    }
    if not info.is_required():
        made["default"] = default_of(info)
    return made


def _holds_basic(node: Node) -> bool:
    """Return whether a section contains a basic field."""
    if node["kind"] == "list":
        return _holds_basic(node["item"])
    return node["kind"] == "object" and any(field["basic"] for field in node["fields"])


def _is_constant(annotation: object) -> bool:
    """Return whether an annotation is a `Literal` of one value, such as the type of a component."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def _node(annotation: object, metadata: Sequence[object], known: str, inside: tuple[type, ...]) -> Node:
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*more, *metadata]
    item = next((m for m in metadata if isinstance(m, Component)), None)
    if item is not None:
        return {"kind": "component", "component": item.category, "types": item.names()}
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return object_node(annotation, inside)
    if origin in (Union, types.UnionType):
        return _union(args, metadata, known, inside)
    if origin is Literal:
        return {"kind": "choice", "values": list(args)}
    if origin in _LISTS or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return _list(origin, args, metadata, known, inside)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        schema = _json_schema(dict[str, int], metadata)  # only the bounds
        return {"kind": "map", "value": _node(args[1], (), known, inside), "min": schema.get("minProperties", 0)}
    return _scalar(_json_schema(annotation, metadata), known)


def _union(args: Sequence[object], metadata: Sequence[object], known: str, inside: tuple[type, ...]) -> Node:
    rest = [arg for arg in args if arg is not type(None)]
    nullable = {"nullable": True} if len(rest) < len(args) else {}
    if len(rest) == 1:
        return {**_node(rest[0], metadata, known, inside), **nullable}
    return {"kind": "union", "options": [_node(arg, metadata, known, inside) for arg in rest], **nullable}


def _list(
    origin: object, args: Sequence[object], metadata: Sequence[object], known: str, inside: tuple[type, ...]
) -> Node:
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return {"kind": "tuple", "items": [_node(arg, (), known, inside) for arg in args]}
    item = _node(args[0], (), known, inside)
    schema = _json_schema(list[int], metadata)
    node = {"kind": "list", "item": item, "min": schema.get("minItems", 0), "max": schema.get("maxItems")}
    if item["kind"] == "choice" and not item.get("nullable"):
        node["choices"] = item["values"]
    return node


def _scalar(schema: JsonObject, known: str) -> Node:
    kind = schema.get("type")
    if schema.get("enum"):
        return {"kind": "choice", "values": list(schema["enum"])}
    if kind not in _SCALARS:
        return {"kind": "any"}
    node = {"kind": kind, **{name: schema[name] for name in _BOUNDS if name in schema}}
    return {**node, "known": known} if known and kind == "string" else node


def _json_schema(annotation: Any, metadata: Sequence[object]) -> JsonObject:
    marked = annotation
    for mark in metadata:
        marked = Annotated[marked, mark]
    for wanted in (marked, annotation):
        try:
            schema = TypeAdapter(wanted).json_schema()
        except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, TypeError):
            continue
        if "$ref" in schema:
            return schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        return schema
    return {}


# -- values ------------------------------------------------------------------------------------------------------------
def default_of(info: FieldInfo) -> object:
    """Return the default of a field as in a resolved YAML file."""
    value = info.get_default(call_default_factory=True, validated_data={})
    return complete_value(info.annotation, info.metadata, plain(value))


def plain(value: object) -> object:
    """Convert models and tuples to mappings and lists."""
    return TypeAdapter(object).dump_python(value, mode="json")


def complete(cls: type[BaseModel], value: Mapping[str, object]) -> JsonObject:
    """Return a mapping with the defaults of a class, in the order of its fields.

    A valid value becomes its dump. Invalid values are kept, unknown keys come last, and required fields without a
    value stay missing.
    """
    try:
        return cls.model_validate(value).model_dump(mode="json")
    except (ValidationError, RecursionError):
        pass
    made: JsonObject = {}
    for name, info in cls.model_fields.items():
        if name in value:
            made[name] = complete_value(info.annotation, info.metadata, value[name])
        elif not info.is_required():
            made[name] = default_of(info)
    return made | {key: item for key, item in value.items() if key not in made}


def complete_value(annotation: object, metadata: Sequence[object], value: object) -> object:
    """Apply `complete` to the value of a field."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*more, *metadata]
    item = next((m for m in metadata if isinstance(m, Component)), None)
    if item is not None:
        if isinstance(value, str):
            value = {"type": value}
        cls = component_class(item.category, value.get("type")) if isinstance(value, Mapping) else None
        return complete(cls, value) if cls is not None and isinstance(value, Mapping) else value
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return complete(annotation, value) if isinstance(value, Mapping) else value
    args = get_args(annotation)
    if typing.get_origin(annotation) in (list, tuple) and isinstance(value, list | tuple) and args:
        fixed = args[1:] and args[1] is not Ellipsis
        return [complete_value(args[i] if fixed and i < len(args) else args[0], (), v) for i, v in enumerate(value)]
    return value


# -- values ------------------------------------------------------------------------------------------------------------
def fields_of(node: Node, value: object) -> list[Node]:
    """Return the fields of a section; those of a component depend on the `type` in its value."""
    if node["kind"] == "object":
        return node["fields"]
    if node["kind"] != "component":
        return []
    name = value if isinstance(value, str) else get_item(value, "type")
    return options(node["component"]).get(name, {"fields": []})["fields"] if isinstance(name, str) else []


def get_value(value: object, path: Path) -> Any:
    """Return the value at a path, or None."""
    for key in path:
        value = get_item(value, key)
    return value


def get_item(holder: object, key: str | int) -> Any:
    """Return the value of a key or position, or None."""
    if isinstance(holder, Mapping):
        return holder.get(key)
    if isinstance(holder, list | tuple) and isinstance(key, int) and 0 <= key < len(holder):
        return holder[key]
    return None
