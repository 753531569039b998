"""Configuration of an evaluation by level."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator

from rl2f_core import registry
from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, ComponentConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.environments import capabilities
from rl2f_core.errors import FieldValueError


class LevelsRun(BaseRun):
    """Evaluation by level. It uses only temperature and seed of `evaluation`."""

    kind: Literal["levels"] = "levels"
    """Run kind."""
    adapters: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC_FIELD, **CHECKPOINT_REF})
    """Name in the report → directory of a LoRA adapter; null is the base model."""
    field: str | None = Field(None, max_length=100, json_schema_extra=BASIC_FIELD)
    """Integer field of the environment to sweep; null for its level field."""
    values: tuple[int, ...] = Field((), max_length=100, json_schema_extra=BASIC_FIELD)
    """Values from easy to hard; empty for the environment's own."""
    perturbations: tuple[str, ...] | None = Field(None, json_schema_extra=BASIC_FIELD)
    """Perturbed variants of each task; null for all of the environment, [] for none."""
    tasks: int = Field(100, ge=1, le=100_000, json_schema_extra=BASIC_FIELD)
    """Tasks per level, all of distinct problems; a split with fewer problems is used completely."""
    samples: int = Field(1, ge=1, le=1000)
    """Dialogues per task and variant."""
    turns: int = Field(1, ge=1, le=64)
    """Turns on original tasks; variants and accuracy use only the first attempt."""
    split: Literal["train", "validation", "test"] = "test"
    """Split of the tasks; use `train` to measure memorization."""

    @model_validator(mode="after")
    def _check_levels(self) -> LevelsRun:
        own, field = self._own_levels(), self.sweep_field()
        name = self.environment.type
        if field is None and self.values:
            raise FieldValueError(f"values need a field: {name} names none as its level", "values")
        if field is not None and field not in type(self.environment).model_fields:
            known = ", ".join(type(self.environment).model_fields)
            raise FieldValueError(f"field {field!r} is none of {name}; known: {known}", "field")
        if len(set(self.values)) != len(self.values):
            raise FieldValueError(f"values are given twice: {list(self.values)}", "values")
        if self.field is not None and not self.values and (own is None or self.field != own.level_field):
            raise FieldValueError(f"field {self.field!r} needs values: {name} lists none for it", "field")
        offered = capabilities.perturbation_names(self.environment)
        unknown = [n for n in self.perturbations or () if n not in offered]
        if unknown:
            known = ", ".join(offered) or "none"
            raise FieldValueError(
                f"perturbation {unknown[0]!r} is not offered by {name}; known: {known}", "perturbations"
            )
        self.levels()
        return self

    def _own_levels(self) -> type[capabilities.Levels] | None:
        """Return the environment's class if it defines levels."""
        kind = registry.get("environment", self.environment.type)
        return kind if issubclass(kind, capabilities.Levels) else None

    def sweep_field(self) -> str | None:
        """Return the swept field; None without a sweep."""
        own = self._own_levels()
        return self.field or (None if own is None else own.level_field)

    def variants(self) -> tuple[str, ...]:
        """Return the names of the perturbed variants."""
        if self.perturbations is not None:
            return self.perturbations
        return capabilities.perturbation_names(self.environment)

    def levels(self) -> dict[str, ComponentConfig]:
        """Return the environment's configuration by level, e.g. `people=3`."""
        own, field = self._own_levels(), self.sweep_field()
        if field is None:
            return {"as configured": self.environment}
        configs = {}
        for value in self.values or (own.level_values if own is not None else ()):
            try:
                configs[f"{field}={value}"] = type(self.environment).model_validate(
                    {**self.environment.model_dump(), field: value}
                )
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise FieldValueError(
                    f"{field}={value} is not a level of {self.environment.type}: {reason}",
                    "values" if self.values else "environment",
                ) from error
        return configs

    def value_of(self, level: str) -> int | None:
        """Return the field's value at a level, or None."""
        _, sign, text = level.rpartition("=")
        return int(text) if sign else None
