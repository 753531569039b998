"""Schedules: values over the steps of a stage.

Steps are 0-based, so a point at step 100 applies after 100 steps, at step 101 of metrics and checkpoints. A value
depends only on the step, so a resumed run continues its schedules.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, model_validator

from rl2f_core.config.fields import BaseConfig
from rl2f_core.errors import FieldValueError

T = TypeVar("T", int, float)
GREEDY_LIMIT = 0.01
"""Temperatures up to this are greedy: they select the most likely token. vLLM samples at no lower temperature."""
Temperature = Annotated[float, Field(gt=GREEDY_LIMIT, le=10)]
GroupSize = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class _GenericConfig(BaseConfig):
    """Base of generic configurations.

    Their fields have explicit descriptions: for a type such as `Schedule[int]`, which has no source, pydantic would
    search all frames of the stack and all modules.
    """

    model_config = ConfigDict(use_attribute_docstrings=False)


class SchedulePoint(_GenericConfig, Generic[T]):
    """A value at a step."""

    step: int = Field(0, ge=0, description="0-based step of the stage.")
    value: T = Field(description="Value from this step on.")


class Schedule(_GenericConfig, Generic[T]):
    """A value over steps; in YAML also the bare list of points."""

    points: tuple[SchedulePoint[T], ...] = Field(
        min_length=1, description="Points in order, the first at step 0. The last value stays."
    )
    interpolation: Literal["step", "linear"] = Field(
        "step", description="Between two points: step keeps the earlier value, linear interpolates."
    )

    @model_validator(mode="before")
    @classmethod
    def _parse_list(cls, data: object) -> object:
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
        i = bisect_right(self.points, step, key=lambda point: point.step) - 1
        point = self.points[i]
        if self.interpolation == "step" or i + 1 == len(self.points):
            return point.value
        end = self.points[i + 1]
        return point.value + (end.value - point.value) * (step - point.step) / (end.step - point.step)


def resolve_float(value: float | Schedule[int] | Schedule[float], step: int) -> float:
    """Return a number or the value of a schedule at a 0-based step."""
    return value.at(step) if isinstance(value, Schedule) else value


def peak(value: float | Schedule[int] | Schedule[float]) -> float:
    """Return a number or the highest value of a schedule."""
    return max(point.value for point in value.points) if isinstance(value, Schedule) else value


def resolve_int(value: int | Schedule[int], step: int) -> int:
    """Resolve a count, rounded to the nearest integer, halves up."""
    return int(resolve_float(value, step) + 0.5)
