"""Configuration of leak detection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rl2f_core.config.components import LeakDetectorConfig, by_name
from rl2f_core.config.fields import BaseConfig, ComponentConfig


def _once(detectors: tuple[ComponentConfig, ...]) -> tuple[ComponentConfig, ...]:
    """Keep the first of equal detectors, such as those that replace removed ones."""
    return tuple(each for i, each in enumerate(detectors) if each not in detectors[:i])


Cascade = Annotated[tuple[LeakDetectorConfig, ...], AfterValidator(_once)]
"""Detectors, cheapest first; each checks the hints that those before it did not flag."""


class LeaksConfig(BaseConfig):
    """Detectors that screen hints, and the action for a leak."""

    detectors: Cascade = Field(by_name(("mentions",)))
    """Detectors of the cascade, cheapest first."""
    action: Literal["flag", "redact", "resample", "drop"] = "flag"
    """flag: record it. redact: remove the span. resample: request another hint. drop: end the dialogue."""
    max_resamples: int = Field(3, ge=1)
    """Maximum number of resampled hints before the contentless one."""
