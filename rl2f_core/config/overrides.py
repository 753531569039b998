"""Set nested values of plain data by dotted paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl2f_core.errors import ConfigError


def set_nested(data: Any, path: str, value: Any, shown: str = "") -> Any:
    """Return a copy of `data` in which the path (`a.b.0.c`) has this value; missing mappings are created.

    A bare component name becomes a mapping. Raises `ConfigError`, with `shown` as value, for an invalid path.
    """
    return _set(data, path.split("."), value, shown or path)


def _set(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(node, list):
        if not key.isdigit() or int(key) >= len(node):
            raise ConfigError("The override has no valid list index.", value=path,
                              known=[str(i) for i in range(len(node))])  # fmt: skip
        return [_set(item, rest, value, path) if i == int(key) else item for i, item in enumerate(node)]
    if isinstance(node, str):
        node = {"type": node}  # bare component name
    if node is not None and not isinstance(node, dict):
        raise ConfigError("The override sets a key of a plain value.", value=path)
    return {**(node or {}), key: _set((node or {}).get(key), rest, value, path)}
