"""Values that change while a stage trains: points over its steps, and what holds between them.

A step is the number of steps done before, so a point at 100 begins to hold after 100 steps, at the step that metrics
and checkpoints call 101.  A value follows from the step alone, so a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from rl2f_core.fields import BaseConfig

T = TypeVar("T", int, float)
Between = Literal["piecewise", "linear"]
Temperature = Annotated[float, Field(gt=0, le=10)]
GroupSize = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class Point(BaseConfig, Generic[T]):
    """A value from a step on."""

    step: int = Field(0, ge=0)
    """Steps of the stage done before it holds."""
    value: T
    """What holds from there on."""


class Schedule(BaseConfig, Generic[T]):
    """A value that changes with the step; in YAML also as the bare list of its points."""

    points: tuple[Point[T], ...] = Field(min_length=1)
    """In order; the first is at step 0. After the last one its value stays."""
    between: Between = "piecewise"
    """Between two points: piecewise keeps the earlier value, linear goes evenly from one to the other."""

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, data: Any) -> Any:
        return {"points": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _in_order(self) -> Schedule[T]:
        steps = [point.step for point in self.points]
        if steps[0] != 0:
            raise ValueError(f"points begin at step {steps[0]}, so nothing holds before it; put the first at step 0")
        if steps != sorted(set(steps)):
            raise ValueError(f"points stand at steps {steps}; put them in order, each at a step of its own")
        return self

    def at(self, step: int) -> float:
        """The value at a 0-based step."""
        return value_at([(point.step, point.value) for point in self.points], step, self.between)

    def values(self) -> list[T]:
        """The values of the points; all others lie between two of them."""
        return [point.value for point in self.points]


def value_at(points: Sequence[tuple[int, float]], step: int, between: Between = "piecewise") -> float:
    """The value of a schedule at a 0-based step.

    Args:
        points: (step, value) by rising step.
        step: Before the first point the first value holds, after the last one the last.
        between: See `Schedule.between`.
    """
    i = bisect_right([start for start, _ in points], step) - 1
    if i < 0:
        return points[0][1]
    start, value = points[i]
    if between == "piecewise" or i + 1 == len(points):
        return value
    end, following = points[i + 1]
    return value + (following - value) * (step - start) / (end - start)


def number_at(held: float | Schedule[Any], step: int) -> float:
    """A setting that may be a plain number or a schedule, at a 0-based step."""
    return held.at(step) if isinstance(held, Schedule) else held


def whole_at(held: int | Schedule[int], step: int) -> int:
    """The same for a count: rounded to the nearest whole number, halves up."""
    return int(number_at(held, step) + 0.5)


def in_words(held: float | Schedule[Any]) -> str:
    """`8`, `8 → 16 at step 100`, or `0.1 → 0.01 by step 50` where it goes there evenly."""
    if not isinstance(held, Schedule):
        return f"{held:g}"
    word = "by" if held.between == "linear" else "at"
    first, *rest = held.points
    return " → ".join([f"{first.value:g}", *(f"{p.value:g} {word} step {p.step}" for p in rest)])
