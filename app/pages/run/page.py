"""Page Run: one run while it is running and after its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast, get_args

import gradio as gr

from app.common.urls import page_url
from app.components.browser.address import Replacement
from app.components.browser.keys import Key
from app.components.charts import Charts
from app.components.elements.evaluation_view import dialogues_link
from app.components.elements.metric_strip import metric_cards
from app.components.nodes import Element, el
from app.components.view import View
from app.endpoints.endpoint import ArgumentError
from app.endpoints.run import RunDetails
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, Updates, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.run import view
from app.pages.run.tabs import TABS, RunTab
from app.plots.series import XKind
from jobs.db.dialogue_models import DialogueSummary
from jobs.db.errors import UnknownRunError
from jobs.db.models import ACTIVE
from jobs.db.queries.dialogues import DialogueFilter
from rl2f_core.common.text.integers import whole_number
from rl2f_core.types import JsonObject

PATH = "run"
TITLE = "Run"
ORDER = 30
IN_NAVIGATION = False
X_AXES = [("steps", "step"), ("sampled tokens", "tokens"), ("time", "time")]
SMOOTHING = 0.6
MAX_SMOOTHING = 0.95
MAX_SERIES = 24
"""Charts in addition to those of the overview."""
MAX_NEWEST = 5
"""Dialogues beside the curves of an active run."""
WHOLE = "all"
"""Choice of all environments of a mixture."""
ACTIVE_SECONDS, ENDED_SECONDS = 2.0, 10.0
"""Refresh intervals of a run that is running, and of one that ended."""
KEYS = [
    Key("d", "dialogues of this run", ".rl-tabs a[href^='/dialogues']"),
    Key("Ctrl+Enter", "save the note", "#run-save-note", typing=True),
]


@dataclass(frozen=True)
class Shown:
    """What a browser tab shows."""

    run: int = 0
    """Number of the run; 0 if there is none."""
    tab: RunTab = "Overview"
    version: int = 0
    active: bool | None = None
    is_serving: bool = False
    """Models are served to OpenAI clients."""
    source: object = None
    """What the contents of the tab were made from; equal sources have equal contents."""


def build(studio: Studio) -> None:
    """Build the page."""
    RunPage(studio)


class RunPage:
    """Heading, and one column per tab; the style sheet shows the column of the current tab in the heading."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.endpoints = studio, studio.run
        self.read_only = studio.context.read_only
        self.address = page_frame(studio, TITLE, KEYS)
        self.shown = gr.State(Shown())
        self.timer = gr.Timer(ACTIVE_SECONDS)
        self.head = View(elem_id="run-head")
        with gr.Column(elem_id="run-overview"):
            self._add_overview()
        with gr.Column(elem_id="run-evaluation"):
            self.evaluation_title = View(elem_id="run-evaluation-title")
            self.part = gr.Radio([WHOLE], value=WHOLE, label="Environment", visible=False, elem_id="run-part")
            self.accuracy = Charts(elem_id="run-accuracy")
            self.tables = View(elem_id="run-tables")
        with gr.Column(elem_id="run-checkpoints"):
            self.checkpoints = View(elem_id="run-saved")
        # the editor takes long to start: this column is added when the tab is opened for the first time
        with gr.Column(visible=False, elem_id="run-config") as self.config, gr.Row(equal_height=False):
            with gr.Column(scale=6, min_width=320):
                self.yaml = gr.Code(
                    language="yaml", label="Config", interactive=False, wrap_lines=True, elem_id="run-yaml"
                )
            with gr.Column(scale=4, min_width=280):
                self.environment = View(elem_id="run-environment")
        with gr.Column(elem_id="run-log"):
            self.output = View(elem_id="run-output")
        self.fields = QueryFields(
            {
                "x": (self.x, "step"),
                "smooth": (self.smoothing, SMOOTHING),
                "more": (self.more, []),
                "part": (self.part, WHOLE),
            }
        )
        self.contents = {
            "Overview": self._show_overview,
            "Evaluation": self._show_evaluation,
            "Checkpoints": self._show_checkpoints,
            "Config": self._show_config,
            "Log": self._show_log,
        }
        self._connect()

    def _add_overview(self) -> None:
        plain: JsonObject = {"show_label": False, "container": False, "interactive": not self.read_only}
        self.cards = View(elem_id="run-cards")
        with gr.Column(elem_id="run-curves"):
            with gr.Row(elem_classes="run-tools", equal_height=True):
                self.x = gr.Dropdown(X_AXES, value="step", label="Along x", container=False, elem_id="run-x")
                self.smoothing = gr.Slider(
                    0, MAX_SMOOTHING, SMOOTHING, step=0.05, label="Smoothing", buttons=[], elem_id="run-smoothing"
                )
                self.more = gr.Dropdown(
                    [], multiselect=True, max_choices=MAX_SERIES, label="Search more series", container=False,
                    elem_id="run-series",
                )  # fmt: skip
            self.newest = View(elem_id="run-newest")
            self.charts = Charts(arrange="run", elem_id="run-charts")
            self.further = Charts(closable=True, elem_id="run-further")
        self.sides = View(elem_id="run-sides")
        with gr.Column(elem_id="run-tags-notes"):
            self.tags_notes = View(elem_id="run-tags")
            self.tag = gr.Textbox(label="Add a tag", placeholder="add a tag", max_length=60, elem_id="run-tag", **plain)
            self.note = gr.Textbox(
                label="A note on this run", placeholder="A note on this run", lines=2, elem_id="run-note-text", **plain
            )
            self.save = gr.Button("Save note", size="sm", interactive=plain["interactive"], elem_id="run-save-note")

    def _connect(self) -> None:
        where, values = [self.address, self.shown], self.fields.components
        live = [
            self.address, self.shown, self.timer, self.head, self.cards, self.newest, self.charts, self.further,
            self.sides, self.tags_notes, self.evaluation_title, self.part, self.accuracy, self.tables, self.checkpoints,
            self.output,
        ]  # fmt: skip
        every = [*live, self.config, self.yaml, self.environment]
        self.address.input(self._open, self.address, [*every, self.x, self.smoothing, self.more], **FAST)
        self.timer.tick(self._refresh, where, live, **FAST)
        gr.on(
            [self.x.input, self.smoothing.input],
            self._redraw,
            [*where, *values],
            [self.address, self.charts, self.further],
            **LATEST,
        )
        self.more.focus(self._offer_series, self.shown, self.more, **FAST)
        self.more.input(self._choose_series, [*where, *values], [self.address, self.further], **LATEST)
        self.further.delete(self._close_series, [*where, *values], [self.address, self.more, self.further], **FAST)
        self.part.input(
            self._choose_part,
            [*where, *values],
            [self.address, self.evaluation_title, self.part, self.accuracy, self.tables],
            **FAST,
        )
        gr.on([self.charts.select, self.further.select], self._open_step, self.shown, self.address, **FAST)
        self.accuracy.select(self._open_condition, self.shown, self.address, **FAST)
        clicks = [self.newest.click, self.head.click, self.sides.click, self.checkpoints.click, self.tags_notes.click]
        gr.on(clicks, self._act, where, every, **FAST)
        self.output.input(self._filter_log, where, live, **FAST)
        self.tag.submit(self._add_tag, [self.shown, self.tag], [self.tags_notes, self.tag], **FAST)
        self.save.click(self._add_note, [self.shown, self.note], [self.tags_notes, self.note], **FAST)

    # -- contents --------------------------------------------------------------------------------------------------
    def _show(self, query: Mapping[str, str], before: Shown) -> Updates:
        """Return the updates from what the browser shows to the state of the run."""
        run_id, named = run_number(query), query.get("run")
        if run_id is None and named:
            return self._message(view.not_found(f"“{named}” is not the number of a run."))
        if run_id is None:
            return self._message(view.run_choice(self.studio.runs.list_runs().rows))
        try:
            details = self.endpoints.get_run(run_id)
        except (UnknownRunError, ArgumentError):
            deleted, unknown = f"Run {run_id} was deleted.", f"There is no run {run_id}."
            return self._message(view.not_found(deleted if before.run == run_id else unknown))
        run = details.run
        if before.run != run_id:
            before = Shown()
        tab = current_tab(query, run.kind)
        active = run.status in ACTIVE
        known = before.source if before.run and before.tab == tab else None
        source, updates = self.contents[tab](details, query, known)
        is_serving = not self.read_only and bool(self.studio.chat.chat_memory().served)
        updates[self.shown] = Shown(run_id, tab, run.version, active, is_serving, source)
        updates[self.head] = view.heading(details, tab, self.read_only)
        if not before.run:
            updates[self.address] = gr.update(value=dict(query), title=f"{run.name} · run {run_id}")
        if before.active != active:
            updates[self.timer] = gr.Timer(ACTIVE_SECONDS if active else ENDED_SECONDS)
        return updates

    def _message(self, content: Element) -> Updates:
        """Return the updates to a page without a run."""
        return {self.head: content, self.shown: Shown(), self.timer: gr.Timer(active=False)}

    def _show_overview(self, details: RunDetails, query: Mapping[str, str], known: object) -> tuple[object, Updates]:
        """Return the number of steps and the updates; those of the charts only for another number of steps."""
        run = details.run
        active = run.status in ACTIVE
        detectors = self.studio.detectors.detector_cards(run.id) if details.cards["leaks"] else []
        cards = metric_cards(details.cards, run.kind, active)
        updates: Updates = {
            self.newest: view.newest_dialogues(self._newest(run.id)) if active and details.steps else None,
            self.cards: el("div.rl-section", cards, view.charts_note(details, active)),
            self.sides: view.overview_sides(details, detectors, time.time(), self.read_only, self._served_models()),
            self.tags_notes: view.tags_and_notes(details, self.read_only),
        }
        if known != details.steps:
            updates[self.charts] = self.endpoints.run_charts(run.id, **chart_options(query)).charts
            updates[self.further] = self._further_charts(run.id, query)
        return details.steps, updates

    def _newest(self, run_id: int) -> Sequence[DialogueSummary]:
        """Return dialogues of the newest step."""
        filter = DialogueFilter(run=run_id, phase="train")
        return self.studio.dialogues.list_dialogues(filter, newest_first=True, limit=MAX_NEWEST).rows

    def _further_charts(self, run_id: int, query: Mapping[str, str]) -> list[JsonObject]:
        """Return the charts of the chosen series."""
        names = [str(name) for name in self.fields.values(dict(query))["more"][:MAX_SERIES]]
        return self.endpoints.run_charts(run_id, names=names, **chart_options(query)).charts if names else []

    def _show_evaluation(self, details: RunDetails, query: Mapping[str, str], known: object) -> tuple[object, Updates]:
        """Return the state of the evaluation and the updates."""
        state, run = details.evaluation, details.run
        source = state or "none"
        if known == source:
            return source, {}
        whole = self.endpoints.run_evaluation(run.id) if state else None
        parts = {item["title"]: item for item in whole["parts"]} if whole else {}
        chosen = query.get("part", WHOLE)
        selected = parts.get(chosen, whole)
        part = gr.update(choices=[WHOLE, *parts], value=chosen if chosen in parts else WHOLE, visible=bool(parts))
        return source, {
            self.evaluation_title: view.evaluation_title(whole, run.status in ACTIVE, selected),
            self.part: part,
            self.accuracy: selected["charts"] if selected else [],
            self.tables: view.evaluation_tables(selected, run.id),
        }

    def _show_checkpoints(self, details: RunDetails, query: Mapping[str, str], known: object) -> tuple[object, Updates]:
        table = view.checkpoint_table(details, self.read_only, server=self._served_models())
        return None, {self.checkpoints: el("div.rl-section", table, view.child_table(details.children))}

    def _served_models(self) -> Element | None:
        chat = self.studio.chat
        return None if self.read_only else view.served_models(chat.chat_memory(), chat.api_key)

    def _show_config(self, details: RunDetails, query: Mapping[str, str], known: object) -> tuple[object, Updates]:
        """Return the updates on the first opening: configuration and environment do not change."""
        run_id = details.run.id
        if known == run_id:
            return known, {}
        table = view.environment_table(self.endpoints.run_environment(run_id))
        return run_id, {
            self.config: gr.update(visible=True),
            self.yaml: self.endpoints.run_config(run_id),
            self.environment: el("section.rl-card.rl-stack", el("h2", "Environment"), table),
        }

    def _show_log(self, details: RunDetails, query: Mapping[str, str], known: object) -> tuple[object, Updates]:
        """Return the length of the log and the updates."""
        found = self.endpoints.run_log(details.run.id)
        level, search = query.get("level", ""), query.get("search", "")
        source = (found.size, len(found.messages), level, search)
        return source, {} if source == known else {self.output: view.log_view(found, level, search)}

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def _open(self, query: dict[str, str]) -> Updates:
        options, names = chart_options(query), [str(name) for name in self.fields.values(query)["more"]]
        return {
            self.x: options["x"],
            self.smoothing: options["smoothing"],
            self.more: gr.update(choices=names, value=names),
            **self._show(query, Shown()),
        }

    @handler
    def _refresh(self, query: dict[str, str], before: Shown) -> Updates:
        """Show the changes of the run; the output of a worker can grow without a new version."""
        if not before.run:
            return {self.timer: gr.skip()}
        try:
            version = self.endpoints.run_version(before.run)
        except UnknownRunError:
            return self._show(query, before)
        follows_log = before.tab == "Log" and before.active
        is_changed = follows_log or before.is_serving or version != before.version
        return self._show(query, before) if is_changed else {self.timer: gr.skip()}

    @handler
    def _offer_series(self, shown: Shown) -> JsonObject:
        return gr.update(choices=series_choices(self.endpoints.run_metrics(shown.run).metrics))

    @handler
    def _redraw(self, query: dict[str, str], now: Shown, *values: object) -> Updates:
        query = self._merged_query(query, values)
        charts = self.endpoints.run_charts(now.run, **chart_options(query)).charts
        updates: Updates = {self.address: query, self.charts: charts}
        return updates | ({self.further: self._further_charts(now.run, query)} if query.get("more") else {})

    @handler
    def _choose_series(self, query: dict[str, str], now: Shown, *values: object) -> Updates:
        query = self._merged_query(query, values)
        return {self.address: query, self.further: self._further_charts(now.run, query)}

    @handler
    def _close_series(self, event: gr.EventData, query: dict[str, str], now: Shown, *values: object) -> Updates:
        given = self.fields.named(values)
        given["more"] = [name for name in given["more"] if name != event._data["key"]]
        query = self._merged_query(query, list(given.values()))
        return {self.address: query, self.more: given["more"], self.further: self._further_charts(now.run, query)}

    @handler
    def _choose_part(self, query: dict[str, str], now: Shown, *values: object) -> Updates:
        query = self._merged_query(query, values)
        return {self.address: query, **self._show_evaluation(self.endpoints.get_run(now.run), query, None)[1]}

    def _merged_query(self, query: dict[str, str], values: Sequence[object]) -> dict[str, str]:
        """Return the query with the values of the fields."""
        others = {name: value for name, value in query.items() if name not in self.fields.fields}
        return Replacement({**others, **self.fields.query(values)})

    @handler
    def _open_step(self, event: gr.EventData, now: Shown) -> str:
        stage, step = event._data["point"][:2]
        return page_url("dialogues", run=now.run, phase="train", stage=stage, step=step)

    @handler
    def _open_condition(self, event: gr.EventData, now: Shown) -> str:
        checkpoint, condition = event._data["point"][:2]
        return dialogues_link(now.run)(checkpoint, condition)

    @handler
    def _act(self, event: gr.EventData, query: dict[str, str], before: Shown) -> Updates:
        data, run_id, endpoints = event._data, before.run, self.endpoints
        match data["action"]:
            case "tab":
                query = {**query, "tab": data["tab"]}
                return {self.address: query, **self._show(query, before)}
            case "delete":
                result = self.studio.runs.delete_runs([run_id])
                if result.kept:
                    raise gr.Error(result.kept[0].reason, print_exception=False)
                return {self.address: "/", self.timer: gr.Timer(active=False)}
            case "open":
                return {self.address: page_url("dialogues", run=run_id, dialogue=data["event"])}
            case "serve":
                self.studio.chat.serve_checkpoint(run_id, data["checkpoint"])
            case "stop_serving":
                self.studio.chat.unload_chat_model()
            case "export_model":
                self.studio.exports.export_model(run_id, data["checkpoint"], data["format"])
            case "untag":
                tags = endpoints.get_run(run_id).tags
                endpoints.tag_run(run_id, [item for item in tags if item != data["tag"]])
            case "delete_note":
                endpoints.delete_note(run_id, int(data["note"]))
            case name:
                {"stop": endpoints.stop_run, "abort": endpoints.abort_run, "resume": endpoints.resume_run}[name](run_id)
        return self._show(query, before)

    @handler
    def _filter_log(self, event: gr.EventData, query: dict[str, str], before: Shown) -> Updates:
        query = {**query, event._data["change"]: str(event._data["value"]).strip()}
        return {self.address: Replacement(query), **self._show(query, before)}

    @handler
    def _add_tag(self, shown: Shown, written: str) -> Updates:
        if not written.strip():
            return {self.tag: ""}
        self.endpoints.tag_run(shown.run, [*self.endpoints.get_run(shown.run).tags, written])
        return {self.tags_notes: view.tags_and_notes(self.endpoints.get_run(shown.run), self.read_only), self.tag: ""}

    @handler
    def _add_note(self, shown: Shown, written: str) -> Updates:
        if not written.strip():
            return {self.note: written}
        self.endpoints.add_note(shown.run, written)
        return {self.tags_notes: view.tags_and_notes(self.endpoints.get_run(shown.run), self.read_only), self.note: ""}


def run_number(query: Mapping[str, str]) -> int | None:
    """Return the run of the address; None if it is missing or no positive number."""
    return whole_number(query.get("run", ""), None) or None


def current_tab(query: Mapping[str, str], kind: str) -> RunTab:
    """Return the tab of the address, or the one that suits the kind of run: a rescore has little but its log."""
    named = next((tab for tab in TABS if tab.lower() == query.get("tab") and tab != "Dialogues"), None)
    if named is not None:
        return named
    return "Overview" if kind == "train" else "Evaluation" if kind in ("eval", "levels") else "Log"


class ChartOptions(TypedDict):
    """Arguments of `run_charts`."""

    x: XKind
    smoothing: float


def chart_options(query: Mapping[str, str]) -> ChartOptions:
    """Return x axis and smoothing of the address; invalid values give the defaults."""
    x = query.get("x")
    try:
        smoothing = float(query.get("smooth", SMOOTHING))
    except ValueError:
        smoothing = SMOOTHING
    return {
        "x": cast(XKind, x) if x in get_args(XKind) else "step",
        "smoothing": smoothing if 0 <= smoothing <= MAX_SMOOTHING else SMOOTHING,
    }


def series_choices(metrics: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return a choice per series; a search finds its name, title and unit."""
    choices = []
    for metric in metrics:
        title = "" if metric["title"] == metric["name"] else metric["title"]
        words = [metric["name"], title, metric["unit"]]
        choices.append((" · ".join(word for word in words if word), metric["name"]))
    return choices
