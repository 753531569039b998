"""Registry of components by category and name; it knows none of them.

A component is a class with a nested pydantic `Config`; the one-value `Literal` of its field `type` is the name. A run
kind has a `config_class` with the field `kind` instead. `discover()` imports `PACKAGES` and all plugins: those
in `RL2F_PLUGINS` (module names or `.py` paths, separated by `os.pathsep`) and in the entry-point group `rl2f.plugins`.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import pkgutil
import sys
import threading
from collections import defaultdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, get_args

from rl2f_core.errors import ConfigError, FieldValueError, UnknownNameError

PACKAGES: dict[str, tuple[str, ...]] = {}
"""Packages of each category, whose modules are all imported; `rl2f_core/__init__.py` declares them."""
_components: defaultdict[str, dict[str, type]] = defaultdict(dict)
_discovered: set[str] = set()
_lock = threading.RLock()
T = TypeVar("T", bound=type)


def register(category: str):
    """Register a component class under its `Config.type`."""

    def add(cls: T) -> T:
        if category not in PACKAGES:
            raise UnknownNameError("Unknown category of components.", value=category, known=sorted(PACKAGES))
        holder, key = ("config_class", "kind") if category == "run_kind" else ("Config", "type")
        config = getattr(cls, holder, None)
        field = getattr(config, "model_fields", {}).get(key)
        literal = get_args(field.annotation) if field is not None else ()
        if len(literal) != 1:
            raise ConfigError(
                f"{cls.__name__} cannot be registered: it has no nested {holder} with a one-value `{key}` literal.",
                fix=f'Add a {holder} with the field `{key}: Literal["name"] = "name"` to the class.',
            )
        name, other = literal[0], _components[category].get(literal[0])
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"The {category} name is taken by {other.__module__}.{other.__qualname__}.", value=name)
        _components[category][name] = cls
        return cls

    return add


def get(category: str, name: str) -> type[Any]:
    """Return the class registered under `name`. Raises `UnknownNameError` listing the known names."""
    discover()
    if name not in _components[category]:
        raise UnknownNameError(f"Unknown {category}.", value=name, known=names(category))
    return _components[category][name]


def expand_type(category: str, data: dict[str, Any]) -> dict[str, Any]:
    """Expand `type: family:member` in a component's settings; return other settings unchanged.

    The class attribute `member_field` names the Config field for the part after the colon, so that
    `{type: "reasoning_gym:gcd"}` becomes `{type: reasoning_gym, name: gcd}`.
    """
    family, sign, member = data["type"].partition(":") if isinstance(data["type"], str) else ("", "", "")
    field = getattr(_components[category].get(family), "member_field", "") if sign and family in names(category) else ""
    if not field:
        return data
    if data.get(field, member) != member:
        raise FieldValueError(f"type {member!r} conflicts with {field} {data[field]!r}; remove one of them", field)
    return {**data, "type": family, field: member}


def names(category: str) -> list[str]:
    """List all registered names of a category, sorted."""
    discover()
    return sorted(_components[category])


def discover() -> None:
    """Import all component modules and plugins once; other threads wait until all are known."""
    with _lock:
        if not _discovered.issuperset(itertools.chain(*PACKAGES.values())):
            _import_packages()
        if "rl2f.plugins" not in _discovered:
            _discovered.add("rl2f.plugins")
            for entry in entry_points(group="rl2f.plugins"):
                load_plugin(entry.value)
        for name in filter(None, os.environ.get("RL2F_PLUGINS", "").split(os.pathsep)):
            load_plugin(name)


def _import_packages() -> None:
    for package in itertools.chain(*PACKAGES.values()):
        if package not in _discovered:
            _discovered.add(package)
            path = importlib.import_module(package).__path__
            for module in pkgutil.iter_modules(path):
                if not module.name.startswith("_"):
                    importlib.import_module(f"{package}.{module.name}")


def load_plugin(name: str) -> None:
    """Import a plugin once, by module name or `.py` path. Raises `ConfigError` if it does not exist."""
    if name in _discovered:
        return
    _discovered.add(name)
    if not name.endswith(".py"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"The plugin cannot be imported: {error}.", value=name, fix="Correct RL2F_PLUGINS."
            ) from error
        return
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(f"rl2f_plugin_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError("The plugin file does not exist.", value=name, fix="Correct RL2F_PLUGINS.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
