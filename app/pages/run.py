"""Page Run: one run while it is running and after its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

import gradio as gr

from app.common.urls import page_url
from app.components.address import Replacement
from app.components.charts import Charts
from app.components.evaluation_view import dialogues_link
from app.components.keys import Key
from app.components.metric_strip import MetricStrip
from app.components.nodes import el
from app.components.view import View
from app.endpoints.endpoint import ArgumentError
from app.pages import _run_view as view
from app.pages._events import FAST, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages._run_tabs import TABS, RunTab
from jobs.db.errors import UnknownRunError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from app.endpoints.run import RunDetails
    from app.endpoints.studio import Studio
    from app.plots.series import XKind

PATH = "run"
TITLE = "Run"
ORDER = 30
IN_NAVIGATION = False
X_AXES = [("steps", "step"), ("sampled tokens", "tokens"), ("time", "time")]
SMOOTHING = 0.6
MAX_SMOOTHING = 0.95
MAX_SERIES = 24
"""Charts in addition to those of the overview."""
WHOLE = "all"
"""Choice of all environments of a mixture."""
ACTIVE_SECONDS, ENDED_SECONDS = 2.0, 10.0
"""Refresh intervals of a run that is running, and of one that ended."""
KEYS = [
    Key("d", "dialogues of this run", ".rl-tabs a[href^='/dialogues']"),
    Key("Ctrl+Enter", "save the note", "#run-save-note", typing=True),
]


class Shown(TypedDict, total=False):
    """What a browser tab shows."""

    run: int
    tab: RunTab
    version: int
    steps: int
    evaluation: Any
    log: tuple[int, int]
    """Size of the log, and number of messages."""
    active: bool
    series: int
    """Number of series that can be chosen."""


def build(studio: Studio) -> None:
    """Build the heading, and one column for each tab."""
    endpoints, read_only = studio.run, studio.context.read_only

    address = page_frame(studio, TITLE, KEYS)
    shown = gr.State(cast(Shown, {}))
    timer = gr.Timer(ACTIVE_SECONDS)
    head = View(elem_id="run-head")
    with gr.Column(visible=True, elem_id="run-overview") as overview:
        strip = MetricStrip(elem_id="run-cards")
        with gr.Column(elem_id="run-curves") as curves:
            with gr.Row(elem_classes="run-tools", equal_height=True):
                x = gr.Dropdown(X_AXES, value="step", label="Along x", container=False, min_width=150, elem_id="run-x")
                smoothing = gr.Slider(
                    0,
                    MAX_SMOOTHING,
                    SMOOTHING,
                    step=0.05,
                    label="Smoothing",
                    buttons=[],
                    min_width=200,
                    elem_id="run-smoothing",
                )
                more = gr.Dropdown(
                    [],
                    multiselect=True,
                    max_choices=MAX_SERIES,
                    label="Search more series",
                    container=False,
                    min_width=280,
                    elem_id="run-series",
                )
            note = View(elem_id="run-note")
            charts = Charts(elem_id="run-charts")
            further = Charts(closable=True, elem_id="run-further")
        sides = View(elem_id="run-sides")
        with gr.Column(elem_id="run-people", elem_classes="run-people"):
            people = View(elem_id="run-tags")
            tag = gr.Textbox(label="Add a tag", placeholder="add a tag", show_label=False, container=False,
                             max_length=60, interactive=not read_only, elem_id="run-tag")  # fmt: skip
            text = gr.Textbox(label="A note on this run", placeholder="A note on this run", show_label=False,
                              container=False, lines=2, interactive=not read_only, elem_id="run-note-text")  # fmt: skip
            save = gr.Button("Save note", size="sm", interactive=not read_only, elem_id="run-save-note")
    with gr.Column(visible=False, elem_id="run-evaluation") as evaluation:
        evaluation_title = View(elem_id="run-evaluation-title")
        part = gr.Radio([WHOLE], value=WHOLE, label="Environment", visible=False, elem_id="run-part")
        accuracy = Charts(elem_id="run-accuracy")
        tables = View(elem_id="run-tables")
    with gr.Column(visible=False, elem_id="run-checkpoints") as checkpoints:
        saved = View(elem_id="run-saved")
    with gr.Column(visible=False, elem_id="run-config") as config:
        with gr.Row(equal_height=False):
            with gr.Column(scale=6, min_width=320):
                yaml = gr.Code(language="yaml", label="Config", interactive=False, wrap_lines=True, elem_id="run-yaml")
            with gr.Column(scale=4, min_width=280):
                environment = View(elem_id="run-environment")
    with gr.Column(visible=False, elem_id="run-log") as log:
        output = View(elem_id="run-output")

    columns = {"Overview": overview, "Evaluation": evaluation, "Checkpoints": checkpoints, "Config": config, "Log": log}
    fields = QueryFields(
        {"x": (x, "step"), "smooth": (smoothing, SMOOTHING), "more": (more, []), "part": (part, WHOLE)}
    )

    # -- contents: each function returns the components that change ------------------------------------------------
    def show(query: Mapping[str, str], before: Shown) -> dict[Any, Any]:
        """Return the updates from what the browser shows to the state of the run."""
        run_id = run_number(query)
        if run_id is None:
            asked = query.get("run")
            if asked:
                return message(view.not_found(f"“{asked}” is not the number of a run."))
            return message(view.run_choice(studio.runs.list_runs()["rows"]))
        try:
            details = endpoints.get_run(run_id)
        except (UnknownRunError, ArgumentError):
            was_shown = before.get("run") == run_id
            text = f"Run {run_id} was deleted." if was_shown else f"There is no run {run_id}."
            return message(view.not_found(text))
        run = details["run"]
        tab = current_tab(query, run["kind"])
        active = run["status"] in view.ACTIVE
        same_run = before.get("run") == run_id
        now: Shown = {**(before if same_run else {}), "run": run_id, "tab": tab, "version": run["version"]}  # type: ignore[typeddict-item]
        now["active"] = active
        updates: dict[Any, Any] = {head: view.heading(details, tab, read_only)}
        if not same_run or before.get("tab") != tab:
            updates |= {each: gr.update(visible=name == tab) for name, each in columns.items()}
        if not same_run:
            updates[address] = gr.update(value=dict(query), title=f"{run['name']} · run {run_id}")
        if before.get("active") != active:
            updates[timer] = gr.Timer(ACTIVE_SECONDS if active else ENDED_SECONDS)
        opened = not same_run or before.get("tab") != tab
        contents = {
            "Overview": show_overview, "Evaluation": show_evaluation, "Checkpoints": show_checkpoints,
            "Config": show_config, "Log": show_log,
        }  # fmt: skip
        updates |= contents[tab](details, query, now, opened)
        return {**updates, shown: now}

    def message(content: Any) -> dict[Any, Any]:
        """Return the updates to a page without a run."""
        hidden = {each: gr.update(visible=False) for each in columns.values()}
        return {head: content, **hidden, shown: {}, timer: gr.Timer(active=False)}

    def show_overview(details: RunDetails, query: Mapping[str, str], now: Shown, opened: bool) -> dict[Any, Any]:
        run = details["run"]
        summary = {"cards": details["cards"], "kind": run["kind"], "active": now["active"]}
        updates: dict[Any, Any] = {
            strip: summary,
            sides: view.overview_sides(details, time.time(), read_only),
            people: view.tags_and_notes(details, read_only),
        }
        if opened or now.get("steps") != details["steps"]:
            now["steps"] = details["steps"]
            updates |= draw(run["id"], query, now["active"], run["kind"])
        return updates

    def draw(run_id: int, query: Mapping[str, str], active: bool, kind: str) -> dict[Any, Any]:
        """Return the charts."""
        drawn = endpoints.run_charts(run_id, **chart_options(query))
        is_empty = not drawn["charts"]
        return {
            curves: gr.update(visible=not is_empty or kind == "train"),
            note: view.charts_note(len(drawn["charts"]), drawn["off_policy_stages"], active),
            charts: drawn["charts"],
            further: draw_further(run_id, query),
        }

    def draw_further(run_id: int, query: Mapping[str, str]) -> list[JsonObject]:
        names = fields.values(dict(query))["more"][:MAX_SERIES]
        names = [str(name) for name in names]
        return endpoints.run_charts(run_id, names=names, **chart_options(query))["charts"] if names else []

    def show_evaluation(details: RunDetails, query: Mapping[str, str], now: Shown, opened: bool) -> dict[Any, Any]:
        state = details["evaluation"]
        if not opened and now.get("evaluation") == state:
            return {}
        now["evaluation"] = state
        run_id = details["run"]["id"]
        whole = endpoints.run_evaluation(run_id) if state else None
        parts = {each["title"]: each for each in whole["parts"]} if whole else {}
        chosen = query.get("part", WHOLE)
        selected = parts.get(chosen, whole)
        return {
            evaluation_title: view.evaluation_title(whole, now["active"]),
            part: gr.update(choices=[WHOLE, *parts], value=chosen if chosen in parts else WHOLE, visible=bool(parts)),
            accuracy: selected["charts"] if selected else [],
            tables: view.evaluation_tables(selected, run_id),
        }

    def show_checkpoints(details: RunDetails, query: Mapping[str, str], now: Shown, opened: bool) -> dict[Any, Any]:
        table = view.checkpoint_table(details, read_only)
        return {saved: el("div.rl-section", table, view.child_table(details["children"]))}

    def show_config(details: RunDetails, query: Mapping[str, str], now: Shown, opened: bool) -> dict[Any, Any]:
        if not opened:
            return {}
        run_id = details["run"]["id"]
        return {
            yaml: endpoints.run_config(run_id),
            environment: el(
                "section.rl-card.rl-stack",
                el("h2", "Environment"),
                view.environment_table(endpoints.run_environment(run_id)),
            ),
        }

    def show_log(details: RunDetails, query: Mapping[str, str], now: Shown, opened: bool) -> dict[Any, Any]:
        found = endpoints.run_log(details["run"]["id"])
        state = (found["size"], len(found["messages"]))
        if not opened and now.get("log") == state:
            return {}
        now["log"] = state
        return {output: view.log_view(found)}

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def open_page(query: dict[str, str]) -> dict[Any, Any]:
        updates = show(query, {})
        values = fields.values(query)
        values["x"] = chart_options(query)["x"]
        values["smooth"] = chart_options(query)["smoothing"]
        names = [str(name) for name in values["more"]]
        return {x: values["x"], smoothing: values["smooth"], more: gr.update(choices=names, value=names), **updates}

    @handler
    def offer_series(query: dict[str, str], now: Shown) -> dict[Any, Any]:
        """Return the series that can be chosen."""
        run_id = now.get("run")
        if run_id is None:
            return {}
        offered = series_choices(endpoints.run_metrics(run_id)["metrics"])
        return {more: gr.update(choices=offered)}

    @handler
    def refresh(query: dict[str, str], before: Shown) -> dict[Any, Any]:
        run_id = before.get("run")
        if run_id is None:
            return {timer: gr.skip()}
        try:
            version = endpoints.run_version(run_id)
        except UnknownRunError:
            return show(query, before)
        follows_log = before.get("tab") == "Log" and before.get("active")
        if version == before.get("version") and not follows_log:
            return {timer: gr.skip()}
        return show(query, before)

    @handler
    def redraw(query: dict[str, str], now: Shown, *values: Any) -> dict[Any, Any]:
        query = merged_query(query, values)
        updates = {address: query, charts: endpoints.run_charts(now["run"], **chart_options(query))["charts"]}
        names = fields.values(query)["more"]
        return {**updates, further: draw_further(now["run"], query)} if names else updates

    @handler
    def choose_series(query: dict[str, str], now: Shown, *values: Any) -> dict[Any, Any]:
        query = merged_query(query, values)
        return {address: query, further: draw_further(now["run"], query)}

    @handler
    def close_series(event: gr.EventData, query: dict[str, str], now: Shown, *values: Any) -> dict[Any, Any]:
        given = list(values)
        position = fields.components.index(more)
        given[position] = [name for name in given[position] if name != event._data["key"]]
        query = merged_query(query, given)
        return {address: query, more: given[position], further: draw_further(now["run"], query)}

    @handler
    def choose_part(query: dict[str, str], now: Shown, *values: Any) -> dict[Any, Any]:
        query = merged_query(query, values)
        return {address: query, **show_evaluation(endpoints.get_run(now["run"]), query, now, True)}

    def merged_query(query: dict[str, str], values: Sequence[Any]) -> dict[str, str]:
        others = {name: value for name, value in query.items() if name not in fields.fields}
        return Replacement({**others, **fields.query(values)})

    @handler
    def open_step(event: gr.EventData, now: Shown) -> dict[Any, Any]:
        stage, step = event._data["point"][:2]
        return {address: page_url("dialogues", run=now["run"], phase="train", stage=stage, step=step)}

    @handler
    def open_condition(event: gr.EventData, now: Shown) -> dict[Any, Any]:
        checkpoint, condition = event._data["point"][:2]
        return {address: dialogues_link(now["run"])(checkpoint, condition)}

    @handler
    def act(event: gr.EventData, query: dict[str, str], before: Shown) -> dict[Any, Any]:
        data = event._data
        name, run_id = data["action"], before["run"]
        if name == "tab":
            query = {**query, "tab": data["tab"]}
            return {address: query, **show(query, before)}
        if name == "delete":
            result = studio.runs.delete_runs([run_id])
            if result["kept"]:
                raise gr.Error(result["kept"][0]["reason"], print_exception=False)
            return {address: "/", timer: gr.Timer(active=False)}
        if name == "evaluate":
            endpoints.evaluate_checkpoint(run_id, data["checkpoint"])
        elif name == "untag":
            tags = endpoints.get_run(run_id)["tags"]
            endpoints.tag_run(run_id, [each for each in tags if each != data["tag"]])
        elif name == "delete_note":
            endpoints.delete_note(run_id, int(data["note"]))
        else:
            {"stop": endpoints.stop_run, "abort": endpoints.abort_run, "resume": endpoints.resume_run}[name](run_id)
        return show(query, before)

    @handler
    def add_tag(query: dict[str, str], before: Shown, written: str) -> dict[Any, Any]:
        if not written.strip():
            return {tag: ""}
        endpoints.tag_run(before["run"], [*endpoints.get_run(before["run"])["tags"], written])
        return {**show(query, before), tag: ""}

    @handler
    def add_note(query: dict[str, str], before: Shown, written: str) -> dict[Any, Any]:
        if not written.strip():
            return {text: written}
        endpoints.add_note(before["run"], written)
        return {**show(query, before), text: ""}

    where = [address, shown]
    values = fields.components
    content = [
        address, shown, timer, head, *columns.values(), strip, curves, note, charts, further, sides, people,
        evaluation_title, part, accuracy, tables, saved, yaml, environment, output,
    ]  # fmt: skip
    opened = address.input(open_page, address, [*content, x, smoothing, more], **FAST)
    opened.then(offer_series, where, more, **FAST)
    timer.tick(refresh, where, content, **FAST)
    gr.on(
        [x.input, smoothing.input], redraw, [*where, *values], [address, charts, further],
        trigger_mode="always_last", **FAST,
    )  # fmt: skip
    more.input(choose_series, [*where, *values], [address, further], trigger_mode="always_last", **FAST)
    further.delete(close_series, [*where, *values], [address, more, further], **FAST)
    part.input(choose_part, [*where, *values], [address, evaluation_title, part, accuracy, tables], **FAST)
    gr.on([charts.select, further.select], open_step, shown, address, **FAST)
    accuracy.select(open_condition, shown, address, **FAST)
    gr.on([head.click, sides.click, saved.click, people.click], act, where, content, **FAST)
    tag.submit(add_tag, [*where, tag], [*content, tag], **FAST)
    save.click(add_note, [*where, text], [*content, text], **FAST)


def run_number(query: Mapping[str, str]) -> int | None:
    """Return the run of the address; None if it is missing or no positive number."""
    text = query.get("run", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


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
    x = query.get("x", "step")
    try:
        smoothing = float(query.get("smooth", SMOOTHING))
    except ValueError:
        smoothing = SMOOTHING
    is_valid = 0 <= smoothing <= MAX_SMOOTHING
    known = x if any(x == value for _, value in X_AXES) else "step"
    return {"x": cast("XKind", known), "smoothing": smoothing if is_valid else SMOOTHING}


def series_choices(metrics: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return a choice per series; a search finds its name, title and unit."""
    choices = []
    for metric in metrics:
        title = "" if metric["title"] == metric["name"] else metric["title"]
        words = [metric["name"], title, metric["unit"]]
        choices.append((" · ".join(word for word in words if word), metric["name"]))
    return choices
