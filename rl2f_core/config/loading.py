"""Load, validate, override and dump run configurations."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rl2f_core import registry
from rl2f_core.common.paths import CONFIGS
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.matrix import cells, is_matrix
from rl2f_core.config.overrides import set_nested
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, shorten_repr, stored_settings
from rl2f_core.types import JsonObject

ConfigT = TypeVar("ConfigT", bound=BaseModel)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Of libyaml, if PyYAML has it: a fifth of the time for the same text, but for where long strings are wrapped."""


def parse_config(data: object) -> BaseRun:
    """Validate a mapping as the config of its `kind` (default: train). Raises `ConfigError` with all invalid fields."""
    if not isinstance(data, dict):
        raise ConfigError("A configuration must be a mapping of keys to values.", value=data)
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in registry.names("run_kind"):
        raise ConfigError("Unknown run kind.", value=kind, known=registry.names("run_kind"))
    config_type = registry.get("run_kind", kind).config_class
    return cast(BaseRun, validate_config(config_type, data))


def parse_recorded(data: object) -> BaseRun:
    """Validate the config of a recorded run as `parse_config` does; settings without effect are accepted."""
    with stored_settings():
        return parse_config(data)


def validate_config(
    config_type: type[ConfigT], data: object, fix: str = "`rl2f config schema` lists every field."
) -> ConfigT:
    """Validate data as a config class. Raises `ConfigError` with all invalid fields, and `fix`."""
    try:
        return config_type.model_validate(data)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, config_type), fix=fix) from error


def parse_yaml(text: str) -> BaseRun:
    """Parse the YAML text of a config. Raises `ConfigError` naming each invalid field."""
    try:
        data = load_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The configuration is not valid YAML: {error}.") from error
    return parse_config(data)


def format_validation_error(error: ValidationError, config_type: type[BaseModel]) -> str:
    """Format a validation error with the path, message and value of each invalid field."""
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"]) or "(the whole configuration)"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"unknown key{_nearest(str(item['loc'][-1]), known_keys(config_type, item['loc'][:-1]))}"
        elif item["type"] != "value_error" and not isinstance(item.get("input"), dict):
            message += f" (got {shorten_repr(item.get('input'), 60)})"
        lines.append(f"{path}: {message}")
    return f"The configuration has {len(lines)} error(s): " + "; ".join(lines) + "."


def known_keys(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Return the keys of the model at a location of a validation error; empty if several models are possible."""
    found: type[BaseModel] | None = model
    for name in (part for part in loc if isinstance(part, str)):
        if found is None or name not in found.model_fields:
            return []
        found = _only_model(found.model_fields[name].annotation)
    return [] if found is None else list(found.model_fields)


def _only_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = {_only_model(part) for part in get_args(annotation)} - {None}
    return models.pop() if len(models) == 1 else None


def _nearest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}" if known else ""


def find_config(path: Path) -> Path:
    """Return the file of a shipped preset if `path` is its name and no file; otherwise `path`."""
    if path.is_file() or path.name != str(path):
        return path
    return next((file for file in CONFIGS.rglob("*.yaml") if file.stem == path.name), path)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> BaseRun:
    """Load a YAML file or a shipped preset, apply `a.b=c` overrides, and validate it.

    Args:
        path: A file, or the name of a preset; `:CELL` after it selects a cell of a matrix.
        overrides: Values to replace.
    """
    path, chosen = Path(path), ""
    if not path.exists() and ":" in path.name:
        file, _, chosen = str(path).rpartition(":")
        path = Path(file)
    path = find_config(path)
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        fix = "Give a YAML file or the name of a preset, such as quickstart."
        raise ConfigError("The configuration file does not exist.", value=str(path), fix=fix) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The configuration file cannot be read: {error}.", value=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("The configuration file contains no mapping.", value=str(path))
    if is_matrix(data):
        configs = cells(data)
        if not chosen:
            raise ConfigError("The file contains a matrix of configurations.", value=str(path), known=configs,
                              fix=f"Choose one: {path}:{next(iter(configs))}")  # fmt: skip
        if chosen not in configs:
            raise ConfigError("The matrix has no such cell.", value=chosen, known=configs)
        data = configs[chosen]
    elif chosen:
        raise ConfigError("The file contains no matrix, so it has no cells.", value=str(path))
    for override in overrides:
        data = apply_override(data, override)
    return parse_config(data)


def apply_override(data: JsonObject, override: str) -> JsonObject:
    """Return a copy of `data` with the override `a.b.0.c=value`; the value is parsed as YAML."""
    dotted, sign, text = override.partition("=")
    if not sign or not dotted:
        raise ConfigError("An override has the form a.b=value.", value=override)
    try:
        value = load_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The override's value is not YAML: {error}.", value=override) from error
    return set_nested(data, dotted, value, override)


def dump_yaml(config: BaseModel) -> str:
    """Dump a config as YAML with all defaults; `load_config` restores the same config."""
    return to_yaml(config.model_dump(mode="json"))


def to_yaml(data: object) -> str:
    """Format plain data as YAML, with the keys in their order. Raises `ConfigError` for a character without UTF-8."""
    try:
        return yaml.dump(data, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=110)
    except UnicodeEncodeError as error:
        raise ConfigError("A text contains half of a surrogate pair.", value=ascii(error.object[:60])) from error
