"""From a run's metric rows to lines: what lies along x, smoothing, intervals of shares, gaps between stages.

Smoothing is an exponentially weighted mean without the bias of a first value: after steps x₁ … x_t with weight β it is
Σ βᵗ⁻ⁱ xᵢ / Σ βᵗ⁻ⁱ. It begins anew with each stage. The interval of a smoothed share is Wilson's with the number of
observations that the weighted mean is worth, (Σ wᵢ)² / Σ (wᵢ² / nᵢ) with wᵢ = βᵗ⁻ⁱ (Kish 1965).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from rl2f_core.evaluation.plotting import Line, Mark, Number
from rl2f_core.stats.intervals import wilson

XKind = Literal["step", "tokens", "time"]
X_KINDS: tuple[XKind, ...] = ("step", "tokens", "time")
POINTS = 800
"""Points of a line at most; of more, every k-th and the last are shown."""


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


@dataclass(frozen=True, slots=True)
class Axis:
    """Where each of the rows stands along x."""

    rows: Sequence[MetricRow]
    values: list[float]
    title: str
    starts: list[bool]
    """The row is the first of its stage."""

    def name(self, i: int) -> str:
        """What a row is called, e.g. `rl2f step 12`."""
        return f"{self.rows[i].stage} step {self.rows[i].step}"

    def marks(self) -> list[Mark]:
        """Where stages begin, the first one left out."""
        return [
            Mark(x, row.stage)
            for i, (x, row, first) in enumerate(zip(self.values, self.rows, self.starts, strict=True))
            if first and i
        ]


def axis(
    rows: Sequence[MetricRow], kind: XKind = "step", began: float | None = None, longest: float | None = None
) -> Axis:
    """Rows of training steps in order, along steps, sampled tokens, or time since `began` (seconds since 1970).

    Steps are those of the stage where the rows are of one stage, else counted over all stages from 1. The unit of time
    is the one for `longest` seconds, by default for the rows' own.
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
    """The unit for times up to `longest` seconds, and how many seconds it has."""
    if longest < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 3 * 3600 else ("hours", 3600.0)


def smooth(values: Sequence[Number], weight: float, starts: Sequence[bool] | None = None) -> list[Number]:
    """The weighted mean up to each value (see the module); 0 leaves all as it is. None stays None, without weight."""
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
    """Ends of the 95 % intervals of smoothed shares; `sizes` are the numbers of independent observations of each.

    Where a size is not known (None or 0) there is no interval, and the step counts for none.
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
        worth = mass * mass / squares
        found = wilson(min(worth, hits / mass * worth), worth)
        low.append(found.low)
        high.append(found.high)
    return low, high


def effective_size(hits: Sequence[float], counts: Sequence[float]) -> float:
    """How many independent dialogues those of a step are worth; entry i is group i.

    The dialogues of a group share a task, so their number is divided by Kish's design effect, as
    `evaluation.statistics.wilson_clustered` does. Where all or none hit it cannot be estimated; each group counts once.
    """
    held = [(y, m) for y, m in zip(hits, counts, strict=True) if m > 0]
    n = sum(m for _, m in held)
    if not held:
        return 0.0
    share = sum(y for y, _ in held) / n
    groups = len(held)
    if groups == 1 or share in (0.0, 1.0):
        return float(groups)
    spread = sum((y - share * m) ** 2 for y, m in held) / (n * share * (1 - share))
    return n / max(1.0, round(spread * groups * (n - 1) / ((groups - 1) * n), 12))


def thin(count: int, keep: Iterable[int] = (), limit: int = POINTS) -> list[int]:
    """Which of `count` points are shown: all, or every k-th, the last, and those to `keep`."""
    if count <= limit:
        return list(range(count))
    stride = -(-count // limit)
    return sorted({*range(0, count, stride), count - 1, *keep})


def column(rows: Sequence[MetricRow], name: str) -> list[Number]:
    """A metric's value at each row, None where a row has none."""
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
    """A metric as a line: smoothed, with the interval of a share where `sizes` are known, with gaps between stages.

    Args:
        name: On hover and at its end.
        values: One a row of `along`.
        along: Where they stand.
        weight: β of the smoothing, 0 ≤ β < 1.
        sizes: Independent observations behind each value.
        raw: Draw what was smoothed, faintly.
        gaps: Break the line where a stage begins (areas that are stacked have no gaps).
        look: Color and dash.
    """
    smoothed = smooth(values, weight, along.starts)
    low, high = share_band(values, sizes, weight, along.starts) if sizes is not None else ([], [])
    first = [i for i, start in enumerate(along.starts) if start and i]
    shown = thin(len(values), keep=first)
    breaks = set(first) if gaps else set()

    def take(source: Sequence[Number]) -> list[Number]:
        if not len(source):
            return []
        taken: list[Number] = []
        for i in shown:
            taken += [None, source[i]] if i in breaks else [source[i]]
        return taken

    def mark(found: Callable[[int], list[object]]) -> list[list[object] | None]:
        taken: list[list[object] | None] = []
        for i in shown:
            taken += [None, found(i)] if i in breaks else [found(i)]
        return taken

    return Line(
        name,
        take(along.values),
        take(smoothed),
        look.color,
        low=take(low) if any(v is not None for v in low) else (),
        high=take(high) if any(v is not None for v in low) else (),
        raw=take(values) if raw and weight > 0 else (),
        at=mark(lambda i: [along.rows[i].stage, along.rows[i].step, along.name(i)]),
        dash=look.dash,
    )


def names_of(rows: Sequence[MetricRow]) -> list[str]:
    """All metrics of the rows, in the order of the alphabet, turns by number."""
    return sorted({name for row in rows for name in row.values}, key=_natural)


def _natural(name: str) -> tuple[str, int, str]:
    head, _, tail = name.rpartition("/")
    return (head, int(tail), "") if tail.isdigit() else (name, -1, "")


def turns_of(names: Iterable[str], series: str) -> list[int]:
    """The turns t for which `series/t` exists."""
    found = [name.rpartition("/")[2] for name in names if name.startswith(f"{series}/")]
    return sorted(int(tail) for tail in found if tail.isdigit())


def newest(rows: Sequence[MetricRow], names: Sequence[str], count: int = 10) -> Mapping[str, float]:
    """Means over the last `count` rows that have the metric."""
    found = {}
    for name in names:
        held = [row.values[name] for row in rows if name in row.values][-count:]
        if held:
            found[name] = sum(held) / len(held)
    return found
