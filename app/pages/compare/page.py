"""Page Compare: curves, evaluations and configurations of several runs."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr

from app.common.urls import page_url
from app.components.charts import Charts
from app.components.nodes import el
from app.components.view import View
from app.endpoints.compare import MAX_RUNS
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, QUEUED, Updates, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.compare import view
from jobs.db.models import ACTIVE
from rl2f_core.evaluation.study.spec import is_arm
from rl2f_core.types import JsonObject

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
    _Page(studio).connect()


class _Page:
    """Components and events of the page; handlers return component → update."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.compare = studio, studio.compare
        self.address = page_frame(studio, TITLE)
        gr.Markdown("# Compare")
        with gr.Row(elem_classes="compare-tools"):
            self.runs = gr.Dropdown([], label="Runs", multiselect=True, scale=4, min_width=280, elem_id="compare-runs")
            self.study = gr.Dropdown([], label="Study", min_width=180, elem_id="compare-study", visible="hidden")
        self.chips = View(elem_id="compare-chips")
        self.report = View(elem_id="compare-report")
        with gr.Column(visible=False) as self.content:
            self._build_charts()
            self._build_evaluations()
            self.config = View(elem_id="compare-config")
        self.timer = gr.Timer(REFRESH_SECONDS, active=False)
        self.version = gr.State(0)
        self.fields = QueryFields(
            {
                "runs": (self.runs, []),
                "study": (self.study, ""),
                "metric": (self.metrics, ["reward"]),
                "x": (self.x, "step"),
                "smooth": (self.smoothing, 0.6),
                "seeds": (self.seeds, False),
                "q": (self.quantity, view.DEFAULT_QUANTITY),
                "base": (self.base, ""),
            }
        )

    def _build_charts(self) -> None:
        with gr.Row(elem_classes="compare-tools"):
            self.metrics = gr.Dropdown(
                ["reward"], value=["reward"], label="Metrics", multiselect=True, scale=4, elem_id="compare-metrics"
            )
            self.x = gr.Dropdown(X_AXES, label="X axis", min_width=130)
            self.smoothing = gr.Slider(0, MAX_SMOOTHING, step=0.05, label="Smoothing", min_width=180)
            self.seeds = gr.Checkbox(label="Merge seeds", info=SEEDS_INFO, min_width=180, visible=False)
        self.no_charts = View()
        self.charts = Charts(closable=True, arrange="compare", elem_classes="rl-wide", elem_id="compare-charts")

    def _build_evaluations(self) -> None:
        View(el("h2", "Evaluations"))
        with gr.Row(elem_classes="compare-select", visible=False) as self.quantities:
            self.quantity = gr.Dropdown([view.DEFAULT_QUANTITY], label="Quantity", container=False, min_width=220)
            self.quantity_note = View()
        self.matrix = View(elem_id="compare-evaluations")
        self.merged = View(elem_id="compare-seeds")
        with gr.Column(visible=False) as self.paired:
            View(el("h2", "Paired differences"))
            with gr.Row(elem_classes="compare-select"):
                self.base = gr.Dropdown([("–", "")], label="Against", container=False, min_width=220)
                View(el("p.rl-muted.rl-small", view.PAIRED))
            self.differences = View(elem_id="compare-differences")

    def connect(self) -> None:
        """Connect the events."""
        address, fields, inputs = self.address, self.fields, self.fields.components
        charted = [self.no_charts, self.charts]
        shown = [self.chips, self.study, self.report, self.content, self.config, self.timer, self.version, *charted]
        of_runs = [self.runs, self.metrics, self.seeds, *shown]
        quantity = [self.quantities, self.quantity, self.quantity_note]
        of_evaluations = [*quantity, self.matrix, self.merged, self.paired, self.base, self.differences]
        address.input(self.open_page, address, [self.x, self.smoothing, *of_runs], **FAST)
        address.input(self.open_evaluations, address, of_evaluations, **QUEUED)
        self.runs.input(self.choose, inputs, [address, *of_runs], **LATEST)
        chosen = self.study.input(self.choose_study, self.study, [address, *of_runs], **LATEST)
        chosen.then(self.evaluate, inputs, of_evaluations, **QUEUED)
        self.report.click(self.act_on_study, [self.version, *inputs], [*of_runs, *of_evaluations], **FAST)
        self.runs.key_up(self.search, self.runs, self.runs, **LATEST)
        self.chips.click(self.remove_missing, inputs, [address, *of_runs], **FAST)
        edits = [self.metrics.input, self.x.input, self.smoothing.input, self.seeds.input]
        gr.on(edits, self.redraw, inputs, [address, *charted], **LATEST)
        edits = [self.quantity.input, self.base.input]
        gr.on(edits, lambda *values: fields.query(values), inputs, address, **LATEST)
        gr.on([self.runs.input, self.seeds.input, *edits], self.evaluate, inputs, of_evaluations, **QUEUED)
        self.charts.delete(self.close_chart, inputs, [self.metrics, address, *charted], **FAST)
        self.charts.select(self.open_dialogues, None, address, **FAST)
        self.timer.tick(self.refresh, [self.version, *inputs], [*of_runs, *of_evaluations], **FAST)

    # -- drawing ---------------------------------------------------------------------------------------------------
    def _form_of_query(self, query: dict[str, str]) -> JsonObject:
        form = self.fields.values(query)
        form["runs"] = [run for run in dict.fromkeys(form["runs"]) if isinstance(run, int)]
        if form["study"] and not form["runs"] and form["study"] in self.compare.list_studies():
            parts = self.compare.study_report(form["study"]).parts
            arms = [part.run for name, part in parts.items() if is_arm(name)]
            form |= {"runs": arms[:MAX_RUNS], "seeds": True}
        return form

    def _draw_study(self, name: str) -> Updates:
        """Return the choice of studies, and the report of the chosen one."""
        names = self.compare.list_studies()
        choices = [("–", ""), *((item, item) for item in dict.fromkeys([*names, *([name] if name else [])]))]
        report = view.missing_study(name) if name and name not in names else None
        if name in names:
            report = view.study_section(self.compare.study_report(name), not self.studio.context.read_only)
        studies = gr.update(choices=choices, value=name, visible=True if len(choices) > 1 else "hidden")
        return {self.study: studies, self.report: report}

    def _draw_charts(self, form: JsonObject) -> Updates:
        """Return the message without charts, and the charts."""
        options = (form["metric"], form["x"], form["smooth"], form["seeds"])
        drawn = self.compare.compare_charts(form["runs"], *options) if form["runs"] else []
        return {self.no_charts: None if drawn else view.no_charts(form["metric"]), self.charts: drawn}

    def _draw_runs(self, form: JsonObject) -> Updates:
        """Return everything that depends on the runs, except evaluations."""
        found = self.compare.compare_runs(form["runs"])
        listed = self.compare.search_runs().runs
        names = {run.id: view.run_label(run) for run in [*found.runs, *listed]}
        names |= {number: f"{number} (not found)" for number in found.missing}
        offered = {metric["name"]: view.metric_label(metric) for metric in found.metrics}
        offered |= {name: name for name in form["metric"] if name not in offered}
        is_active = any(run.status in ACTIVE for run in found.runs)
        metrics = [(label, name) for name, label in offered.items()]
        return {
            self.runs: gr.update(choices=[(name, number) for number, name in names.items()], value=form["runs"]),
            self.metrics: gr.update(choices=metrics, value=form["metric"]),
            self.seeds: gr.update(value=form["seeds"], visible=bool(found.has_seeds or form["seeds"])),
            self.chips: view.run_chips(found, of_study=bool(form["study"])),
            **self._draw_study(form["study"]),
            self.content: gr.update(visible=bool(found.runs)),
            self.config: view.config_table(found.config, found.runs),
            self.timer: gr.Timer(active=is_active),
            self.version: found.version,
            **self._draw_charts(form),
        }

    def _draw_evaluations(self, form: JsonObject) -> Iterator[Updates]:
        """Yield the evaluations until all differences are computed."""
        known = {run.id: run for run in self.compare.compare_runs(form["runs"]).runs}
        while True:
            base = form["base"] or ""
            base = base if base.partition(":")[0] in map(str, form["runs"]) else ""  # its run may have been removed
            found = self.compare.compare_evaluations(form["runs"], base, form["seeds"])
            evaluations = view.evaluated(found)
            titles = view.quantity_choices(evaluations)
            bases = view.base_choices(found)
            keys = [key for _, key in titles]
            chosen = form["q"] if form["q"] in keys else view.DEFAULT_QUANTITY
            against = form["base"] if form["base"] in [value for _, value in bases] else ""
            matrix = view.evaluation_matrix(evaluations, known, chosen) if evaluations else view.no_evaluations()
            has_pairs = len(bases) > 1
            yield {
                self.quantities: gr.update(visible=bool(evaluations)),
                self.quantity: gr.update(choices=titles, value=chosen),
                self.quantity_note: view.quantity_note(evaluations, chosen),
                self.matrix: matrix,
                self.merged: view.seed_tables(found),
                self.paired: gr.update(visible=has_pairs),
                self.base: gr.update(choices=bases, value=against),
                self.differences: view.paired_table(found) if has_pairs else None,
            }
            if not found.pending:
                return

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def open_page(self, query: dict[str, str]) -> Updates:
        """Show the runs of the address."""
        form = self._form_of_query(query)
        form["smooth"] = min(max(form["smooth"], 0.0), MAX_SMOOTHING)
        if form["x"] not in [value for _, value in X_AXES]:
            form["x"] = "step"
        return {self.x: form["x"], self.smoothing: form["smooth"], **self._draw_runs(form)}

    @handler
    def choose(self, *values: object) -> Updates:
        """Show the chosen runs."""
        return {self.address: self.fields.query(values), **self._draw_runs(self.fields.named(values))}

    @handler
    def choose_study(self, name: str) -> Updates:
        """Show a study and the runs of its arms; without one, the choice of runs."""
        query = {"study": name} if name else {}
        return {self.address: query, **self._draw_runs(self._form_of_query(query))}

    @handler
    def act_on_study(self, event: gr.EventData, _seen: int, *values: object) -> Updates:
        """Stop or resume all parts of the study."""
        name = str(self.fields.named(values)["study"])
        if event._data["action"] == "stop_study":
            self.studio.launch.stop_study(name)
            gr.Info(f"Stopping the parts of {name}; running ones end after their step.")
        else:
            self.studio.launch.resume_study(name)
            gr.Info(f"The unfinished parts of {name} are queued.")
        return self.refresh(-1, *values)

    @handler
    def redraw(self, *values: object) -> Updates:
        """Show the chosen charts."""
        return {self.address: self.fields.query(values), **self._draw_charts(self.fields.named(values))}

    @handler
    def close_chart(self, event: gr.EventData, *values: object) -> Updates:
        """Remove the metric of a chart."""
        form = self.fields.named(values)
        form["metric"] = [name for name in form["metric"] if name != event._data["key"]]
        return {self.metrics: form["metric"], **self.redraw(*form.values())}

    @handler
    def remove_missing(self, *values: object) -> Updates:
        """Remove the runs that do not exist."""
        form = self.fields.named(values)
        missing = self.compare.compare_runs(form["runs"]).missing
        form["runs"] = [run for run in form["runs"] if run not in missing]
        return self.choose(*form.values())

    @handler
    def search(self, event: gr.KeyUpData, chosen: list[int]) -> JsonObject:
        """Offer the runs that a text finds, and the chosen ones."""
        if len(event.input_value) < MIN_SEARCH_CHARS:
            return gr.skip()
        found = self.compare.search_runs(event.input_value).runs
        names = {run.id: view.run_label(run) for run in [*self.compare.compare_runs(chosen).runs, *found]}
        return gr.update(choices=[(name, number) for number, name in names.items()]) if found else gr.skip()

    @handler
    def refresh(self, seen: int, *values: object) -> Updates:
        """Show everything again if a run has changed."""
        if self.studio.runs.runs_version() == seen:
            return gr.skip()
        form = self.fields.named(values)
        return {**self._draw_runs(form), **list(self._draw_evaluations(form))[-1]}

    def open_evaluations(self, query: dict[str, str]) -> Iterator[Updates]:
        """Show the evaluations of the runs of the address."""
        yield from self._draw_evaluations(self._form_of_query(query))

    def evaluate(self, *values: object) -> Iterator[Updates]:
        """Show the evaluations of the chosen runs."""
        yield from self._draw_evaluations(self.fields.named(values))

    def open_dialogues(self, event: gr.EventData) -> str:
        """Open the dialogues of a point."""
        run, stage, step, *_ = event._data["point"]
        return page_url("dialogues", run=run, phase="train", stage=stage, step=step)
