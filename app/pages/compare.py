"""Page Compare: curves, evaluations and configurations of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from app.common.urls import page_url
from app.components.charts import Charts
from app.components.nodes import el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages import _compare_view as view
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields

PATH = "compare"
TITLE = "Compare"
ORDER = 70
X_AXES = [("Steps", "step"), ("Sampled tokens", "tokens"), ("Time", "time")]
MAX_SMOOTHING = 0.95
SEEDS_INFO = "Runs that differ only in their seed: mean, 95 % interval."
MIN_SEARCH_CHARS = 2
REFRESH_SECONDS = 3.0


def build(studio: Studio) -> None:
    """Build the choice of runs, and below it charts, evaluations and differences."""
    compare = studio.compare

    address = page_frame(studio, TITLE)
    gr.Markdown("# Compare")
    runs = gr.Dropdown([], label="Runs", multiselect=True, elem_id="compare-runs")
    chips = View(elem_id="compare-chips")
    with gr.Column(visible=False) as content:
        with gr.Row(elem_classes="compare-tools"):
            metrics = gr.Dropdown(
                ["reward"], value=["reward"], label="Metrics", multiselect=True, scale=4, elem_id="compare-metrics"
            )
            x = gr.Dropdown(X_AXES, label="X axis", min_width=130)
            smoothing = gr.Slider(0, MAX_SMOOTHING, step=0.05, label="Smoothing", min_width=180)
            seeds = gr.Checkbox(label="Merge seeds", info=SEEDS_INFO, min_width=180, visible=False)
        no_charts = View()
        charts = Charts(closable=True, elem_classes="rl-wide", elem_id="compare-charts")
        View(el("h2", "Evaluations"))
        with gr.Row(elem_classes="compare-select", visible=False) as quantities:
            quantity = gr.Dropdown([view.DEFAULT_QUANTITY], label="Quantity", container=False, min_width=220)
            quantity_note = View()
        matrix = View(elem_id="compare-evaluations")
        merged = View(elem_id="compare-seeds")
        with gr.Column(visible=False) as paired:
            View(el("h2", "Paired differences"))
            with gr.Row(elem_classes="compare-select"):
                base = gr.Dropdown([("–", "")], label="Against", container=False, min_width=220)
                View(el("p.rl-muted.rl-small", view.PAIRED))
            differences = View(elem_id="compare-differences")
        config = View(elem_id="compare-config")
    timer = gr.Timer(REFRESH_SECONDS, active=False)
    version = gr.State(0)

    fields = QueryFields(
        {
            "runs": (runs, []),
            "metric": (metrics, ["reward"]),
            "x": (x, "step"),
            "smooth": (smoothing, 0.6),
            "seeds": (seeds, False),
            "q": (quantity, view.DEFAULT_QUANTITY),
            "base": (base, ""),
        }
    )

    def form_of(values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(fields.fields, values, strict=True))

    def form_of_query(query: dict[str, str]) -> dict[str, Any]:
        form = fields.values(query)
        return {**form, "runs": [run for run in dict.fromkeys(form["runs"]) if isinstance(run, int)]}

    def draw_charts(form: dict[str, Any]) -> list[Any]:
        """Return the message without charts, and the charts."""
        options = (form["metric"], form["x"], form["smooth"], form["seeds"])
        drawn = compare.compare_charts(form["runs"], *options) if form["runs"] else []
        return [None if drawn else view.no_charts(form["metric"]), drawn]

    def draw_runs(form: dict[str, Any]) -> list[Any]:
        """Return everything that depends on the runs, except evaluations."""
        found = compare.compare_runs(form["runs"])
        listed = compare.search_runs()["runs"]
        names = {run["id"]: view.run_label(run) for run in [*found["runs"], *listed]}
        names |= {number: f"{number} (not found)" for number in found["missing"]}
        offered = {metric["name"]: view.metric_label(metric) for metric in found["metrics"]}
        offered |= {name: name for name in form["metric"] if name not in offered}
        is_active = any(run["status"] in view.ACTIVE for run in found["runs"])
        return [
            gr.update(choices=[(name, number) for number, name in names.items()], value=form["runs"]),
            gr.update(choices=[(label, name) for name, label in offered.items()], value=form["metric"]),
            gr.update(value=form["seeds"], visible=bool(found["has_seeds"] or form["seeds"])),
            view.run_chips(found),
            gr.update(visible=bool(found["runs"])),
            view.config_table(found["config"], found["runs"]),
            gr.Timer(active=is_active),
            found["version"],
            *draw_charts(form),
        ]

    def draw_evaluations(form: dict[str, Any]) -> Iterator[list[Any]]:
        """Yield the evaluations until all differences are computed."""
        known = {run["id"]: run for run in compare.compare_runs(form["runs"])["runs"]}
        while True:
            found = compare.compare_evaluations(form["runs"], form["base"] or "", form["seeds"])
            evaluations = view.evaluated(found)
            titles = view.quantity_choices(evaluations)
            bases = view.base_choices(found)
            keys = [key for _, key in titles]
            chosen = form["q"] if form["q"] in keys else view.DEFAULT_QUANTITY
            against = form["base"] if form["base"] in [value for _, value in bases] else ""
            has_pairs = len(bases) > 1
            yield [
                gr.update(visible=bool(evaluations)),
                gr.update(choices=titles, value=chosen),
                view.quantity_note(evaluations, chosen),
                view.evaluation_matrix(evaluations, known, chosen) if evaluations else view.no_evaluations(),
                view.seed_tables(found["merged"]),
                gr.update(visible=has_pairs),
                gr.update(choices=bases, value=against),
                view.paired_table(found) if has_pairs else None,
            ]
            if not found["pending"]:
                return

    @handler
    def open_page(query: dict[str, str]) -> list[Any]:
        form = form_of_query(query)
        form["smooth"] = min(max(form["smooth"], 0.0), MAX_SMOOTHING)
        if form["x"] not in [value for _, value in X_AXES]:
            form["x"] = "step"
        return [form["x"], form["smooth"], *draw_runs(form)]

    @handler
    def choose(*values: Any) -> list[Any]:
        return [fields.query(values), *draw_runs(form_of(values))]

    @handler
    def redraw(*values: Any) -> list[Any]:
        return [fields.query(values), *draw_charts(form_of(values))]

    @handler
    def close_chart(event: gr.EventData, *values: Any) -> list[Any]:
        form = form_of(values)
        form["metric"] = [name for name in form["metric"] if name != event._data["key"]]
        return [form["metric"], *redraw(*form.values())]

    @handler
    def remove_missing(*values: Any) -> list[Any]:
        form = form_of(values)
        missing = compare.compare_runs(form["runs"])["missing"]
        form["runs"] = [run for run in form["runs"] if run not in missing]
        return choose(*form.values())

    @handler
    def search(event: gr.KeyUpData, chosen: list[int]) -> Any:
        if len(event.input_value) < MIN_SEARCH_CHARS:
            return gr.skip()
        found = compare.search_runs(event.input_value)["runs"]
        names = {run["id"]: view.run_label(run) for run in [*compare.compare_runs(chosen)["runs"], *found]}
        return gr.update(choices=[(name, number) for number, name in names.items()]) if found else gr.skip()

    @handler
    def refresh(seen: int, *values: Any) -> Any:
        if studio.runs.runs_version() == seen:
            return gr.skip()
        form = form_of(values)
        return [*draw_runs(form), *list(draw_evaluations(form))[-1]]

    def open_evaluations(query: dict[str, str]) -> Iterator[list[Any]]:
        yield from draw_evaluations(form_of_query(query))

    def evaluate(*values: Any) -> Iterator[list[Any]]:
        yield from draw_evaluations(form_of(values))

    def open_dialogues(event: gr.EventData) -> str:
        run, stage, step, *_ = event._data["point"]
        return page_url("dialogues", run=run, phase="train", stage=stage, step=step)

    inputs = fields.components
    charted = [no_charts, charts]
    of_runs = [runs, metrics, seeds, chips, content, config, timer, version, *charted]
    of_evaluations = [quantities, quantity, quantity_note, matrix, merged, paired, base, differences]
    last: dict[str, Any] = {**FAST, "trigger_mode": "always_last"}
    address.input(open_page, address, [x, smoothing, *of_runs], **FAST)
    address.input(open_evaluations, address, of_evaluations, **QUEUED)
    runs.input(choose, inputs, [address, *of_runs], **last)
    runs.key_up(search, runs, runs, **last)
    chips.click(remove_missing, inputs, [address, *of_runs], **FAST)
    gr.on([metrics.input, x.input, smoothing.input, seeds.input], redraw, inputs, [address, *charted], **last)
    gr.on([quantity.input, base.input], lambda *values: fields.query(values), inputs, address, **last)
    gr.on([runs.input, seeds.input, quantity.input, base.input], evaluate, inputs, of_evaluations, **QUEUED)
    charts.delete(close_chart, inputs, [metrics, address, *charted], **FAST)
    charts.select(open_dialogues, None, address, **FAST)
    timer.tick(refresh, [version, *inputs], [*of_runs, *of_evaluations], **FAST)
