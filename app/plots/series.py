"""Conversion of metric rows to lines: x axis, smoothing, intervals of fractions, gaps between stages.

Smoothing is a bias-corrected exponential moving average: after steps x₁ … x_t with weight β it is
Σ βᵗ⁻ⁱ xᵢ / Σ βᵗ⁻ⁱ. It restarts at each stage. The interval of a smoothed fraction is Wilson's with the effective number
of observations (Σ wᵢ)² / Σ (wᵢ² / nᵢ), wᵢ = βᵗ⁻ⁱ (Kish 1965).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from rl2f_core.common.stats.intervals import wilson
from rl2f_core.common.text.integers import whole_number
from rl2f_core.evaluation.plotting import Line, Mark, Number

XKind = Literal["step", "tokens", "time"]
T = TypeVar("T")
MAX_POINTS = 800
"""Maximum points of a line; of more, every k-th and the last are shown."""


class Look(NamedTuple):
    """Color and dash of a line."""

    color: str = "--rl-student"
    dash: str = "solid"


class MetricRow(Protocol):
    """A row of `jobs.db.models.Metric`."""

    stage: str
    step: int
    number: int
    time: float
    tokens: float
    values: dict[str, float]


@dataclass
class StepMetrics:
    """Metrics of one step; a `MetricRow`."""

    stage: str
    step: int
    number: int
    time: float
    values: dict[str, float]
    tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Axis:
    """The x values of metric rows."""

    rows: Sequence[MetricRow]
    values: list[float]
    title: str
    starts: list[bool]
    """The row is the first of its stage."""

    def name(self, i: int) -> str:
        """Return the name of a row, e.g. `rl2f step 12`."""
        return f"{self.rows[i].stage} step {self.rows[i].step}"

    def marks(self) -> list[Mark]:
        """Return the starts of all stages except the first."""
        return [Mark(self.values[i], self.rows[i].stage) for i, is_first in enumerate(self.starts) if is_first and i]


def axis(
    rows: Sequence[MetricRow], kind: XKind = "step", began: float | None = None, longest: float | None = None
) -> Axis:
    """Return the axis of training steps in order: steps, sampled tokens, or time since `began` (seconds since 1970).

    Rows of one stage are at the steps of the stage, other rows at the steps of the run, from 1. The unit of time suits
    `longest` seconds, by default the last row.
    """
    stages = list(dict.fromkeys(row.stage for row in rows))
    starts = [i == 0 or rows[i - 1].stage != row.stage for i, row in enumerate(rows)]
    if kind == "tokens":
        return Axis(rows, [row.tokens for row in rows], "sampled tokens", starts)
    if kind == "time":
        first = min([row.time for row in rows] + ([began] if began is not None else []), default=0.0)
        seconds = [row.time - first for row in rows]
        unit, size = time_unit(max(seconds, default=0.0) if longest is None else longest)
        return Axis(rows, [s / size for s in seconds], f"{unit} since the start", starts)
    if len(stages) == 1:
        return Axis(rows, [float(row.step) for row in rows], f"step of {stages[0]}", starts)
    return Axis(rows, [float(row.number + 1) for row in rows], "step", starts)


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit for times up to `longest` seconds, and its length in seconds."""
    if longest < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def smooth(values: Sequence[Number], weight: float, starts: Sequence[bool] | None = None) -> list[Number]:
    """Return the weighted mean up to each value (see the module); weight 0 changes nothing, None values are skipped."""
    smoothed: list[Number] = []
    total = size = 0.0
    for i, value in enumerate(values):
        if starts is not None and starts[i]:
            total = size = 0.0
        if value is None:
            smoothed.append(None)
            continue
        total, size = total * weight + value, size * weight + 1.0
        smoothed.append(total / size)
    return smoothed


def share_band(
    values: Sequence[Number], sizes: Sequence[Number], weight: float, starts: Sequence[bool] | None = None
) -> tuple[list[Number], list[Number]]:
    """Return the ends of the 95 % intervals of smoothed fractions.

    Args:
        values: One fraction per step.
        sizes: Effective number of observations of each step; steps without one (None or 0) are skipped.
        weight: β of the smoothing.
        starts: First step of each stage.
    """
    low: list[Number] = []
    high: list[Number] = []
    hits = mass = squares = 0.0
    for i, (value, size) in enumerate(zip(values, sizes, strict=True)):
        if starts is not None and starts[i]:
            hits = mass = squares = 0.0
        if value is None or not size:
            low.append(None)
            high.append(None)
            continue
        hits, mass, squares = hits * weight + value, mass * weight + 1.0, squares * weight * weight + 1.0 / size
        effective = mass * mass / squares
        interval = wilson(min(effective, hits / mass * effective), effective)
        low.append(interval.low)
        high.append(interval.high)
    return low, high


def thin(count: int, keep: Iterable[int] = (), limit: int = MAX_POINTS) -> list[int]:
    """Return the indices of the shown points: all, or every k-th, the last, and those to `keep`."""
    if count <= limit:
        return list(range(count))
    stride = -(-count // limit)
    return sorted({*range(0, count, stride), count - 1, *keep})


def column(rows: Sequence[MetricRow], name: str) -> list[Number]:
    """Return a metric's value at each row; None if a row has none."""
    return [row.values.get(name) for row in rows]


def line(
    name: str,
    values: Sequence[Number],
    along: Axis,
    *,
    weight: float = 0.0,
    sizes: Sequence[Number] | None = None,
    raw: bool = True,
    gaps: bool = True,
    look: Look = Look(),
) -> Line:
    """Return a metric as a smoothed line, with the interval of a fraction if `sizes` are known.

    Args:
        name: Label on hover and at the end of the line.
        values: One per row of `along`.
        along: The x axis.
        weight: β of the smoothing, 0 ≤ β < 1.
        sizes: Effective number of observations of each value.
        raw: Draw the unsmoothed values too.
        gaps: Break the line at the start of a stage (not for stacked areas).
        look: Color and dash.
    """
    smoothed = smooth(values, weight, along.starts)
    low, high = share_band(values, sizes, weight, along.starts) if sizes is not None else ([], [])
    first = [i for i, start in enumerate(along.starts) if start and i]
    shown = thin(len(values), keep=first)
    breaks = set(first) if gaps else set()

    def take(source: Sequence[T]) -> list[T | None]:
        pairs = ((None, source[i]) if i in breaks else (source[i],) for i in shown)
        return list(itertools.chain.from_iterable(pairs)) if source else []

    has_band = any(v is not None for v in low)
    at: list[list[object]] = [[row.stage, row.step, along.name(i)] for i, row in enumerate(along.rows)]
    return Line(
        name,
        take(along.values),
        take(smoothed),
        look.color,
        low=take(low) if has_band else (),
        high=take(high) if has_band else (),
        raw=take(values) if raw and weight > 0 else (),
        at=take(at),
        dash=look.dash,
    )


def names_of(rows: Sequence[MetricRow]) -> list[str]:
    """Return all metrics of the rows in natural order."""
    return sorted({name for row in rows for name in row.values}, key=_natural_key)


def _natural_key(name: str) -> tuple[str, int, str]:
    head, _, tail = name.rpartition("/")
    return (name, -1, "") if (turn := whole_number(tail, None)) is None else (head, turn, "")


def turns_of(names: Iterable[str], series: str) -> list[int]:
    """Return the turns t for which `series/t` exists."""
    tails = [name.rpartition("/")[2] for name in names if name.startswith(f"{series}/")]
    return sorted(turn for tail in tails if (turn := whole_number(tail, None)) is not None)


def newest(rows: Sequence[MetricRow], names: Sequence[str], count: int = 10) -> Mapping[str, float]:
    """Return the means of metrics over the last `count` rows that have them."""
    values = {name: [row.values[name] for row in rows if name in row.values][-count:] for name in names}
    return {name: sum(last) / len(last) for name, last in values.items() if last}
