"""Page Dialogues: a list with filters, one dialogue turn by turn, and its group side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import gradio as gr

from app.components.browser.address import Replacement
from app.components.browser.replay_keys import ReplayKeys
from app.components.browser.selection import SelectedSpan, Selection
from app.components.browser.stored import Stored
from app.components.charts import Charts
from app.components.elements.dialogue_list import COLUMNS, dialogue_list, dialogue_table, row_key
from app.components.nodes import Element, el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._events import Updates, handler, in_order, once_opened
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.dialogues.browse import DialogueBrowser, PageState, merged_ranges, parse_filter
from app.pages.dialogues.view import (
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
from app.pages.run.tabs import run_tabs
from jobs.db.errors import NotFoundError
from jobs.db.models import ACTIVE
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

PATH = "dialogues"
TITLE = "Dialogues"
ORDER = 40
IN_NAVIGATION = False
ANY = ("any", "")
ORDERS = [("chronological", ""), ("reward ↓", "-reward"), ("reward ↑", "reward")]
ORDERS += [
    (f"{title} {sign}", order + name)
    for name, title in COLUMNS.items()
    if name != "reward"
    for sign, order in (("↓", "-"), ("↑", ""))
]
HINT_VALUE_ORDERS = [("hint value ↓", "-hint_value"), ("hint value ↑", "hint_value")]
NOTE_PLACES = [("dialogue", ""), ("current turn", "turn")]
MAIN_FILTERS = ("run", "phase", "stage", "step", "checkpoint", "condition", "solved", "leak", "search")
MORE_FILTERS = ("environment", "level", "used_hints", "labeled", "reward", "task", "group", "demonstrations", "error")
"""Filters that are folded."""
CHOICES = {
    "leak": [ANY, ("⚑ leaked", "2"), ("no leak", "1"), ("unchecked", "0")],
    "labeled": [ANY, ("labeled", "true"), ("not labeled", "false")],
    "demonstrations": [("excluded", ""), ("included", "true")],
    "used_hints": [ANY, ("used hints", "true")],
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
READ_BROWSER = (
    "(_, query) => [_, query, localStorage.getItem('rl2f.preferences'), matchMedia('(max-width: 860px)').matches]"
)
READ_SEEN = """(...inputs) => {
  const turn = document.querySelector(".dv-turn[data-current]"), note = turn?.querySelector(".dv-note")?.value ?? "";
  const seen = turn && [turn.closest(".dv").dataset.key, Number(turn.dataset.turn), note];
  return [...inputs.slice(0, -1), JSON.stringify(seen)];
}"""
"""The `js` of an event that replaces its last input by key of the dialogue, turn and note on a label that are shown."""
ORDERED = in_order(PATH)


def build(studio: Studio) -> None:
    """Build the filters, the list on the left and the dialogue on the right."""
    _Page(studio).connect()


class _Page:
    """Components and events of the page; handlers return component → update."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.endpoints = studio, studio.dialogues
        self.read_only = studio.context.read_only
        self.browser = DialogueBrowser(studio)
        self.address = page_frame(studio, TITLE, shortcuts())
        self.selection = Selection()
        self.preferences = Stored("rl2f.preferences")
        ReplayKeys()
        self.narrow, self.seen = gr.Checkbox(visible=False), gr.Textbox(visible=False)
        self.state = gr.State()
        self.version = gr.State(-1)
        self.header = View(elem_id="dl-header")
        with gr.Accordion("Filters", elem_id="dl-filters") as self.filters_box, gr.Row():
            self.filters = {name: _field(name) for name in MAIN_FILTERS}
            with (
                gr.Accordion("More filters", open=False, elem_id="dl-more", elem_classes="rl-panel") as self.more,
                gr.Row(),
            ):
                self.filters |= {name: _field(name) for name in MORE_FILTERS}
            self.clear = gr.Button("Clear", size="sm", min_width=60, elem_id="dl-clear")
        self.notice = View(elem_id="dl-notice")
        with gr.Row(elem_id="dl-main", equal_height=True):
            with gr.Column(scale=1, min_width=280, elem_id="dl-side"):
                self._build_list()
            with gr.Column(scale=3, min_width=300, elem_id="dl-pane"):
                self._build_pane()
        self.keys = View(foot(), elem_id="dl-keys")
        self.timer = gr.Timer(REFRESH_SECONDS)
        self.filters["order"] = self.order
        self.fields = QueryFields({name: (item, "") for name, item in self.filters.items()})

    def _build_list(self) -> None:
        with gr.Row(elem_id="dl-top"):
            self.pages = View(elem_id="dl-pages")
            self.order = gr.Dropdown(ORDERS, label="order", show_label=False, container=False, elem_id="dl-order")
        self.listing = View(current="", elem_id="dl-list")
        with gr.Accordion("Rewards of this step", open=False, elem_id="dl-rewards") as self.rewards:
            self.histogram = Charts(elem_id="dl-histogram")

    def _build_pane(self) -> None:
        self.back = View(back_bar(), elem_id="dl-back")
        self.replay = View(elem_id="dl-replay")
        hint = "A note on this dialogue"
        with gr.Row(elem_id="dl-note", visible=not self.read_only):
            self.note = gr.Textbox(
                label="note", show_label=False, placeholder=hint, lines=2, max_length=20_000, scale=5
            )
            self.place_of_note = gr.Dropdown(NOTE_PLACES, value="", label="note on", show_label=False, min_width=110)
            self.add = gr.Button("Add note", size="sm", min_width=90, elem_id="dl-note-add")

    def connect(self) -> None:
        """Connect the events."""
        state, fields, filters = self.state, self.fields.components, self.filters
        shown = [self.address, self.pages, self.listing, self.replay, self.histogram, self.notice]
        everything = [state, *shown, *fields, self.header, self.version, self.more]
        browser = [state, self.address, self.preferences, self.narrow]
        opened = [*everything, self.filters_box]
        self.address.input(self.open_page, browser, opened, js=READ_BROWSER, **ORDERED)
        # The choice of an option triggers `blur` once, but `input` twice.
        texts = [item for item in filters.values() if isinstance(item, gr.Textbox)]
        left, submitted = [item.blur for item in filters.values()], [item.submit for item in texts]
        edits = [*left, *submitted, filters["search"].change]
        gr.on(edits, self.edit, [state, *fields], everything, **in_order(PATH, "always_last"))
        self.clear.click(self.clear_filters, state, everything, **ORDERED)
        moves = [self.pages.click, self.listing.click, self.back.click]
        clicks = [*moves, self.replay.click, self.replay.input, self.keys.click]
        acted = [state, *shown, self.selection, self.preferences, self.order]
        gr.on(clicks, self.act, [state, self.selection, self.seen], acted, js=READ_SEEN, **in_order(PATH, "multiple"))
        noted = [state, self.note, self.place_of_note, self.seen]
        self.add.click(self.add_note, noted, [state, *shown, self.note], js=READ_SEEN, **ORDERED)
        self.rewards.expand(self.show_rewards, state, [state, self.histogram], **ORDERED)
        self.rewards.collapse(self.hide_rewards, state, state, **ORDERED)
        self.histogram.select(self.open_bin, state, everything, **ORDERED)
        refreshed = [state, self.listing, self.pages, self.version, self.replay]
        self.timer.tick(self.refresh, [state, self.version], refreshed, **ORDERED)

    # -- drawing ---------------------------------------------------------------------------------------------------
    def _show(self, was: PageState, place: PageState, *, push: bool = False, everything: bool = False) -> Updates:
        """Return what differs from the state before."""
        out: Updates = {self.replay: content(place), self.notice: message(place.message)}
        out[self.address] = place.address() if push else Replacement(place.address())
        selected = row_key(*place.current) if place.current else ""
        if everything or place.page is not was.page or place.is_table != was.is_table:
            out |= {self.listing: gr.update(value=self._rows(place), current=selected), self.pages: pager(place)}
        else:
            out |= {self.listing: gr.update(current=selected)} if place.current != was.current else {}
            out |= {self.pages: pager(place)} if place.in_list != was.in_list else {}
        if place.rewards is not None and step_of(place) != step_of(was):
            place = replace(place, rewards=self._rewards_chart(place))
        # an update without a value would lose the properties of a closed chart
        out[self.histogram] = place.rewards or []
        return {**out, self.state: replace(place, message="")}

    def _rows(self, place: PageState) -> Element:
        listed = place.page.rows if place.page else []
        if place.is_table and listed:
            return dialogue_table(listed, place.query.get("order", ""))
        if place.narrow and not listed:
            return content(place)  # a narrow window that shows the list hides the dialogue
        return dialogue_list(listed, with_run="run" not in place.query)

    def _rewards_chart(self, place: PageState) -> list[JsonObject]:
        found = step_of(place)
        return [histogram_chart(self.studio.run.run_histogram(*found), *found[1:])] if found else []

    def _offer(self, values: Mapping[str, str]) -> Updates:
        """Return choices and value of every field, and the heading of the run."""
        chosen = whole_number(values["run"], None)
        heading = el("h1.rl-title", "Dialogues")
        try:
            facets = self.endpoints.dialogue_facets(chosen)
            if chosen is not None:
                heading = run_tabs(self.studio.run.get_run(chosen).run, "Dialogues")
        except NotFoundError:
            facets = self.endpoints.dialogue_facets()
        offers: dict[str, JsonObject] = {name: {"value": values[name]} for name in self.filters}
        for name, offered in choices(facets).items():
            known = [ANY, *offered]
            if values[name] and values[name] not in [value for _, value in known]:
                known.append((values[name], values[name]))
            visible = name in ("run", "solved") or len(known) > 2 or bool(values[name])
            offers[name] |= {"choices": known, "visible": visible}
        first, last = facets.steps
        offers["step"]["placeholder"] = f"{first}–{last}"
        is_measured = facets.measured or "hint_value" in values["order"]
        offers["order"]["choices"] = [*ORDERS, *(HINT_VALUE_ORDERS if is_measured else [])]
        fields: Updates = {self.filters[name]: gr.update(**offer) for name, offer in offers.items()}
        label = gr.update(label=more_label(values))
        return {**fields, self.header: heading, self.version: facets.version, self.more: label}

    # -- opening ---------------------------------------------------------------------------------------------------
    @handler
    def open_page(self, before: PageState | None, query: dict[str, str], kept: JsonObject, is_narrow: bool) -> Updates:
        """Show the list and the dialogue of the address."""
        query, browser = merged_ranges(query), self.browser
        failed, chosen = None, {}
        if not set(query) - {"run"}:
            try:
                chosen = self._default_values(query.get("run", ""))
            except RL2FError as error:
                failed = error
        query |= chosen
        values = self.fields.values(query)
        place = PageState(
            read_only=self.read_only,
            narrow=is_narrow,
            in_list="dialogue" not in query,
            is_table=query.get("view") == "table" and "dialogue" not in query,
            annotator=str(kept.get("annotator", "")),
            token_turn=0 if query.get("tokens") == "1" else None,
        )
        try:
            place = replace(self._filter(values, place, query), is_default=bool(chosen))
            if "dialogue" in query:
                owner, turn = query.get("of") or query.get("run", ""), query.get("turn", "0")
                run_id = whole_number(owner, 0)
                place = browser.load_around(place, run_id, query["dialogue"])
                turn_index = whole_number(turn, 0)
                place = browser.open(place, run_id, query["dialogue"], turn_index, group=query.get("view") == "group")
            else:
                place = browser.load(place)
        except RL2FError as error:
            failed = error
        if failed:
            place = replace(place, error=failed)
        shown = self._show(before or place, place, everything=True)
        return {**shown, **self._offer(values), self.filters_box: gr.update(open=not is_narrow)}

    def _filter(self, values: Mapping[str, str], place: PageState, query: Mapping[str, str]) -> PageState:
        """Return the place with a new filter."""
        parameters = self.fields.query(list(values.values()))
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

    def _default_values(self, run_id: str) -> dict[str, str]:
        number = whole_number(run_id, None)
        found = {} if number is None else self.endpoints.default_dialogue_filter(number).model_dump()
        texts = {name: "true" if value is True else str(value) for name, value in found.items() if value}
        return {name: text for name, text in texts.items() if name in self.fields.fields}

    @once_opened
    def refresh(self, place: PageState, seen: int) -> Updates:
        """Show the list again if a run has changed."""
        run_id = whole_number(place.query.get("run", ""), None)
        now = self.studio.runs.runs_version() if run_id is None else self.studio.run.run_version(run_id)
        if any(rerun.status in ACTIVE for rerun in place.reruns):
            before, place = place, self.browser.read_reruns(place)
            shown: Updates = {self.replay: content(place)} if place.reruns != before.reruns else {}
            return {self.state: place, self.version: seen, **shown}
        if now == seen or place.page is None:
            return {self.version: now}
        place = self.browser.refresh(place)
        return {self.state: place, self.listing: self._rows(place), self.pages: pager(place), self.version: now}

    # -- filters ---------------------------------------------------------------------------------------------------
    @once_opened
    def edit(self, place: PageState, *given: str | None) -> Updates:
        """Filter by the fields."""
        values = {name: (value or "").strip() for name, value in zip(self.filters, given, strict=True)}
        query = place.query
        if self.fields.query(list(values.values())) == {k: v for k, v in query.items() if k != "all"}:
            return gr.skip()
        changed = next((name for name in NARROWER if values[name] != query.get(name, "")), None)
        if changed:
            values |= dict.fromkeys(NARROWER[changed], "")
        chosen = self._default_values(values["run"]) if changed == "run" else {}
        return self._filtered(place, values | chosen, offered=changed is not None, is_default=bool(chosen))

    def _filtered(
        self, was: PageState, values: Mapping[str, str], *, offered: bool = True, is_default: bool = False
    ) -> Updates:
        bare = not set(self.fields.query(list(values.values()))) - {"run", "order"}
        try:
            place = self._filter(values, was, {"all": "1"} if bare else {})
            place = self.browser.load(replace(place, is_default=is_default))
        except RL2FError as error:
            return {self.notice: el("p.rl-wrong", str(error), role="alert")}
        label: Updates = {self.more: gr.update(label=more_label(values))}
        return {**self._show(was, place), **label, **(self._offer(values) if offered else {})}

    @once_opened
    def clear_filters(self, place: PageState) -> Updates:
        """Show all dialogues of the run."""
        return self._filtered(place, self.fields.values({"run": place.query.get("run", "")}))

    @once_opened
    def open_bin(self, place: PageState, event: gr.EventData) -> Updates:
        """List the dialogues of a bar of the histogram."""
        point, current = event._data["point"], place.current
        low, high = repr(point["low"]), repr(point["high"])
        chosen = {
            "run": str(current[0]) if current else place.query.get("run", ""),
            "phase": "train",
            "stage": point["stage"],
            "step": str(point["step"]),
            "reward": low if low == high else f"{low}..{high}",
        }
        return self._filtered(place, self.fields.values(chosen))

    # -- the dialogue ----------------------------------------------------------------------------------------------
    @once_opened
    def act(self, was: PageState, span: SelectedSpan | None, seen: str, event: gr.EventData) -> Updates:
        """Do what a button or a field of the list or the dialogue says."""
        data, (place, note) = event._data, see(was, seen)
        if data.get("change") == "annotator":
            annotator = str(data["value"]).strip()
            shown = self._show(was, replace(place, annotator=annotator))
            return {**shown, self.preferences: {"annotator": annotator}}
        name = data["action"]
        if name == "label" and note is None:
            return {self.notice: message("Nothing was labeled: another dialogue is open now.")}
        try:
            now = self.browser.act(place, data, span, note or "")
        except RL2FError as error:
            now = replace(place, message=str(error))
        out: Updates = {self.selection: None} if name == "label" and now.dialogue is not place.dialogue else {}
        out |= {self.order: data["order"]} if name == "order" else {}
        return out | self._show(
            was, now, push=(place.narrow and name in ("open", "list")) or place.is_table != now.is_table
        )

    @once_opened
    def add_note(self, was: PageState, text: str, where: str, seen: str) -> Updates:
        """Add a note to the dialogue or its turn."""
        place, _ = see(was, seen)
        place = self.browser.add_note(place, text, place.turn if where else None)
        return {**self._show(was, place), self.note: ""}

    @once_opened
    def show_rewards(self, place: PageState) -> Updates:
        """Show the rewards of the step."""
        charts = self._rewards_chart(place)
        return {self.state: replace(place, rewards=charts), self.histogram: charts}

    @once_opened
    def hide_rewards(self, place: PageState) -> PageState:
        """Draw the rewards no longer."""
        return replace(place, rewards=None)


def see(place: PageState, seen: str) -> tuple[PageState, str | None]:
    """Return the state at the turn that the browser shows, and the note on its label; None in another dialogue."""
    key, turn, note = json.loads(seen or "null") or ("", 0, "")
    is_current = place.current is not None and key == row_key(*place.current)
    return (replace(place, turn=int(turn)), str(note)) if is_current else (place, None)


def more_label(values: Mapping[str, str]) -> str:
    """Return the title of the folded filters with how many of them are set."""
    count = sum(bool(values[name]) for name in MORE_FILTERS)
    return f"More filters ({count})" if count else "More filters"


def _field(name: str) -> gr.Dropdown | gr.Textbox:
    """Return the field of a filter."""
    if name == "search":
        return gr.Textbox(label=name, placeholder="Search text  /", max_lines=1, elem_classes="search", min_width=160)
    if name in TYPED:
        return gr.Textbox(label=name, placeholder=TYPED[name], max_lines=1, min_width=90)
    label = {"labeled": "labels", "used_hints": "hints"}.get(name, name)
    return gr.Dropdown(CHOICES.get(name, [ANY]), value="", label=label, min_width=110)
