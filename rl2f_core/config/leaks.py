"""Configuration of leak detection."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rl2f_core.config.components import LeakDetectorConfig, by_name
from rl2f_core.config.fields import BaseConfig, ComponentConfig


class LeaksConfig(BaseConfig):
    """Detectors that screen hints, and the action for a leak."""

    detectors: tuple[LeakDetectorConfig, ...] = Field(by_name(("mentions",)))
    """Detectors of the cascade, cheapest first."""
    action: Literal["flag", "redact", "resample", "drop"] = "flag"
    """flag: record it. redact: remove the span. resample: request another hint. drop: end the dialogue."""
    max_resamples: int = Field(3, ge=1)
    """Maximum number of resampled hints before the contentless one."""

    @field_validator("detectors")
    @classmethod
    def _once(cls, detectors: tuple[ComponentConfig, ...]) -> tuple[ComponentConfig, ...]:
        """Keep the first of equal detectors, such as those that replace removed ones."""
        return tuple(each for i, each in enumerate(detectors) if each not in detectors[:i])
