"""Detectors by what people write: names, names with settings, or a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.config import BaseConfig, LeaksConfig, apply_override, describe
from rl2f_core.errors import ConfigError

_SETTING = re.compile(r":(?=[A-Za-z_][\w.]*=)")
FORM = "Write names (exact,equivalent), settings after colons (probe:threshold=2:history=none), or a YAML or JSON file."


def parse_detectors(text: str) -> tuple[BaseConfig, ...]:
    """The configs of detectors, in order.

    Args:
        text: `exact,equivalent`; `probe:threshold=2`, where nested settings have dots (`derivation:llm.type=local`);
            or the path of a YAML or JSON file that holds a list of detectors, a mapping with `detectors`, or a run's
            configuration.

    Raises `ConfigError`.
    """
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json"):
        return checked(_of_file(path))
    known = registry.names("leak")
    comma = re.compile(rf",(?=\s*(?:{'|'.join(map(re.escape, known))})\s*(?:[:,]|$))")
    parts = [part.strip() for part in comma.split(text.strip().strip(","))]
    if not any(parts):
        raise ConfigError("No detector is named.", known=known, fix=FORM)
    return checked([_of_words(part) for part in parts])


def checked(detectors: Any) -> tuple[BaseConfig, ...]:
    """Validate a list of detectors' settings; raises `ConfigError`."""
    if not isinstance(detectors, list | tuple) or not detectors:
        raise ConfigError("No detector is named.", value=detectors, known=registry.names("leak"), fix=FORM)
    try:
        return LeaksConfig(detectors=tuple(detectors)).detectors
    except ValidationError as error:
        raise ConfigError(describe(error, LeaksConfig), fix=FORM) from error


def _of_words(part: str) -> dict[str, Any]:
    name, *settings = _SETTING.split(part)
    data: dict[str, Any] = {"type": name}
    for setting in settings:
        data = apply_override(data, setting)
    return data


def _of_file(path: Path) -> Any:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The detectors' file cannot be read: {error}.", value=str(path), fix=FORM) from error
    for key in ("leaks", "detectors"):
        if isinstance(data, dict) and key in data:
            data = data[key]
    return [data] if isinstance(data, dict) else data
