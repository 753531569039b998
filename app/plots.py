"""Plotly figures from plain rows, as the JSON that plotly.js draws.

A colour is the name of a variable of the stylesheet (`--rl-student`), `fade(NAME,opacity)` or `mix(NAME,NAME,share)`:
the page puts in what the names mean in its theme, so plots and page agree in light and in dark. Lines carry their
names at their ends; where they would touch, they are moved apart, and where not all fit, some are left out.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rl2f_core.evaluation.report import number

HEIGHT = 190
"""Pixels of a plot."""
TOP, BOTTOM, LEFT = 16, 38, 40
"""Margins in pixels; the right one is as wide as the longest label."""
LABEL_GAP = 13
"""Pixels from one label to the next."""
MAX_LABEL = 18
"""Characters of a label; the rest is on hover."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
SERIES = tuple(f"--rl-plot-{i}" for i in range(1, 9))
"""Colours of series without a meaning of their own; told apart with any of the common kinds of colour blindness."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CONTROLS = {
    "hints": "--rl-teacher",
    "contentless": "--rl-plot-2",
    "resample": "--rl-plot-5",
    "shuffled": "--rl-plot-3",
    "misleading": "--rl-plot-4",
}
"""Colours of the controls of an evaluation."""

Format = Literal["share", "number", "count"]
Number = float | None


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `x`, `y` and all other sequences that are not empty have one entry a point; None makes a gap."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    color: str = "--rl-student"
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    """A band, e.g. a 95 % interval."""
    raw: Sequence[Number] = ()
    """What `y` was smoothed from, drawn faintly."""
    at: Sequence[Any] = ()
    """What a click on a point hands to the page, e.g. `["rl2f", 12]`."""
    dash: str = "solid"
    label: str | None = None
    """At the end of the line; the name where None, nothing where empty."""
    note: Sequence[str] = ()
    """Added to the numbers on hover."""
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line, such as the begin of a stage."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A set of axes. `stack` fills the areas between lines whose values add up."""

    lines: Sequence[Line]
    x_title: str = "step"
    format: Format = "number"
    kind: Literal["lines", "stack"] = "lines"
    range: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()
    limit: tuple[float, str] | None = None
    """A horizontal line with its name, e.g. what was allowed."""
    x_ticks: Sequence[float] = ()
    """Where numbers stand along x; plotly.js chooses where empty."""
    height: int = HEIGHT


def figure(plot: Plot) -> dict[str, Any]:
    """`{"data": […], "layout": {…}}` for plotly.js. An empty plot has no data."""
    lines = [line for line in plot.lines if any(y is not None for y in line.y)]
    low, high = plot.range or value_range(plot, lines)
    bands = [trace for line in lines for trace in _band(line)] if plot.kind == "lines" else []
    faint = [_faint(line) for line in lines if len(line.raw) and plot.kind == "lines"]
    main = [_line(plot, line, position) for position, line in enumerate(lines)]
    labels = _labels(plot, lines, low, high)
    widest = max((len(str(note["text"])) for note in labels), default=0)
    right = 10 if not labels else round(widest * 6.3) + 12
    shapes = [_vertical(mark.x) for mark in plot.marks]
    notes = [*labels, *(_mark_text(mark) for mark in plot.marks)]
    if plot.limit is not None:
        level, text = plot.limit
        shapes.append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": level, "y1": level,
             "line": {"color": "--rl-muted", "width": 1, "dash": "dash"}}
        )  # fmt: skip
        notes.append(
            {"xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "y": level, "yanchor": "bottom",
             "text": html.escape(text), "showarrow": False, "font": {"size": 10, "color": "--rl-muted"}}
        )  # fmt: skip
    axis = {"gridcolor": "--rl-grid", "linecolor": "--rl-border", "zeroline": False, "ticks": "",
            "tickfont": {"size": 10, "color": "--rl-muted"}}  # fmt: skip
    return {
        "data": [*bands, *faint, *main],
        "layout": {
            "height": plot.height,
            "margin": {"l": LEFT, "r": right, "t": TOP, "b": BOTTOM, "pad": 0},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 11, "color": "--rl-text"},
            "showlegend": False,
            "barmode": "stack",
            "hovermode": "x unified",
            "hoverdistance": 40,
            "hoverlabel": {
                "bgcolor": "--rl-surface",
                "bordercolor": "--rl-border",
                "font": {"size": 11, "color": "--rl-text", "family": FONT},
                "namelength": 28,
            },
            "xaxis": {
                **axis,
                "title": {"text": html.escape(plot.x_title), "standoff": 4,
                          "font": {"size": 10, "color": "--rl-muted"}},
                "showgrid": False, "showline": True, "nticks": 6, "automargin": False,
                **({"tickvals": list(plot.x_ticks)} if len(plot.x_ticks) else {}), **_x_range(lines),
            },
            "yaxis": {**axis, "range": [low, high], "nticks": 5, "fixedrange": True, "automargin": "left+width",
                      "tickformat": ".1f" if plot.format == "share" and high - low >= 0.4 else "~g",
                      **({"tickformat": "~s"} if high - low >= 1000 else {})},
            "shapes": shapes,
            "annotations": notes,
        },
    }  # fmt: skip


def value_range(plot: Plot, lines: Sequence[Line]) -> tuple[float, float]:
    """The range of the values with a little air. Shares begin at 0, end at 1 at most; what adds up begins at 0."""
    if plot.kind == "stack":
        heights = [sum(v or 0.0 for v in column) for column in zip(*(line.y for line in lines), strict=True)]
        return 0.0, 1.0 if plot.format == "share" else (max(heights, default=0.0) or 1.0) * 1.05
    values = [v for line in lines for held in (line.y, line.raw, line.low, line.high) for v in held if v is not None]
    if plot.limit is not None:
        values.append(plot.limit[0])
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if plot.format == "share" and low >= 0 and high <= 1:
        return 0.0, min(1.02, max(0.1, high * 1.08))
    if plot.format == "count" or 0 <= low < 0.5 * high:
        low = min(0.0, low)
    if high == low:
        high, low = (high + abs(high) * 0.1, low - abs(low) * 0.1) if high else (1.0, low)
    air = 0.06 * (high - low)
    return (low if low == 0 else low - air), high + air


def place_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as can be to those wanted (least squares), in their order, at least `gap` apart, within limits.

    Where not all fit, the distance shrinks so that they do.
    """
    count = len(wanted)
    if count == 0:
        return []
    gap = min(gap, (high - low) / max(1, count - 1))
    order = sorted(range(count), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # mean of (wanted − rank · gap), number of members
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, size = blocks.pop()
            before, many = blocks.pop()
            blocks.append([(before * many + mean * size) / (many + size), many + size])
    placed = [0.0] * count
    rank = 0
    for mean, size in blocks:
        base = min(max(mean, low), high - (count - 1) * gap)
        for _ in range(int(size)):
            placed[order[rank]] = base + rank * gap
            rank += 1
    return placed


def value_text(value: Number, form: Format = "number") -> str:
    """`.31` of a share, `1,024` of a count, `0.2139` of any other number, `–` of none."""
    if value is None or not math.isfinite(value):
        return "–"
    if form == "share" and abs(value) <= 1:
        return number(value) if value == 0 or abs(value) >= 0.005 else f"{value:.1g}".replace("0.", ".", 1)
    if form == "count" or (abs(value) >= 1000 and float(value).is_integer()):
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("-", "−")


# -- traces --------------------------------------------------------------------------------------------------------
def _line(plot: Plot, line: Line, position: int) -> dict[str, Any]:
    few = sum(y is not None for y in line.y) <= 40
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if few and plot.kind == "lines" else "lines",
        "name": html.escape(line.name),
        "x": list(line.x),
        "y": list(line.y),
        "text": [_hover(plot, line, i) for i in range(len(line.y))],
        "hovertemplate": "%{text}",
        "line": {"color": line.color, "width": line.width, "dash": line.dash},
        "connectgaps": False,
        "meta": "line",
    }
    if few and plot.kind == "lines":
        trace["marker"] = {"size": 4.5, "color": line.color}
    if len(line.at):
        trace["customdata"] = [list(item) if item is not None else None for item in line.at]
    if plot.kind == "stack" and sum(y is not None for y in line.y) == 1:  # an area of one point has no width
        bar = {"type": "bar", "width": 0.3, "marker": {"color": f"fade({line.color},0.55)"}}
        return {name: held for name, held in trace.items() if name not in ("mode", "line", "connectgaps")} | bar
    if plot.kind == "stack":
        trace |= {"stackgroup": "all", "fillcolor": f"fade({line.color},0.55)"}
        trace["line"] = {"color": line.color, "width": 1, "dash": "solid"}
    return trace


def _hover(plot: Plot, line: Line, i: int) -> str:
    text = value_text(line.y[i], plot.format)
    if len(line.low) and line.low[i] is not None:
        text += f" [{value_text(line.low[i], plot.format)}, {value_text(line.high[i], plot.format)}]"
    if len(line.raw) and line.raw[i] is not None:
        text += f", this step {value_text(line.raw[i], plot.format)}"
    if len(line.note) and line.note[i]:
        text += f" {html.escape(line.note[i])}"
    return text


def _faint(line: Line) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": html.escape(line.name), "x": list(line.x), "y": list(line.raw),
        "line": {"color": f"fade({line.color},0.3)", "width": 1}, "hoverinfo": "skip", "connectgaps": False,
        "meta": "raw",
    }  # fmt: skip


def _band(line: Line) -> list[dict[str, Any]]:
    """One outline for each stretch without a gap, in one trace."""
    if not len(line.low):
        return []
    x: list[Number] = []
    y: list[Number] = []
    stretch: list[tuple[Number, Number, Number]] = []
    for point in [*zip(line.x, line.low, line.high, strict=True), (None, None, None)]:
        if None not in point:
            stretch.append(point)
        elif stretch:
            across = [p[0] for p in stretch]
            x += [*across, *reversed(across), None]
            y += [*(p[2] for p in stretch), *(p[1] for p in reversed(stretch)), None]
            stretch = []
    if not x:
        return []
    return [
        {"type": "scatter", "mode": "lines", "name": html.escape(line.name), "x": x[:-1], "y": y[:-1],
         "fill": "toself", "fillcolor": f"fade({line.color},0.16)", "line": {"width": 0}, "hoverinfo": "skip",
         "connectgaps": False, "meta": "band"}
    ]  # fmt: skip


# -- words on the plot ---------------------------------------------------------------------------------------------
def _labels(plot: Plot, lines: Sequence[Line], low: float, high: float) -> list[dict[str, Any]]:
    """Names at the ends of the lines. In a stack each stands in the middle of its area."""
    if len(lines) == 1 and lines[0].label is None and plot.kind == "lines":
        return []
    room = plot.height - TOP - BOTTOM
    ends: list[tuple[Line, float]] = []
    total = 0.0
    for line in lines:
        last = next((y for y in reversed(line.y) if y is not None), None)
        if last is None or line.label == "":
            total += last or 0.0
            continue
        ends.append((line, total + last / 2 if plot.kind == "stack" else last))
        total += last
    fits = int(room // LABEL_GAP) + 1
    if len(ends) > fits:  # first and last are kept, and others evenly between them
        kept = {round(i * (len(ends) - 1) / (fits - 1)) for i in range(fits)}
        ends = [end for i, end in enumerate(ends) if i in kept]
    span = (high - low) or 1.0
    wanted = [(value - low) / span * room for _, value in ends]
    placed = place_labels(wanted, LABEL_GAP, 0, room)
    return [
        {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 5, "yref": "y", "y": value, "yanchor": "middle",
         "yshift": round(at - was, 1), "text": html.escape(_short(line.label or line.name)), "showarrow": False,
         "font": {"size": 11, "color": f"mix({line.color},--rl-text,0.4)"}, "align": "left"}
        for (line, value), was, at in zip(ends, wanted, placed, strict=True)
    ]  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _vertical(x: float) -> dict[str, Any]:
    return {"type": "line", "xref": "x", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
            "line": {"color": "--rl-muted", "width": 1, "dash": "dot"}}  # fmt: skip


def _mark_text(mark: Mark) -> dict[str, Any]:
    return {"xref": "x", "x": mark.x, "xanchor": "left", "yref": "paper", "y": 1, "yanchor": "bottom", "xshift": -1,
            "text": html.escape(_short(mark.text)), "showarrow": False,
            "font": {"size": 10, "color": "--rl-muted"}}  # fmt: skip


def _x_range(lines: Sequence[Line]) -> dict[str, Any]:
    """From the first point to the last, so that no room is lost between the ends and their labels."""
    values = [x for line in lines for x, y in zip(line.x, line.y, strict=True) if x is not None and y is not None]
    if not values or not all(isinstance(x, int | float) for x in values):
        return {}
    low, high = min(values), max(values)
    air = 0.02 * (high - low) if high > low else 0.5
    ticks = {"tickformat": "~s"} if high - low >= 5000 else {}
    return {"range": [low - air, high + air], **ticks}
