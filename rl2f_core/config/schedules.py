"""Schedules: values over the steps of a stage.

Steps are 0-based, so a point at step 100 applies after 100 steps, at step 101 of metrics and checkpoints. A value
depends only on the step, so a resumed run continues its schedules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from rl2f_core.config.fields import BaseConfig
from rl2f_core.errors import FieldValueError

T = TypeVar("T", int, float)
Interpolation = Literal["step", "linear"]
Temperature = Annotated[float, Field(gt=0, le=10)]
GroupSize = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class SchedulePoint(BaseConfig, Generic[T]):
    """A value at a step."""

    step: int = Field(0, ge=0)
    """0-based step of the stage."""
    value: T
    """Value from this step on."""


class Schedule(BaseConfig, Generic[T]):
    """A value over steps; in YAML also the bare list of points."""

    points: tuple[SchedulePoint[T], ...] = Field(min_length=1)
    """Points in order, the first at step 0. The last value stays."""
    interpolation: Interpolation = "step"
    """Between two points: step keeps the earlier value, linear interpolates."""

    @model_validator(mode="before")
    @classmethod
    def _parse_list(cls, data: Any) -> Any:
        return {"points": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _check_order(self) -> Schedule[T]:
        steps = [point.step for point in self.points]
        if steps[0] != 0:
            raise FieldValueError(
                f"points begin at step {steps[0]}, without an earlier value; set the first step to 0", "points"
            )
        if steps != sorted(set(steps)):
            raise FieldValueError(f"points have the steps {steps}; steps must increase", "points")
        return self

    def at(self, step: int) -> float:
        """Return the value at a 0-based step."""
        return interpolate([(point.step, point.value) for point in self.points], step, self.interpolation)

    def values(self) -> list[T]:
        """Return the values of the points."""
        return [point.value for point in self.points]


def interpolate(points: Sequence[tuple[int, float]], step: int, interpolation: Interpolation = "step") -> float:
    """Return the value of a schedule, (step, value) points in order, at a 0-based step.

    Before the first point the value is the first one, after the last point the last one.
    """
    i = bisect_right([start for start, _ in points], step) - 1
    if i < 0:
        return points[0][1]
    start, value = points[i]
    if interpolation == "step" or i + 1 == len(points):
        return value
    end, following = points[i + 1]
    return value + (following - value) * (step - start) / (end - start)


def resolve_float(value: float | Schedule[Any], step: int) -> float:
    """Return a number or the value of a schedule at a 0-based step."""
    return value.at(step) if isinstance(value, Schedule) else value


def resolve_int(value: int | Schedule[int], step: int) -> int:
    """Resolve a count, rounded to the nearest integer, halves up."""
    return int(resolve_float(value, step) + 0.5)


def describe(value: float | Schedule[Any]) -> str:
    """Describe a value: `8`, `8 → 16 at step 100`, or (linear) `0.1 → 0.01 by step 50`."""
    if not isinstance(value, Schedule):
        return f"{value:g}"
    preposition = "by" if value.interpolation == "linear" else "at"
    first, *rest = value.points
    return " → ".join([f"{first.value:g}", *(f"{p.value:g} {preposition} step {p.step}" for p in rest)])
