"""Parse leak detectors from a command line: names, names with settings, or a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.config.components import REMOVED_DETECTORS
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.loading import apply_override, format_validation_error
from rl2f_core.config.named_variables import check_variables
from rl2f_core.errors import ConfigError

_SETTING = re.compile(r":(?=[A-Za-z_][\w.]*=)")
SYNTAX = (
    "Write names (exact,mentions), settings after colons (likelihood:threshold=2:dialogue_context=none), "
    "or a YAML or JSON file."
)


def parse_detectors(text: str) -> tuple[ComponentConfig, ...]:
    """Return the detectors' configurations, in order.

    Args:
        text: `exact,mentions`; `likelihood:threshold=2`, nested settings with dots (`llm_judge:llm.type=local`);
            or the path of a YAML or JSON file with a list of detectors, a mapping with `detectors`, or a run's
            configuration.

    Raises `ConfigError` if invalid, or if an environment variable that a detector names is not set.
    """
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json") and not _SETTING.search(text):
        return _validate(_load_file(path))
    known = (*registry.names("leak_detector"), *REMOVED_DETECTORS)
    comma = re.compile(rf",(?=\s*(?:{'|'.join(map(re.escape, known))})\s*(?:[:,]|$))")
    parts = [part.strip() for part in comma.split(text.strip().strip(",")) if part.strip()]
    return _validate([_parse_settings(part) for part in parts])


def _validate(detectors: object) -> tuple[ComponentConfig, ...]:
    if not isinstance(detectors, list | tuple) or not detectors:
        raise ConfigError("No detector is named.", value=detectors, known=registry.names("leak_detector"), fix=SYNTAX)
    try:
        parsed = LeaksConfig(detectors=tuple(detectors)).detectors
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, LeaksConfig), fix=SYNTAX) from error
    check_variables({"detectors": [detector.model_dump() for detector in parsed]})
    return parsed


def _parse_settings(part: str) -> dict[str, Any]:
    name, *settings = _SETTING.split(part)
    data: dict[str, Any] = {"type": name}
    for setting in settings:
        data = apply_override(data, setting)
    return data


def _load_file(path: Path) -> object:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"The detectors' file cannot be read: {error}.", value=str(path), fix=SYNTAX) from error
    for key in ("leak_detection", "detectors"):
        if isinstance(data, dict) and key in data:
            data = data[key]
    return [data] if isinstance(data, dict) else data
