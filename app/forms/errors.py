"""Errors of the fields of a form, from pydantic's errors and `FieldValueError`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from pydantic import ConfigDict, computed_field
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from app.forms.schema import Node, Path, fields_of, get_item, get_value, options
from rl2f_core.errors import shorten_repr

MAX_ERRORS = 100
_TAGS = {
    "tuple": "list",
    "list": "list",
    "literal": "choice",
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "dict": "map",
}
_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


@dataclass(frozen=True, config=ConfigDict(use_attribute_docstrings=True))
class FieldError:
    """An invalid field."""

    path: Path
    """Keys and positions from the top; empty if no single field is invalid."""
    message: str
    line: int | None = None
    """1-based line of the YAML."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def field(self) -> str:
        """The path with dots, e.g. `stages.1.steps`."""
        return ".".join(str(part) for part in self.path)


def field_errors(errors: Sequence[ErrorDetails], node: Node, data: object) -> list[FieldError]:
    """Return pydantic's first `MAX_ERRORS` errors by field of the form, several of one field as one.

    Args:
        errors: Result of `ValidationError.errors()`.
        node: The form.
        data: The validated data.
    """
    found: dict[Path, list[str]] = {}
    for item in errors[:MAX_ERRORS]:
        path, inside, fits = _follow(item["loc"], node, data)
        if not fits and any(e is not item and _follow(e["loc"], node, data)[0][: len(path)] == path
                            and _follow(e["loc"], node, data)[2] for e in errors):  # fmt: skip
            continue  # the value has the shape of another member of the union
        if item["type"] == "too_short" and any(
            e["loc"][: len(path)] == path and e["loc"] != item["loc"] for e in errors
        ):
            continue  # pydantic counts only valid items
        here = get_value(data, path)
        message = _message(item, [field["key"] for field in fields_of(inside, here)])
        if item["type"] == "extra_forbidden":
            path = (*path, str(item["loc"][-1]))
        elif item["type"] == "value_error":
            path = _follow((*item["loc"], *getattr(item["ctx"]["error"], "loc", ())), node, data)[0]
        messages = found.setdefault(path, [])
        if message not in messages:
            messages.append(message)
    return [FieldError(path, " – or: ".join(messages)) for path, messages in found.items()]


def _follow(loc: Sequence[str | int], node: Node, data: object) -> tuple[Path, Node, bool]:
    """Return the part of a location that is a path of the form, its node, and whether the value has its shape.

    Names of union members are not part of the path.
    """
    path: list[str | int] = []
    fits = True
    for part in loc:
        below = _below(node, part, data)
        if below is None:
            if node["kind"] == "union":
                node = _member(node, str(part))
                fits = fits and _has_shape(node, data)
                continue
            break
        node = below
        path.append(part)
        data = get_item(data, part)
    return tuple(path), node, fits


def _has_shape(node: Node, data: object) -> bool:
    shapes = {"list": list | tuple, "tuple": list | tuple, "object": Mapping, "component": Mapping, "map": Mapping}
    return isinstance(data, shapes.get(node["kind"], str | int | float))


def _member(node: Node, tag: str) -> Node:
    """Return the member of a union with pydantic's tag (`tuple[str, ...]`, `literal['a']`, `constrained-int`)."""
    wanted = _TAGS.get(re.split(r"\W", tag.removeprefix("constrained-"))[0], "object")
    return next((o for o in node["options"] if o["kind"] == wanted), {"kind": "any"})


def _below(node: Node, part: str | int, data: object) -> Node | None:
    kind = node["kind"]
    if kind in ("object", "component"):
        if kind == "component" and part == "type":
            return {"kind": "choice", "values": list(options(node["component"]))}
        return next((f["node"] for f in fields_of(node, data) if f["key"] == part), None)
    if isinstance(part, int):
        if kind == "list":
            return node["item"]
        if kind == "tuple" and part < len(node["items"]):
            return node["items"][part]
        return None
    return node["value"] if kind == "map" else None


def _message(item: ErrorDetails, keys: Sequence[str]) -> str:
    """Return a short message for an error of pydantic; `keys` are the known keys of its section."""
    kind, context, given = item["type"], item.get("ctx") or {}, item.get("input")
    if kind in _LIMITS:
        bound, relation = _LIMITS[kind]
        return f"must be {relation} {_plain(context[bound])}, not {shorten_repr(given, 40)}"
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), keys, 1)
        return "is an unknown key" + (f"; did you mean {near[0]}?" if near else "")
    if kind in ("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type"):
        what = "a whole number" if kind.startswith("int") else "a number"
        return f"must be {what}, not {shorten_repr(given, 40)}"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, not {shorten_repr(given, 40)}"
    if kind in ("model_type", "dict_type"):
        return f"needs keys and values, not {shorten_repr(given, 40)}"
    if kind == "literal_error":
        return f"must be {context['expected']}, not {shorten_repr(given, 40)}"
    if kind == "too_short":
        return f"needs at least {context['min_length']}"
    message = item["msg"].removeprefix("Value error, ")
    if kind != "value_error" and not isinstance(given, Mapping | list | tuple):
        message += f" (got {shorten_repr(given, 60)})"
    return message


def _plain(bound: object) -> str:
    """Return a bound as text, `1` for 1.0."""
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)
