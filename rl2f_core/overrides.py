"""Setting one value deep inside plain data by its dotted path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl2f_core.errors import ConfigError


def put(data: Any, path: str, value: Any, shown: str = "") -> Any:
    """A copy of `data` in which `a.b.0.c` is `value`; list positions are numbers, and missing mappings are made.

    A component that is written by its bare name becomes a mapping.  Raises `ConfigError` where the path leads nowhere,
    which it calls `shown`.
    """
    return _put(data, path.split("."), value, shown or path)


def _put(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(node, list):
        if not key.isdigit() or int(key) >= len(node):
            raise ConfigError("The override names no entry of the list.", value=path,
                              known=[str(i) for i in range(len(node))])  # fmt: skip
        return [_put(item, rest, value, path) if i == int(key) else item for i, item in enumerate(node)]
    if isinstance(node, str):
        node = {"type": node}  # a component written by its bare name
    if node is not None and not isinstance(node, dict):
        raise ConfigError("The override goes below a plain value.", value=path)
    return {**(node or {}), key: _put((node or {}).get(key), rest, value, path)}
