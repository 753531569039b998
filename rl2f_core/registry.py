"""One registry for every kind of component: environment, teacher, leak, backend, llm, method, kind.

A component is a class with a nested pydantic `Config` whose `type` is a one-value `Literal`; that literal is its
name.  `discover()` imports the packages below and every plugin named in `RL2F_PLUGINS` (module names or paths of
`.py` files, separated by `os.pathsep`) or in the `rl2f.plugins` entry-point group.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, get_args

from rl2f_core.errors import ConfigError, UnknownNameError

PACKAGES = {
    "environment": "rl2f_core.environments",
    "teacher": "rl2f_core.teachers",
    "leak": "rl2f_core.leaks",
    "backend": "rl2f_core.backends",
    "llm": "rl2f_core.llms",
    "method": "rl2f_core.methods",
    "kind": "rl2f_core.kinds",
}
_components: dict[str, dict[str, type]] = {kind: {} for kind in PACKAGES}
_discovered: set[str] = set()
T = TypeVar("T", bound=type)


def register(kind: str):
    """Class decorator: make a component known under its `Config.type` literal."""

    def add(cls: T) -> T:
        if kind not in _components:
            raise UnknownNameError("Unknown kind of component.", value=kind, known=sorted(_components))
        config: Any = getattr(cls, "Config", None)
        field = getattr(config, "model_fields", {}).get("type")
        literal = get_args(field.annotation) if field is not None else ()
        if len(literal) != 1:
            raise ConfigError(
                f"{cls.__name__} cannot be registered: it has no nested Config with a one-value `type` literal.",
                fix='Add `class Config(BaseConfig): type: Literal["name"] = "name"` to the class.',
            )
        name, held = literal[0], _components[kind].get(literal[0])
        if held is not None and (held.__module__, held.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"The {kind} name is taken by {held.__module__}.{held.__qualname__}.", value=name)
        _components[kind][name] = cls
        return cls

    return add


def get(kind: str, name: str) -> type:
    """The class registered under `name`; raises `UnknownNameError` listing the known names."""
    discover()
    if name not in _components[kind]:
        raise UnknownNameError(f"Unknown {kind}.", value=name, known=names(kind))
    return _components[kind][name]


def long_form(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """A component's settings with `type: family:member` written out.

    A class may say in `member_field` which field of its Config the part after the colon stands for, so that
    `{type: "reasoning_gym:gcd"}` is `{type: reasoning_gym, name: gcd}`. Everything else comes back as it is.
    """
    family, sign, member = data["type"].partition(":") if isinstance(data["type"], str) else ("", "", "")
    field = getattr(_components[kind].get(family), "member_field", "") if sign and family in names(kind) else ""
    if not field:
        return data
    if data.get(field, member) != member:
        raise ValueError(f"type names {member!r} and {field} {data[field]!r}; leave one of them out")
    return {**data, "type": family, field: member}


def names(kind: str) -> list[str]:
    """All registered names of a kind, sorted."""
    discover()
    return sorted(_components[kind])


def discover() -> None:
    """Import every component module and plugin once."""
    for package in PACKAGES.values():
        if package not in _discovered:
            _discovered.add(package)
            path = importlib.import_module(package).__path__
            for module in pkgutil.iter_modules(path):
                if not module.name.startswith("_"):
                    importlib.import_module(f"{package}.{module.name}")
    if "rl2f.plugins" not in _discovered:
        _discovered.add("rl2f.plugins")
        for entry in entry_points(group="rl2f.plugins"):
            load_plugin(entry.value)
    for name in filter(None, os.environ.get("RL2F_PLUGINS", "").split(os.pathsep)):
        load_plugin(name)


def load_plugin(name: str) -> None:
    """Import a plugin by module name or by the path of a `.py` file, once; raises `ConfigError` where there is none."""
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
