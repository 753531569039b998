"""Set nested values of plain data by dotted paths."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import ConfigError
from rl2f_core.types import JsonObject


def set_nested(data: JsonObject, path: str, value: object, shown: str = "") -> JsonObject:
    """Return a copy of `data` in which the path (`a.b.0.c`) has this value; missing mappings are created.

    A bare component name becomes a mapping. Raises `ConfigError`, with `shown` as value, for an invalid path.
    """
    key, *rest = path.split(".")
    return {**data, key: _set(data.get(key), rest, value, shown or path)}


def _set(node: object, keys: Sequence[str], value: object, path: str) -> object:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, list):
        index = whole_number(key, len(node))
        if index >= len(node):
            raise ConfigError("The override has no valid list index.", value=path,
                              known=[str(i) for i in range(len(node))])  # fmt: skip
        return [_set(item, rest, value, path) if i == index else item for i, item in enumerate(node)]
    if isinstance(node, str):
        node = {"type": node}  # bare component name
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise ConfigError("The override sets a key of a plain value.", value=path)
    return {**node, key: _set(node.get(key), rest, value, path)}
