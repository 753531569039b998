"""Drawing of charts: Plotly for the browser (HTML), Matplotlib for PNG, from the same plain data.

PNG needs no browser, so it comes out on every machine.  Both are readable at 390 px and in light and dark mode: one
column of panels, transparent ground, mid-grey text and grids.
"""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl2f_core.config import write_atomically
from rl2f_core.evaluation.charts import GREY, Chart, Panel, accuracy_chart, effect_chart, training_chart
from rl2f_core.evaluation.report import EvaluationReport, findings, tables

GRID = "rgba(128,128,128,0.25)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
BAND = 0.18
"""Opacity of interval bands."""
_PANEL_PX, _ROW_PX, _LEGEND_PX = 210, 32, 112
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "x": "X"}
_DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 2, 1, 2)),
                           "longdash": (0, (9, 2))}  # fmt: skip


# -- Plotly --------------------------------------------------------------------------------------------------------
def to_plotly(chart: Chart) -> Any:
    """A `plotly.graph_objects.Figure`. Names are escaped; the figure adapts to the width of its container."""
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    count, shared = len(chart.panels), chart.shared_legend
    heights = [_ROW_PX * len(p.series) + 16 if p.kind == "intervals" else _PANEL_PX for p in chart.panels]
    gap = 56 if shared else 100
    total = sum(heights) + gap * max(0, count - 1)
    figure = Figure()
    if count:
        figure = make_subplots(
            rows=count, cols=1, subplot_titles=[html.escape(p.title) for p in chart.panels],
            row_heights=[float(h) for h in heights], vertical_spacing=gap / total if count > 1 else 0.0,
        )  # fmt: skip
        figure.update_annotations(font={"size": 14, "color": GREY}, x=0, xanchor="left")
    named: set[str] = set()
    for row, panel in enumerate(chart.panels, start=1):
        for trace in _traces(panel, named if shared else set()):
            figure.add_trace(trace, row=row, col=1)
        axes = {"gridcolor": GRID, "zerolinecolor": GREY, "linecolor": GREY, "automargin": True, "fixedrange": True}
        figure.update_xaxes(row=row, col=1, **axes)
        figure.update_yaxes(title_text=panel.y_title, title_standoff=6, row=row, col=1, **axes)
        if row == count or chart.panels[row].x_title != panel.x_title:
            figure.update_xaxes(title_text=panel.x_title, title_standoff=4, row=row, col=1)
        if panel.kind == "intervals":
            figure.update_xaxes(range=panel.range, dtick=0.2, zeroline=True, zerolinewidth=2, row=row, col=1)
            figure.update_yaxes(autorange="reversed", zeroline=False, showgrid=False, row=row, col=1)
        else:
            figure.update_yaxes(range=panel.range, zeroline=False, row=row, col=1)
            steps = {x for s in panel.series for x in s.x}
            if len(steps) <= 12:
                figure.update_xaxes(tickvals=sorted(steps), row=row, col=1)
        if not shared:
            legend = f"legend{row if row > 1 else ''}"
            figure.update_traces(legend=legend, row=row, col=1)
            top = figure.get_subplot(row, 1).yaxis.domain[1]
            figure.update_layout({legend: {"orientation": "h", "x": 0, "y": top, "yanchor": "bottom",
                                           "tracegroupgap": 0, "font": {"size": 11}}})  # fmt: skip
            figure.layout.annotations[row - 1].update(yshift=21 if len(panel.series) < 4 else 40)
    lines = any(p.kind == "lines" for p in chart.panels)
    bottom = _LEGEND_PX if shared and lines else 48
    heading = [f"<b>{html.escape(line)}</b>" for line in textwrap.wrap(chart.title, 44)]
    small = [html.escape(line) for line in textwrap.wrap(chart.subtitle, 58)]
    text = "<br>".join([*heading, *(f"<span style='font-size:12px'>{line}</span>" for line in small)])
    top_px = 46 + 20 * (len(heading) + len(small)) + (0 if shared else 30)
    figure.update_layout(
        title={"text": text, "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container",
               "pad": {"t": 12, "l": 8}, "font": {"size": 15}},
        height=total + top_px + bottom, margin={"l": 8, "r": 12, "t": top_px, "b": bottom},
        font={"family": FONT, "size": 12, "color": GREY}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest", showlegend=lines,
    )  # fmt: skip
    if shared:
        figure.update_layout(legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0,
                                     "tracegroupgap": 0})  # fmt: skip
    return figure


def _traces(panel: Panel, named: set[str]) -> list[Any]:
    """Bands first, so that no band covers a line. `named` collects what the legend already shows."""
    from plotly.graph_objects import Scatter

    bands, lines = [], []
    for series in panel.series:
        style, name = series.style, html.escape(series.name)
        hover = f"{name}, {html.escape(panel.x_title)} %{{x}}: %{{text}}<extra></extra>"
        if panel.kind == "intervals":
            value, low, high = series.x[0], series.low[0], series.high[0]
            error = None
            if low is not None and high is not None:
                error = {"type": "data", "symmetric": False, "array": [high - value], "arrayminus": [value - low],
                         "color": style.color, "thickness": 2.5, "width": 6}  # fmt: skip
            lines.append(
                Scatter(x=[value], y=[name], error_x=error, mode="markers", text=list(series.text), showlegend=False,
                        marker={"color": style.color, "symbol": style.marker or "circle", "size": 10}, name=name,
                        hovertemplate=f"{name}: %{{text}}<extra></extra>")
            )  # fmt: skip
            continue
        band = [(x, low, high) for x, low, high in zip(series.x, series.low, series.high, strict=False)
                if low is not None and high is not None] if style.band else []  # fmt: skip
        if band:
            across, lows, highs = zip(*band, strict=True)
            bands.append(
                Scatter(x=across + across[::-1], y=highs + lows[::-1], fill="toself", fillcolor=_faded(style.color),
                        line={"width": 0}, mode="lines", hoverinfo="skip", showlegend=False, legendgroup=name,
                        name=f"{name}, 95 % interval")
            )  # fmt: skip
        lines.append(
            Scatter(x=list(series.x), y=list(series.y), name=name, legendgroup=name, showlegend=name not in named,
                    mode="lines+markers" if style.marker else "lines", text=list(series.text), hovertemplate=hover,
                    line={"color": style.color, "dash": style.dash, "width": style.width},
                    marker={"symbol": style.marker or "circle", "size": 7})
        )  # fmt: skip
        named.add(name)
    return bands + lines


def _faded(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{BAND})"


# -- Matplotlib ----------------------------------------------------------------------------------------------------
def to_png(chart: Chart, dpi: int = 160) -> bytes:
    """The same chart as a PNG with a transparent ground, 5.2 inches wide."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {"text.parse_math": False, "text.color": GREY, "axes.labelcolor": GREY, "xtick.color": GREY,
                     "ytick.color": GREY, "axes.edgecolor": GREY, "font.size": 9, "legend.labelcolor": GREY,
                     "legend.frameon": False, "legend.fontsize": 8}  # fmt: skip
    with matplotlib.rc_context(settings):
        shared = chart.shared_legend
        heights = [0.24 * len(p.series) + 0.1 if p.kind == "intervals" else 1.6 for p in chart.panels]
        title, small = textwrap.wrap(chart.title, 60), textwrap.wrap(chart.subtitle, 84)
        names = dict.fromkeys(s.name for p in chart.panels if p.kind == "lines" for s in p.series)
        top = 0.2 + 0.18 * len(title) + 0.15 * len(small)
        bottom = 0.1 + 0.19 * -(-len(names) // 3) if shared else 0.05
        height = sum(heights) + (0.55 if shared else 0.75) * len(chart.panels) + top + bottom
        figure = Figure(figsize=(5.2, height), dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        box = {"rect": (0, bottom / height, 1, 1 - (top + bottom) / height), "h_pad": 0.05}
        figure.get_layout_engine().set(**box)  # type: ignore[union-attr]
        figure.text(0.012, 1 - 0.1 / height, "\n".join(title), va="top", fontsize=10.5, weight="bold")
        figure.text(0.012, 1 - (0.12 + 0.18 * len(title)) / height, "\n".join(small), va="top", fontsize=8.5)
        grid: Any = []
        if chart.panels:
            grid = figure.subplots(len(chart.panels), 1, squeeze=False, height_ratios=heights)
        handles: dict[str, Any] = {}
        for position, ((axes,), panel) in enumerate(zip(grid, chart.panels, strict=True), start=1):
            axes.set_title(panel.title, loc="left", fontsize=9.5, color=GREY, pad=6 if shared else 16)
            if position == len(chart.panels) or chart.panels[position].x_title != panel.x_title:
                axes.set_xlabel(panel.x_title, labelpad=1)
            axes.set_ylabel(panel.y_title)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, color="#808080", alpha=0.25, linewidth=0.7)
            draw = _draw_intervals if panel.kind == "intervals" else _draw_lines
            drawn = draw(axes, panel)
            handles |= drawn
            if drawn and not shared:
                axes.legend(drawn.values(), drawn.keys(), loc="lower left", bbox_to_anchor=(-0.02, 0.97), ncols=4,
                            handlelength=2.4, columnspacing=1.0, borderaxespad=0)  # fmt: skip
        if handles and shared:
            figure.legend(handles.values(), handles.keys(), loc="lower left", ncols=3, bbox_to_anchor=(0, 0),
                          handlelength=3.2, columnspacing=1.2)  # fmt: skip
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", transparent=True)
    return buffer.getvalue()


def _draw_lines(axes: Any, panel: Panel) -> dict[str, Any]:
    handles = {}
    for series in panel.series:
        style = series.style
        y = [float("nan") if v is None else v for v in series.y]
        (handles[series.name],) = axes.plot(
            series.x, y, color=style.color, linestyle=_DASHES[style.dash], linewidth=style.width * 0.75,
            marker=_MARKERS.get(style.marker or ""), markersize=4,
        )  # fmt: skip
        if style.band and series.low:
            low = [float("nan") if v is None else v for v in series.low]
            high = [float("nan") if v is None else v for v in series.high]
            axes.fill_between(series.x, low, high, color=style.color, alpha=BAND, linewidth=0)
    steps = sorted({x for s in panel.series for x in s.x})
    if len(steps) <= 12:
        axes.set_xticks(steps)
    if panel.range is not None:
        axes.set_ylim(*panel.range)
    return handles


def _draw_intervals(axes: Any, panel: Panel) -> dict[str, Any]:
    for row, series in enumerate(panel.series):
        value, low, high, style = series.x[0], series.low[0], series.high[0], series.style
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color=style.color, linewidth=2, solid_capstyle="butt")
        axes.plot([value], [row], color=style.color, marker=_MARKERS[style.marker or "circle"], markersize=7)
    axes.axvline(0, color=GREY, linewidth=1.3, zorder=1)
    axes.set_yticks(range(len(panel.series)), [s.name for s in panel.series])
    axes.set_ylim(len(panel.series) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    if panel.range is not None:
        axes.set_xlim(*panel.range)
    return {}


# -- files ---------------------------------------------------------------------------------------------------------
_CSS = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; max-width: 760px; margin: 0 auto;
       padding: 16px 12px; background: light-dark(#fff, #14161a); color: light-dark(#1d1f23, #d6d8dc); }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid #8884; }
.plotly-graph-div { margin: 1.5rem 0; }
li { margin: .3rem 0; overflow-wrap: anywhere; }
"""


def to_html(report: EvaluationReport, charts: Sequence[Chart]) -> str:
    """One page that needs no network: findings, figures, tables. Plotly's script is inside once."""
    head = f"<title>Evaluation of {html.escape(report.title)}</title><style>{_CSS}</style>"
    first = [s for s in findings(report) if s.startswith("hint_effect of ")]
    parts = [f"<h1>Evaluation of {html.escape(report.title)}</h1>", _list(first)]
    for position, chart in enumerate(charts):
        parts.append(
            to_plotly(chart).to_html(
                full_html=False, include_plotlyjs=position == 0, config={"responsive": True, "displayModeBar": False}
            )
        )
    parts += _words(report)
    for part in report.parts:
        parts += [f"<h1>{html.escape(part.title)}</h1>", *_words(part)]
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"<!doctype html><html lang=en><head>{meta}{head}</head><body>{''.join(parts)}</body></html>"


def _words(report: EvaluationReport) -> list[str]:
    """Findings and tables of a report."""
    made = ["<h2>What separates and what does not</h2>", _list(findings(report))]
    for title, header, rows in tables(report):
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        made.append(f"<h2>{html.escape(title)}</h2><div class=scroll><table><tr>{cells}</tr>{body}</table></div>")
    return made


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def write_figures(
    report: EvaluationReport, folder: Path, training: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> list[Path]:
    """Write `report.html` and a PNG for each chart; `training` holds metric rows by stage. Returns the paths."""
    charts = [accuracy_chart(report), effect_chart(report)]
    charts += [training_chart(rows, f"Training: stage {stage}", f"training_{stage}")
               for stage, rows in (training or {}).items()]  # fmt: skip
    charts = [chart for chart in charts if chart.panels]
    written = [folder / "report.html"]
    write_atomically(written[0], to_html(report, charts))
    for chart in charts:
        written.append(folder / f"{chart.name}.png")
        write_atomically(written[-1], to_png(chart))
    return written
