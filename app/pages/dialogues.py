"""Page Dialogues: a list with filters, one dialogue turn by turn, and its group side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import gradio as gr

from app.components.address import Replacement
from app.components.charts import Charts
from app.components.dialogue_list import dialogue_list, row_key
from app.components.nodes import Element, el
from app.components.selection import SelectedSpan, Selection
from app.components.stored import Stored
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._dialogues_browse import DialogueBrowser, Held, PageState, merged_ranges, parse_filter
from app.pages._dialogues_view import (
    back_bar,
    choices,
    content,
    foot,
    histogram_chart,
    message,
    pager,
    shortcuts,
    step_of,
)
from app.pages._events import FAST, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages._run_tabs import run_tabs
from jobs.db.errors import NotFoundError
from rl2f_core.errors import RL2FError

PATH = "dialogues"
TITLE = "Dialogues"
ORDER = 40
IN_NAVIGATION = False
ANY = ("any", "")
ORDERS = [("chronological", ""), ("reward ↓", "-reward"), ("reward ↑", "reward")]
HINT_VALUE_ORDERS = [("hint value ↓", "-hint_value"), ("hint value ↑", "hint_value")]
NOTE_PLACES = [("dialogue", ""), ("current turn", "turn")]
MAIN_FILTERS = ("run", "phase", "stage", "step", "checkpoint", "condition", "solved", "leak", "search")
MORE_FILTERS = ("environment", "level", "labeled", "reward", "task", "group", "error")
"""Filters that are folded."""
CHOICES = {
    "leak": [ANY, ("⚑ leaked", "2"), ("no leak", "1"), ("unchecked", "0")],
    "labeled": [ANY, ("labeled", "true"), ("not labeled", "false")],
    "error": [ANY, ("ended with an error", "true")],
}
TYPED = {"step": "18–22", "reward": "0.5..1", "task": "its id", "group": "its id"}
"""Filters that are texts, with their placeholders."""
NARROWER = {
    "run": ("phase", "stage", "step", "checkpoint", "condition", "level", "group", "task"),
    "phase": ("stage", "step", "checkpoint", "condition"),
    "stage": ("phase", "checkpoint", "condition"),
}
"""Filter → filters that are reset when it changes, because they may exclude all of its dialogues."""
REFRESH_SECONDS = 5.0
ACTIONS: dict[str, Any] = {**FAST, "trigger_mode": "multiple"}
READ_BROWSER = (
    "(_, query) => [_, query, localStorage.getItem('rl2f.preferences'), matchMedia('(max-width: 860px)').matches]"
)


def build(studio: Studio) -> None:
    """Build the filters, the list on the left and the dialogue on the right."""
    read_only, endpoints = studio.context.read_only, studio.dialogues
    browser = DialogueBrowser(studio)

    address = page_frame(studio, TITLE, shortcuts())
    selection = Selection()
    preferences = Stored("rl2f.preferences")
    narrow = gr.Checkbox(visible=False)
    state = gr.State()
    version = gr.State(-1)
    header = View(elem_id="dl-header")
    with gr.Accordion("Filters", elem_id="dl-filters") as filters_box, gr.Row():
        filters = {name: _field(name) for name in MAIN_FILTERS}
        with gr.Accordion("More filters", open=False, elem_id="dl-more") as more, gr.Row():
            filters |= {name: _field(name) for name in MORE_FILTERS}
        clear = gr.Button("Clear", size="sm", min_width=60, elem_id="dl-clear")
    notice = View(elem_id="dl-notice")
    with gr.Row(elem_id="dl-main", equal_height=True):
        with gr.Column(scale=1, min_width=280, elem_id="dl-side"):
            with gr.Row(elem_id="dl-top"):
                pages = View(ordered=True, elem_id="dl-pages")
                order = gr.Dropdown(ORDERS, label="order", show_label=False, container=False, elem_id="dl-order")
            listing = View(ordered=True, current="", elem_id="dl-list")
            with gr.Accordion("Rewards of this step", open=False, elem_id="dl-rewards") as rewards:
                histogram = Charts(elem_id="dl-histogram")
        with gr.Column(scale=3, min_width=300, elem_id="dl-pane"):
            back = View(back_bar(), ordered=True, elem_id="dl-back")
            replay = View(ordered=True, elem_id="dl-replay")
            with gr.Row(elem_id="dl-note", visible=not read_only):
                note = gr.Textbox(
                    label="note",
                    show_label=False,
                    placeholder="A note on this dialogue",
                    lines=2,
                    max_length=20_000,
                    scale=5,
                )
                place_of_note = gr.Dropdown(NOTE_PLACES, value="", label="note on", show_label=False, min_width=110)
                add = gr.Button("Add note", size="sm", min_width=90, elem_id="dl-note-add")
    keys = View(foot(), ordered=True, answered=0, elem_id="dl-keys")
    timer = gr.Timer(REFRESH_SECONDS)
    filters["order"] = order
    fields = QueryFields({name: (each, "") for name, each in filters.items()})

    def show(held: Held, place: PageState, *, push: bool = False, everything: bool = False) -> dict[Any, Any]:
        """Make `place` the current one, and return what differs from the one before."""
        was = held.place
        out: dict[Any, Any] = {replay: content(place), notice: message(place.message, held.answered)}
        out[address] = place.address() if push else Replacement(place.address())
        selected = row_key(*place.current) if place.current else ""
        if everything or place.page is not was.page:
            out |= {listing: gr.update(value=rows(place), current=selected), pages: pager(place)}
        else:
            out |= {listing: gr.update(current=selected)} if place.current != was.current else {}
            out |= {pages: pager(place)} if place.in_list != was.in_list else {}
        if place.rewards is not None and step_of(place) != step_of(was):
            place = replace(place, rewards=rewards_chart(place))
        out[histogram] = place.rewards or []  # an update without a value would lose the properties of a closed chart
        held.place = replace(place, message="")
        return out

    def rows(place: PageState) -> Element:
        listed = place.page["rows"] if place.page else []
        if place.narrow and not listed:
            return content(place)  # a narrow window that shows the list hides the dialogue
        return dialogue_list(listed, with_run="run" not in place.query)

    def offer(values: dict[str, Any]) -> dict[Any, Any]:
        """Return choices and value of every field, and the heading of the run."""
        chosen = int(values["run"]) if values["run"].isdigit() else None
        heading = el("h1.rl-title", "Dialogues")
        try:
            facets = endpoints.dialogue_facets(chosen)
            if chosen is not None:
                heading = run_tabs(studio.run.get_run(chosen)["run"], "Dialogues")
        except NotFoundError:
            facets = endpoints.dialogue_facets()
        out: dict[Any, Any] = {component: gr.update(value=values[name]) for name, component in filters.items()}
        for name, offered in choices(facets).items():
            known = [ANY, *offered]
            if values[name] and values[name] not in [value for _, value in known]:
                known.append((values[name], values[name]))
            visible = name in ("run", "solved") or len(known) > 2 or bool(values[name])
            out[filters[name]] = gr.update(value=values[name], choices=known, visible=visible)
        first, last = facets["steps"]
        out[filters["step"]] |= {"placeholder": f"{first}–{last}"}
        is_measured = facets["measured"] or "hint_value" in values["order"]
        out[order] |= {"choices": [*ORDERS, *(HINT_VALUE_ORDERS if is_measured else [])]}
        return {**out, header: heading, version: facets["version"], more: gr.update(label=more_label(values))}

    def more_label(values: dict[str, Any]) -> str:
        count = sum(bool(values[name]) for name in MORE_FILTERS)
        return f"More filters ({count})" if count else "More filters"

    def start(values: dict[str, Any], place: PageState, query: dict[str, str]) -> PageState:
        """Return the place with a new filter."""
        parameters = fields.query(list(values.values()))
        shown_all = {"all": "1"} if query.get("all") else {}
        return replace(
            place,
            filter=parse_filter(parameters),
            query=parameters | shown_all,
            current=None,
            dialogue=None,
            group=None,
            is_default=False,
        )

    def default_values(run_id: str) -> dict[str, str]:
        found = endpoints.default_dialogue_filter(int(run_id)) if run_id.isdigit() else {}
        return {name: str(value) for name, value in found.items() if name in fields.fields and value}

    def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
        """Run the handlers of a session one after another; each starts from the place that the last one left."""

        @handler
        @wraps(function)
        def call(held: Held | None, *args: Any) -> Any:
            if held is None:
                return gr.skip()  # the page has not opened yet
            with held.lock:
                return function(held, *args)

        return call

    @handler
    def open_page(held: Held | None, query: dict[str, str], kept: dict[str, Any], is_narrow: bool) -> dict[Any, Any]:
        query = merged_ranges(query)
        held, failed, chosen = held or Held(), None, {}
        if not set(query) - {"run"}:
            try:
                chosen = default_values(query.get("run", ""))
            except RL2FError as error:
                failed = error
        query |= chosen
        values = fields.values(query)
        place = PageState(
            read_only=read_only,
            narrow=is_narrow,
            in_list="dialogue" not in query,
            annotator=str(kept.get("annotator", "")),
            reading=kept.get("font") == "reading",
            with_tokens=query.get("tokens") == "1",
        )
        try:
            place = replace(start(values, place, query), is_default=bool(chosen))
            if "dialogue" in query:
                owner, turn = query.get("of") or query.get("run", ""), query.get("turn", "0")
                run_id = int(owner) if owner.isdigit() else 0
                place = browser.load_around(place, run_id, query["dialogue"])
                turn_index = int(turn) if turn.isdigit() else 0
                place = browser.open(place, run_id, query["dialogue"], turn_index, group=query.get("view") == "group")
            else:
                place = browser.load(place)
        except RL2FError as error:
            failed = error
        if failed:
            place = replace(place, error=failed)
        with held.lock:
            shown = show(held, place, everything=True)
        return {**shown, **offer(values), state: held, filters_box: gr.update(open=not is_narrow)}

    @in_turn
    def edit(held: Held, *given: Any) -> Any:
        values = {name: (value or "").strip() for name, value in zip(filters, given, strict=True)}
        query = held.place.query
        if fields.query(list(values.values())) == {k: v for k, v in query.items() if k != "all"}:
            return gr.skip()
        changed = next((name for name in NARROWER if values[name] != query.get(name, "")), None)
        if changed:
            values |= dict.fromkeys(NARROWER[changed], "")
        chosen = default_values(values["run"]) if changed == "run" else {}
        return filtered(held, values | chosen, offered=changed is not None, is_default=bool(chosen))

    def filtered(
        held: Held, values: dict[str, Any], *, offered: bool = True, is_default: bool = False
    ) -> dict[Any, Any]:
        bare = not set(fields.query(list(values.values()))) - {"run", "order"}
        try:
            place = start(values, held.place, {"all": "1"} if bare else {})
            place = browser.load(replace(place, is_default=is_default))
        except RL2FError as error:
            return {notice: el("p.rl-wrong", str(error), role="alert")}
        label = {more: gr.update(label=more_label(values))}
        return {**show(held, place), **label, **(offer(values) if offered else {})}

    @in_turn
    def clear_filters(held: Held) -> dict[Any, Any]:
        return filtered(held, fields.values({"run": held.place.query.get("run", "")}))

    @in_turn
    def act(held: Held, span: SelectedSpan | None, event: gr.EventData) -> dict[Any, Any]:
        data, place = event._data, held.place
        held.answered += 1
        out: dict[Any, Any] = {keys: gr.update(answered=held.answered)}
        if data.get("change") == "note":
            held.place = replace(place, note=str(data["value"]))
            return out
        if data.get("change") == "annotator":
            annotator = str(data["value"]).strip()
            return out | show(held, replace(place, annotator=annotator)) | {preferences: {"annotator": annotator}}
        name = data["action"]
        try:
            now = browser.act(place, data, span)
        except RL2FError as error:
            now = replace(place, message=str(error))
        if name == "label" and now.dialogue is not place.dialogue:
            out[selection] = None
        if name == "font":
            out[preferences] = {"font": "reading" if now.reading else "mono"}
        return out | show(held, now, push=place.narrow and name in ("open", "list"))

    @in_turn
    def add_note(held: Held, text: str, where: str) -> dict[Any, Any]:
        place = browser.add_note(held.place, text, held.place.turn if where else None)
        return {**show(held, place), note: ""}

    @in_turn
    def refresh(held: Held, seen: int) -> dict[Any, Any]:
        run_id = held.place.query.get("run", "")
        now = studio.run.run_version(int(run_id)) if run_id.isdigit() else studio.runs.runs_version()
        if now == seen or held.place.page is None:
            return {version: now}
        held.place = browser.refresh(held.place)
        return {listing: rows(held.place), pages: pager(held.place), version: now}

    def rewards_chart(place: PageState) -> list[Any]:
        found = step_of(place)
        return [histogram_chart(studio.run.run_histogram(*found), *found[1:])] if found else []

    @in_turn
    def show_rewards(held: Held) -> list[Any]:
        charts = rewards_chart(held.place)
        held.place = replace(held.place, rewards=charts)
        return charts

    @in_turn
    def hide_rewards(held: Held) -> None:
        held.place = replace(held.place, rewards=None)

    @in_turn
    def open_bin(held: Held, event: gr.EventData) -> dict[Any, Any]:
        point, current = event._data["point"], held.place.current
        low, high = repr(point["low"]), repr(point["high"])
        chosen = {
            "run": str(current[0]) if current else held.place.query.get("run", ""),
            "phase": "train",
            "stage": point["stage"],
            "step": str(point["step"]),
            "reward": low if low == high else f"{low}..{high}",
        }
        return filtered(held, fields.values(chosen))

    shown = [address, pages, listing, replay, histogram, notice]
    everything = [*shown, *fields.components, header, version, more]
    opened = [*everything, state, filters_box]
    address.input(open_page, [state, address, preferences, narrow], opened, js=READ_BROWSER, **FAST)
    # The choice of an option triggers `blur` once, but `input` twice.
    texts = [each for each in filters.values() if isinstance(each, gr.Textbox)]
    left, submitted = [each.blur for each in filters.values()], [each.submit for each in texts]
    edits = [*left, *submitted, filters["search"].change]
    gr.on(edits, edit, [state, *fields.components], everything, **{**FAST, "trigger_mode": "always_last"})
    clear.click(clear_filters, state, everything, **FAST)
    clicks = [pages.click, listing.click, back.click, replay.click, replay.input, keys.click]
    gr.on(clicks, act, [state, selection], [*shown, keys, selection, preferences], **ACTIONS)
    add.click(add_note, [state, note, place_of_note], [*shown, note], **FAST)
    rewards.expand(show_rewards, state, histogram, **FAST)
    rewards.collapse(hide_rewards, state, **FAST)
    histogram.select(open_bin, state, everything, **FAST)
    timer.tick(refresh, [state, version], [listing, pages, version], **FAST)


def _field(name: str) -> gr.Dropdown | gr.Textbox:
    """Return the field of a filter."""
    if name == "search":
        return gr.Textbox(label=name, placeholder="Search text  /", max_lines=1, elem_classes="search", min_width=160)
    if name in TYPED:
        return gr.Textbox(label=name, placeholder=TYPED[name], max_lines=1, min_width=90)
    label = "labels" if name == "labeled" else name
    return gr.Dropdown(CHOICES.get(name, [ANY]), value="", label=label, min_width=110)
