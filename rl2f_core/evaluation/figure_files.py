"""Figure files of a report: an HTML page with Plotly figures, and one PNG per chart.

Matplotlib draws the PNG files, because Plotly's export (kaleido) needs a browser and takes seconds per file.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl2f_core.common.file_io import write_atomically
from rl2f_core.evaluation.chart_data import Chart, accuracy_chart, benchmark_chart, effect_chart, training_chart
from rl2f_core.evaluation.formatting import Table
from rl2f_core.evaluation.plotting import GREY, PALETTE, Plot, cell_text, figure, resolve_colors, shade
from rl2f_core.evaluation.report import EvaluationReport, findings, tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import LineStyleType

_MARKERS = "osD^vX"
_LEGEND_COLUMNS = 3
_DASHES: dict[str, LineStyleType] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 2, 1, 2)), "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 2, 1, 2)),
}  # fmt: skip


# -- PNG -----------------------------------------------------------------------------------------------------------
def chart_digest(chart: Chart) -> str:
    """Return the digest of a chart's data, which `to_png` stores in the PNG as the text `Data`."""
    return hashlib.sha256(json.dumps(asdict(chart), default=list).encode()).hexdigest()


def to_png(chart: Chart, dpi: int = 160) -> bytes:
    """Render a chart as a PNG with a transparent background, 5.2 inches wide."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    gray = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor")
    settings: dict[Any, object] = dict.fromkeys(gray, GREY) | {"font.size": 9, "legend.fontsize": 8}
    settings |= {"text.parse_math": False, "legend.frameon": False}
    with matplotlib.rc_context(settings):
        rows = {"intervals": 0.24, "heatmap": 0.36}
        heights = [rows[p.kind] * len(p.lines) + 0.1 if p.kind in rows else 1.6 for p in chart.plots]
        title, subtitle = textwrap.wrap(chart.title, 60), textwrap.wrap(chart.subtitle, 84)
        top = 0.2 + 0.18 * len(title) + 0.15 * len(subtitle)
        height = sum(heights) + sum(0.55 + 0.18 * _legend_rows(p) for p in chart.plots) + top + 0.05
        layout = ConstrainedLayoutEngine(rect=(0, 0.05 / height, 1, 1 - (top + 0.05) / height), h_pad=0.05)
        canvas = Figure(figsize=(5.2, height), dpi=dpi, layout=layout)
        canvas.text(0.012, 1 - 0.1 / height, "\n".join(title), va="top", fontsize=10.5, weight="bold")
        canvas.text(0.012, 1 - (0.12 + 0.18 * len(title)) / height, "\n".join(subtitle), va="top", fontsize=8.5)
        count = len(chart.plots)
        grid = canvas.subplots(count, 1, squeeze=False, height_ratios=heights)[:, 0] if count else ()
        for position, (axes, plot) in enumerate(zip(grid, chart.plots, strict=True), start=1):
            axes.set_title(plot.title, loc="left", fontsize=9.5, color=GREY, pad=6 + 13 * _legend_rows(plot))
            if position == count or chart.plots[position].x_title != plot.x_title:
                axes.set_xlabel(plot.x_title, labelpad=1)
            axes.set_ylabel(plot.unit)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, color="#808080", alpha=0.25, linewidth=0.7)
            {"intervals": _draw_intervals, "heatmap": _draw_heatmap}.get(plot.kind, _draw_lines)(axes, plot)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="png", transparent=True, metadata={"Data": chart_digest(chart)})
    return buffer.getvalue()


def _legend_rows(plot: Plot) -> int:
    return -(-len(plot.lines) // _LEGEND_COLUMNS) if plot.kind == "lines" else 0


def _draw_lines(axes: Axes, plot: Plot) -> None:
    for position, line in enumerate(plot.lines):
        color = PALETTE[line.color]
        marked = line.width > 1.5 and len(line.y) <= 15
        x = _numbers(line.x)
        axes.plot(x, _numbers(line.y), color=color, linestyle=_DASHES[line.dash], linewidth=line.width * 0.75,
                  marker=_MARKERS[position % len(_MARKERS)] if marked else None, markersize=4,
                  label=line.name)  # fmt: skip
        if len(line.low):
            axes.fill_between(x, _numbers(line.low), _numbers(line.high), color=color, alpha=0.18, linewidth=0)
    if len(plot.x_ticks):
        axes.set_xticks(plot.x_ticks)
    if plot.range is not None:
        axes.set_ylim(*plot.range)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.97), ncols=_LEGEND_COLUMNS, handlelength=2.4,
                columnspacing=1.0, borderaxespad=0)  # fmt: skip


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if v is None else v for v in values]


def _draw_intervals(axes: Axes, plot: Plot) -> None:
    for row, line in enumerate(plot.lines):
        color, low, high = PALETTE[line.color], line.low[0], line.high[0]
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot(_numbers(line.y), [row], color=color, marker=_MARKERS[row % len(_MARKERS)], markersize=7)
    axes.axvline(0, color=GREY, linewidth=1.3, zorder=1)
    axes.set_yticks(range(len(plot.lines)), [line.name for line in plot.lines])
    axes.set_ylim(len(plot.lines) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    if plot.range is not None:
        axes.set_xlim(*plot.range)


def _draw_heatmap(axes: Axes, plot: Plot) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    for row, line in enumerate(plot.lines):
        for column, value in enumerate(line.y):
            if value is not None:  # opaque, so that the text is legible on any background
                color = [1 - 1.4 * shade(value) * (1 - part) for part in to_rgb(PALETTE[line.color])]
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=color, linewidth=0))
            axes.text(column, row, cell_text(plot, line, column, "\n"), ha="center", va="center", fontsize=7.5,
                      color=GREY if value is None else "#1d1f23")  # fmt: skip
    axes.set_xlim(-0.5, len(plot.columns) - 0.5)
    axes.set_ylim(len(plot.lines) - 0.5, -0.5)
    axes.set_xticks(range(len(plot.columns)), list(plot.columns))
    axes.set_yticks(range(len(plot.lines)), [line.name for line in plot.lines])
    axes.grid(visible=False)


# -- files ---------------------------------------------------------------------------------------------------------
_CSS = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; max-width: 760px; margin: 0 auto;
       padding: 16px 12px; background: light-dark(#fff, #14161a); color: light-dark(#1d1f23, #d6d8dc); }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin-bottom: 0; } small { font-weight: normal; color: #7b7b7b; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid #8884; }
li { margin: .3rem 0; overflow-wrap: anywhere; }
"""


def to_html(report: EvaluationReport, charts: Sequence[Chart]) -> str:
    """Return a self-contained page with findings, figures and tables."""
    summary = [s for s in findings(report) if s.startswith("The hint effect of ")]
    more = [_list(findings(report)), *_tables(tables(report))]
    for part in report.parts:
        more += [f"<h1>{html.escape(part.title)}</h1><h2>Findings</h2>", _list(findings(part)), *_tables(tables(part))]
    return html_page(f"Evaluation of {report.title}", summary, charts, (), ["<h2>Findings</h2>", *more])


def html_page(
    title: str, summary: Sequence[str], charts: Sequence[Chart], first: Sequence[Table], last: Sequence[str] = ()
) -> str:
    """Return a self-contained page.

    Args:
        title: Title of the page.
        summary: Sentences below it.
        charts: Figures.
        first: Tables before the figures.
        last: HTML after them.
    """
    from plotly.io import to_html as plotly_html

    head = f"<title>{html.escape(title)}</title><style>{_CSS}</style>"
    parts = [f"<h1>{html.escape(title)}</h1>", _list(summary), *_tables(first)]
    for chart in charts:
        parts.append(f"<h2>{html.escape(chart.title)}</h2><p>{html.escape(chart.subtitle)}</p>")
        for plot in chart.plots:
            unit = f" <small>{html.escape(plot.unit)}</small>" if plot.unit else ""
            drawn = plotly_html(
                resolve_colors(figure(plot)),
                {"responsive": True, "displayModeBar": False},
                full_html=False,
                include_plotlyjs=not any("plotly.js v" in part for part in parts),
            )
            parts.append(f"<h3>{html.escape(plot.title)}{unit}</h3>{drawn}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"<!doctype html><html lang=en><head>{meta}{head}</head><body>{''.join([*parts, *last])}</body></html>"


def _tables(shown: Sequence[Table]) -> Iterator[str]:
    """Yield tables, in which `[text](path)` is a link."""
    for title, header, rows in shown:
        cells = "".join(f"<th>{html.escape(c)}</th>" for c in header)
        body = "".join("<tr>" + "".join(f"<td>{_linked(c)}</td>" for c in row) + "</tr>" for row in rows)
        yield f"<h2>{html.escape(title)}</h2><div class=scroll><table><tr>{cells}</tr>{body}</table></div>"


def _linked(cell: str) -> str:
    return re.sub(r"\[([+−.\d]+)\]\(([\w./@%-]+)\)", r'<a href="\2">\1</a>', html.escape(cell))


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def write_figures(
    report: EvaluationReport, folder: Path, training: Mapping[str, Sequence[Mapping[str, float]]] | None = None
) -> list[Path]:
    """Write `report.html` and one PNG per chart to a folder, and return the paths.

    `training` are the metric rows of each stage.
    """
    charts = [benchmark_chart(report), accuracy_chart(report), effect_chart(report)]
    charts += [training_chart(rows, f"Training: stage {stage}", f"training_{stage}")
               for stage, rows in (training or {}).items()]  # fmt: skip
    charts = [chart for chart in charts if chart.plots]
    written = [folder / "report.html"]
    write_atomically(written[0], to_html(report, charts))
    for chart in charts:
        written.append(folder / f"{chart.name}.png")
        write_atomically(written[-1], to_png(chart))
    return written
