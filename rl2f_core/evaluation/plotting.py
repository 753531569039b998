"""Plotly figures as JSON for plotly.js.

A color is a CSS variable (`--rl-student`), `fade(NAME,opacity)` or `mix(NAME,NAME,fraction)`. The page resolves these
names with its theme, `resolve_colors` resolves them for files. Lines are labeled at their ends. Overlapping labels are
moved apart; if not all fit, a legend below the plot replaces them.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

from rl2f_core.evaluation.formatting import nonzero_number, number
from rl2f_core.types import JsonObject

HEIGHT = 190
"""Height of a plot in pixels."""
TOP, BOTTOM, LEFT = 16, 38, 40
"""Margins in pixels; the right margin depends on the longest label."""
LABEL_GAP = 13
"""Minimum distance of labels in pixels."""
MAX_LABEL = 24
"""Maximum characters of a label; longer names are in a legend."""
LEGEND_ROW = 19
"""Height of a row of the legend in pixels."""
NEGLIGIBLE = 1e-8
"""Differences of values up to this size are rounding errors."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
SERIES = tuple(f"--rl-plot-{i}" for i in range(1, 9))
"""Colors of series without a fixed meaning, distinguishable with common kinds of color blindness."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CONDITION_COLORS = {
    "hints": "--rl-teacher",
    "contentless": "--rl-plot-2",
    "resample": "--rl-plot-5",
    "shuffled": "--rl-plot-3",
    "misleading": "--rl-plot-4",
    "scripted": "--rl-plot-6",
    "leaking": "--rl-leak",
}
"""Colors of the conditions of an evaluation."""
GREY = "#7b7b7b"
"""Text and axes in files: contrast above 4 on white and near-black."""
PALETTE = {
    "--rl-student": "#2f7fd6", "--rl-teacher": "#9a5fd0", "--rl-right": "#2f9e60", "--rl-wrong": "#d24b5a",
    "--rl-leak": "#c8741a",
    "--rl-muted": GREY, "--rl-text": GREY, "--rl-border": GREY, "--rl-grid": "#8080804d", "--rl-surface": "#ffffff",
    "--rl-plot-1": "#3c7bff", "--rl-plot-2": "#e08a00", "--rl-plot-3": "#22a5b5", "--rl-plot-4": "#b4509e",
    "--rl-plot-5": "#a0785a", "--rl-plot-6": "#6b7fd6", "--rl-plot-7": "#8a8a2a", "--rl-plot-8": "#7a7a90",
}  # fmt: skip
"""Colors in files, legible on white and near-black."""

_MIX = re.compile(r"mix\(([^(),]+),([^(),]+),([\d.]+)\)")

Format = Literal["share", "number", "count", "difference"]
Number = float | None


@dataclass(frozen=True, slots=True)
class Line:
    """One series. All nonempty sequences have one entry per point; None makes a gap."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    color: str = "--rl-student"
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    """A band, e.g. a 95 % interval."""
    raw: Sequence[Number] = ()
    """Values before smoothing, drawn faintly."""
    at: Sequence[Sequence[object] | None] = ()
    """Data of a click on a point, e.g. `["rl2f", 12]`."""
    dash: str = "solid"
    label: str | None = None
    """Label at the end of the line; None for the name, empty for no label."""
    note: Sequence[str] = ()
    """Text after the numbers on hover."""
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A labeled vertical line, such as the start of a stage."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A set of axes.

    Kind `stack` draws stacked areas. Kind `intervals` draws one row per line: its only value with its interval along x.
    Kind `heatmap` draws one row of cells per line, with value, interval and a shade by the value between 0 and 1.
    """

    lines: Sequence[Line]
    x_title: str = "step"
    format: Format = "number"
    kind: Literal["lines", "stack", "intervals", "heatmap"] = "lines"
    range: tuple[float, float] | None = None
    marks: Sequence[Mark] = ()
    limit: tuple[float, str] | None = None
    """A labeled horizontal line, e.g. a token limit."""
    x_ticks: Sequence[float] = ()
    """Tick positions along x; if empty, plotly.js chooses them."""
    columns: Sequence[str] = ()
    """Columns of a heatmap."""
    height: int = HEIGHT
    title: str = ""
    """Title in report files; the page shows its own."""
    unit: str = ""
    """Unit of the values in report files."""


def figure(plot: Plot) -> JsonObject:
    """Return `{"data": […], "layout": {…}}` for plotly.js. An empty plot has no data."""
    if plot.kind == "intervals":
        return _interval_figure(plot)
    if plot.kind == "heatmap":
        return _heatmap_figure(plot)
    lines = [line for line in plot.lines if any(y is not None for y in line.y)]
    low, high = plot.range or value_range(plot, lines)
    bands = [trace for line in lines for trace in _band(line)] if plot.kind == "lines" else []
    faint = [
        _trace(line, line.raw, "raw", line={"color": f"fade({line.color},0.3)", "width": 1}, hoverinfo="skip")
        for line in lines
        if len(line.raw) and plot.kind == "lines"
    ]
    main = [_line(plot, line) for line in lines]
    labels = _labels(plot, lines, low, high)
    has_legend = not labels and len(lines) > 1
    widest = max((len(str(note["text"])) for note in labels), default=0)
    right = 10 if not labels else round(widest * 6.3) + 12
    shapes = [
        _rule("dot", xref="x", x0=mark.x, x1=mark.x, yref="paper", y0=0, y1=1, layer="below") for mark in plot.marks
    ]
    notes = [
        *labels,
        *(
            _note(_short(mark.text), xref="x", x=mark.x, xshift=-1, yref="paper", y=1, yanchor="bottom")
            for mark in plot.marks
        ),
    ]
    if plot.limit is not None:
        level, text = plot.limit
        shapes.append(_rule("dash", xref="paper", x0=0, x1=1, yref="y", y0=level, y1=level))
        notes.append(_note(text, xref="paper", x=0, yref="y", y=level, yanchor="bottom"))
    layout = _layout(plot, right)
    if has_legend:
        rows = sum(-(-len(line.name) // MAX_LABEL) for line in lines)
        layout |= {"showlegend": True, "height": plot.height + LEGEND_ROW * rows}
        layout["margin"]["b"] += LEGEND_ROW * rows
    layout["xaxis"] |= {"showgrid": False, "showline": True, "nticks": 6, "automargin": False, **_x_range(lines)}
    if len(plot.x_ticks):
        layout["xaxis"]["tickvals"] = list(plot.x_ticks)
    share_format = ".1f" if plot.format == "share" and high - low >= 0.4 else "~g"
    layout["yaxis"] |= {"range": [low, high], "nticks": 5, "fixedrange": True, "automargin": "left+width",
                        "tickformat": "~s" if high - low >= 1000 else share_format}  # fmt: skip
    return {"data": [*bands, *faint, *main], "layout": layout | {"shapes": shapes, "annotations": notes}}


def _layout(plot: Plot, right: int) -> JsonObject:
    axis = {"gridcolor": "--rl-grid", "linecolor": "--rl-border", "zeroline": False, "ticks": "",
            "tickfont": {"size": 10, "color": "--rl-muted"}}  # fmt: skip
    x_title = {"text": html.escape(plot.x_title), "standoff": 4, "font": {"size": 10, "color": "--rl-muted"}}
    return {
        "height": plot.height,
        "margin": {"l": LEFT, "r": right, "t": TOP, "b": BOTTOM, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 11, "color": "--rl-text"},
        "showlegend": False,
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "font": {"size": 10}},
        "modebar": {"bgcolor": "--rl-surface", "color": "--rl-muted"},
        "barmode": "stack",
        "hovermode": "x unified",
        "hoverdistance": 40,
        "hoverlabel": {
            "bgcolor": "--rl-surface",
            "bordercolor": "--rl-border",
            "font": {"size": 11, "color": "--rl-text", "family": FONT},
            "namelength": 28,
        },
        "xaxis": {**axis, "title": x_title},
        "yaxis": axis,
    }


def _interval_figure(plot: Plot) -> JsonObject:
    data: list[JsonObject] = []
    for line in plot.lines:
        value, low, high = line.y[0], line.low[0], line.high[0]
        name = html.escape(line.name)
        trace = {"type": "scatter", "mode": "markers", "name": name, "x": [value], "y": [name], "meta": "line",
                 "text": [_hover(plot, line, 0)], "hovertemplate": f"{name}: %{{text}}<extra></extra>",
                 "marker": {"color": line.color, "size": 10}}  # fmt: skip
        if value is not None and low is not None and high is not None:
            trace["error_x"] = {"type": "data", "symmetric": False, "array": [high - value],
                                "arrayminus": [value - low], "color": line.color, "thickness": 2.5,
                                "width": 6}  # fmt: skip
        data.append(trace)
    layout = _layout(plot, 10) | {"height": 32 * len(plot.lines) + TOP + BOTTOM, "hovermode": "closest"}
    layout["xaxis"] |= {"range": plot.range, "dtick": 0.2, "zeroline": True, "zerolinewidth": 2, "fixedrange": True,
                        "zerolinecolor": "--rl-muted"}  # fmt: skip
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "automargin": True, "fixedrange": True}
    return {"data": data, "layout": layout}


def shade(value: float) -> float:
    """Return the opacity of a heatmap's cell, so that text stays legible on it."""
    return round(0.05 + 0.35 * min(1.0, max(0.0, value)), 3)


def cell_text(plot: Plot, line: Line, i: int, separator: str = "<br>") -> str:
    """Return value and interval of a heatmap's cell."""
    return _hover(plot, line, i).replace(" [", f"{separator}[")


def _heatmap_figure(plot: Plot) -> JsonObject:
    data: list[JsonObject] = []
    shapes = []
    columns = [html.escape(name) for name in plot.columns]
    for row, line in enumerate(plot.lines):
        texts = [cell_text(plot, line, i) for i in range(len(columns))]
        trace = {"type": "scatter", "mode": "text", "name": html.escape(line.name), "meta": "row", "x": columns,
                 "y": [html.escape(line.name)] * len(columns), "text": texts, "hoverinfo": "skip",
                 "textfont": {"size": 11, "color": "--rl-text"}}  # fmt: skip
        data.append(trace | ({"customdata": [list(item or ()) for item in line.at]} if len(line.at) else {}))
        shapes += [
            {"type": "rect", "x0": i - 0.5, "x1": i + 0.5, "y0": row - 0.5, "y1": row + 0.5, "layer": "below",
             "line": {"width": 0}, "fillcolor": f"fade({line.color},{shade(value)})"}
            for i, value in enumerate(line.y) if value is not None
        ]  # fmt: skip
    layout = _layout(plot, 10) | {"height": 44 * len(plot.lines) + TOP + BOTTOM, "hovermode": False, "shapes": shapes}
    layout["xaxis"] |= {"type": "category", "range": [-0.5, len(columns) - 0.5], "showgrid": False, "fixedrange": True}
    layout["yaxis"] |= {"type": "category", "range": [len(plot.lines) - 0.5, -0.5], "showgrid": False,
                        "fixedrange": True, "automargin": True}  # fmt: skip
    return {"data": data, "layout": layout}


def resolve_colors(value: object) -> Any:
    """Replace the color names in a figure by the colors of `PALETTE`."""
    if isinstance(value, dict):
        return {key: resolve_colors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_colors(item) for item in value]
    if not isinstance(value, str) or "--rl-" not in value:
        return value
    while match := _MIX.search(value):  # the innermost one first
        first, second = (bytes.fromhex(PALETTE.get(name, name)[1:7]) for name in (match[1], match[2]))
        mixed = bytes(round(a + (b - a) * float(match[3])) for a, b in zip(first, second, strict=True))
        value = value.replace(match[0], f"#{mixed.hex()}")
    if match := re.fullmatch(r"fade\(([^,]+),([\d.]+)\)", value):
        return f"{PALETTE.get(match[1], match[1])}{round(255 * float(match[2])):02x}"
    return PALETTE.get(value, value)


def value_range(plot: Plot, lines: Sequence[Line]) -> tuple[float, float]:
    """Return the y range with a margin. Fractions start at 0 and end at most at 1; stacks start at 0."""
    if plot.kind == "stack":
        heights = [sum(v or 0.0 for v in column) for column in zip(*(line.y for line in lines), strict=True)]
        return 0.0, 1.0 if plot.format == "share" else (max(heights, default=0.0) or 1.0) * 1.05
    values = [v for line in lines for part in (line.y, line.raw, line.low, line.high) for v in part if v is not None]
    if plot.limit is not None:
        values.append(plot.limit[0])
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if plot.format == "share" and low >= 0 and high <= 1:
        return 0.0, min(1.02, max(0.1, high * 1.08))
    if plot.format == "count" or 0 <= low < 0.5 * high:
        low = min(0.0, low)
    if math.isclose(high, low, rel_tol=1e-6, abs_tol=NEGLIGIBLE):  # a constant, apart from rounding
        is_zero = max(abs(high), abs(low)) <= NEGLIGIBLE
        high, low = (1.0, 0.0) if is_zero else (high + abs(high) * 0.1, low - abs(low) * 0.1)
    margin = 0.06 * (high - low)
    return (low if low == 0 else low - margin), high + margin


def place_labels(targets: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions closest to the targets (least squares), in their order and at least `gap` apart.

    All positions are within the limits. If not all labels fit, the gap shrinks.
    """
    count = len(targets)
    if count == 0:
        return []
    gap = min(gap, (high - low) / max(1, count - 1))
    order = np.argsort(targets, kind="stable")
    offsets = gap * np.arange(count)
    blocks: list[tuple[float, int]] = []  # means and sizes: isotonic regression by pooling adjacent violators
    for mean, size in zip((np.asarray(targets)[order] - offsets).tolist(), [1] * count, strict=True):
        while blocks and blocks[-1][0] > mean:
            earlier, number = blocks.pop()
            mean, size = (earlier * number + mean * size) / (number + size), number + size
        blocks.append((mean, size))
    ranked = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
    placed = np.empty(count)
    placed[order] = np.clip(ranked, low, high - (count - 1) * gap) + offsets
    return placed.tolist()


def value_text(value: Number, form: Format = "number") -> str:
    """Format a fraction as `.31`, a count as `1,024`, another number as `.214`, None as `–`."""
    if value is None or not math.isfinite(value):
        return "–"
    if form == "difference":
        return number(value, signed=True)
    if form == "share" and abs(value) <= 1:
        return nonzero_number(value)
    if form == "count" or (abs(value) >= 1000 and float(value).is_integer()):
        return f"{value:,.0f}"
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.3g}").replace("-", "−")


# -- traces --------------------------------------------------------------------------------------------------------
def _line(plot: Plot, line: Line) -> JsonObject:
    has_markers = plot.kind == "lines" and sum(y is not None for y in line.y) <= 40
    trace = _trace(
        line,
        line.y,
        "line",
        mode="lines+markers" if has_markers else "lines",
        text=[_hover(plot, line, i) for i in range(len(line.y))],
        hovertemplate="%{text}",
        line={"color": line.color, "width": line.width, "dash": line.dash},
    )
    if has_markers:
        trace["marker"] = {"size": 4.5, "color": line.color}
    if len(line.at):
        trace["customdata"] = [list(item) if item is not None else None for item in line.at]
    if plot.kind == "stack" and sum(y is not None for y in line.y) == 1:  # an area of one point has no width
        bar = {"type": "bar", "width": 0.3, "marker": {"color": f"fade({line.color},0.55)"}}
        return {name: item for name, item in trace.items() if name not in ("mode", "line", "connectgaps")} | bar
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


def _trace(line: Line, y: Sequence[Number], meta: str, /, **more: object) -> JsonObject:
    """Return a trace of a line; `meta` tells the page what it is."""
    return {"type": "scatter", "mode": "lines", "name": html.escape(line.name), "x": list(line.x), "y": list(y),
            "connectgaps": False, "meta": meta, "showlegend": meta == "line", **more}  # fmt: skip


def _band(line: Line) -> list[JsonObject]:
    """Return one trace with an outline per stretch without a gap."""
    x: list[Number] = []
    y: list[Number] = []
    points = zip(line.x, line.low, line.high, strict=True) if len(line.low) else ()
    for has_gap, stretch in groupby(points, key=lambda point: None in point):
        if not has_gap:
            across, low, high = zip(*stretch, strict=True)
            x += [*across, *reversed(across), None]
            y += [*high, *reversed(low), None]
    fill = {"fill": "toself", "fillcolor": f"fade({line.color},0.16)", "line": {"width": 0}, "hoverinfo": "skip"}
    return [_trace(line, y[:-1], "band", x=x[:-1], **fill)] if x else []


# -- text on the plot ----------------------------------------------------------------------------------------------
def _labels(plot: Plot, lines: Sequence[Line], low: float, high: float) -> list[JsonObject]:
    """Return the labels at the ends of the lines, or in the middle of their stacked areas; none if not all fit."""
    if len(lines) == 1 and lines[0].label is None and plot.kind == "lines":
        return []
    height = plot.height - TOP - BOTTOM
    ends: list[tuple[Line, float]] = []
    total = 0.0
    for line in lines:
        last = next((y for y in reversed(line.y) if y is not None), None)
        if last is None or line.label == "":
            total += last or 0.0
            continue
        ends.append((line, total + last / 2 if plot.kind == "stack" else last))
        total += last
    if len(ends) > height // LABEL_GAP + 1 or any(len(line.label or line.name) > MAX_LABEL for line, _ in ends):
        return []
    span = (high - low) or 1.0
    targets = [(value - low) / span * height for _, value in ends]
    placed = place_labels(targets, LABEL_GAP, 0, height)
    return [
        _note(line.label or line.name, size=11, color=f"mix({line.color},--rl-text,0.4)", xref="paper", x=1,
              xshift=5, yref="y", y=value, yanchor="middle", yshift=round(position - target, 1), align="left")
        for (line, value), target, position in zip(ends, targets, placed, strict=True)
    ]  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _rule(dash: str, **position: object) -> JsonObject:
    """Return a thin gray line at a position."""
    return {"type": "line", **position, "line": {"color": "--rl-muted", "width": 1, "dash": dash}}


def _note(text: str, *, size: int = 10, color: str = "--rl-muted", **position: object) -> JsonObject:
    """Return a text whose left end is at a position."""
    font = {"size": size, "color": color}
    return {"text": html.escape(text), "showarrow": False, "xanchor": "left", "font": font, **position}


def _x_range(lines: Sequence[Line]) -> JsonObject:
    """Return an x range that ends at the last point, next to the labels."""
    values = [x for line in lines for x, y in zip(line.x, line.y, strict=True) if x is not None and y is not None]
    if not values or not all(isinstance(x, int | float) for x in values):
        return {}
    low, high = min(values), max(values)
    margin = 0.02 * (high - low) if high > low else 0.5
    ticks = {"tickformat": "~s"} if high - low >= 5000 else {}
    return {"range": [low - margin, high + margin], **ticks}
