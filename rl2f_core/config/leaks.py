"""Configuration of leak detection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from rl2f_core.config.components import LeakDetectorConfig, by_name
from rl2f_core.config.fields import BaseConfig, ComponentConfig


def _once(detectors: tuple[ComponentConfig, ...]) -> tuple[ComponentConfig, ...]:
    """Keep the first of equal detectors, such as those that replace removed ones."""
    return tuple(detector for i, detector in enumerate(detectors) if detector not in detectors[:i])


Cascade = Annotated[tuple[LeakDetectorConfig, ...], AfterValidator(_once)]
"""Detectors, cheapest first; each checks the hints that those before it did not flag."""


def describe_detector(config: Mapping[str, JsonValue]) -> str:
    """Return the detector's name with the version or the file of its weights, such as `mentions 1`."""
    weights = Path(str(config["path"])).stem if config.get("path") else config.get("version")
    return f"{config['type']} {weights}" if weights else str(config["type"])


class LeaksConfig(BaseConfig):
    """Detectors that screen hints, and the action for a leak."""

    detectors: Cascade = Field(by_name(("mentions",)))
    """Detectors of the cascade, cheapest first."""
    action: Literal["flag", "redact", "resample", "drop"] = "flag"
    """flag: record it. redact: remove the span. resample: request another hint. drop: end the dialogue."""
    max_resamples: int = Field(3, ge=1)
    """Maximum number of resampled hints before the contentless one."""
