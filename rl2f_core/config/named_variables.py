"""Environment variables that a configuration names: keys of endpoints, and a webhook as `$NAME`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from rl2f_core.errors import ConfigError


def check_variables(data: Mapping[str, object]) -> None:
    """Raise `ConfigError` if an environment variable that a configuration names is empty or not set."""
    for key, name in _named(data, ""):
        if not os.environ.get(name, "").strip():
            what = f"{key} names an environment variable that is empty or not set."
            raise ConfigError(what, value=name, fix=f"export {name}=… before the start, or change {key}.")


def _named(data: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield dotted key and variable of each setting that names one."""
    name = key.rpartition(".")[2]
    if isinstance(data, str):
        if name == "api_key_env" or (name == "webhook" and data.startswith("$")):
            yield key, data.removeprefix("$")
    elif isinstance(data, Mapping):
        for part, value in data.items():
            yield from _named(value, f"{key}.{part}".removeprefix("."))
    elif isinstance(data, list | tuple):
        for i, value in enumerate(data):
            yield from _named(value, f"{key}.{i}")
