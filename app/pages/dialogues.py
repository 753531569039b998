"""Page Dialogues: a list with filters, one dialogue turn by turn, and its group side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from app.components.address import Replacement
from app.components.charts import Charts
from app.components.dialogue_list import DialogueList, dialogue_list, select_row
from app.components.nodes import el
from app.components.replay import Replay
from app.components.selection import SelectedSpan, Selection
from app.components.stored import Stored
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._dialogues_browse import DialogueBrowser, Place, merged_ranges, parse_filter
from app.pages._dialogues_view import back_bar, choices, content, foot, histogram_chart, pager, shortcuts, step_of
from app.pages._events import FAST, QUEUED, handler
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
ORDERS = [("chronological", ""), ("hint value ↓", "-hint_value"), ("hint value ↑", "hint_value")]
NOTE_PLACES = [("dialogue", ""), ("current turn", "turn")]
LEAKS = [ANY, ("⚑ leaked", "2"), ("no leak", "1"), ("unchecked", "0")]
LABELED = [ANY, ("labeled", "true"), ("not labeled", "false")]
MORE = ("environment", "level", "stage", "reward", "task", "group", "error")
"""Filters that are folded."""
OF_RUN = ("phase", "stage", "step", "checkpoint", "condition", "level", "group", "task")
"""Filters that are reset when another run is chosen."""
REFRESH_SECONDS = 5.0
ORDERED: dict[str, Any] = {**QUEUED, "trigger_mode": "multiple", "concurrency_limit": 1}
"""Options of actions by keys, each of which starts from the result of the one before."""
READ_BROWSER = "(query) => [query, localStorage.getItem('rl2f.preferences'), matchMedia('(max-width: 860px)').matches]"


def build(studio: Studio) -> None:
    """Build the filters, the list on the left and the dialogue on the right."""
    read_only, endpoints = studio.context.read_only, studio.dialogues
    browser = DialogueBrowser(studio)

    address = page_frame(studio, TITLE, shortcuts())
    selection = Selection()
    preferences = Stored("rl2f.preferences")
    narrow = gr.Checkbox(visible=False)
    state = gr.State(Place())
    header = View(elem_id="dl-header")
    with gr.Accordion("Filters", elem_id="dl-filters") as filters_box, gr.Row():
        run = _dropdown("run")
        phase = _dropdown("phase")
        step = _text("step", placeholder="18–22", info=None)
        checkpoint = _dropdown("checkpoint")
        condition = _dropdown("condition")
        solved = _dropdown("solved")
        leak = _dropdown("leak", LEAKS)
        labeled = _dropdown("labels", LABELED)
        search = gr.Textbox(
            label="search", placeholder="Search text  /", max_lines=1, elem_classes="search", min_width=160
        )
        with gr.Accordion("More filters", open=False, elem_id="dl-more") as more, gr.Row():
            environment = _dropdown("environment")
            level = _dropdown("level")
            stage = _dropdown("stage")
            reward = _text("reward", placeholder="0.5..1")
            task = _text("task", placeholder="its id")
            group = _text("group", placeholder="its id")
            error = _dropdown("error", [ANY, ("ended with an error", "true")])
        clear = gr.Button("Clear", size="sm", min_width=60, elem_id="dl-clear")
    notice = View(elem_id="dl-notice")
    with gr.Row(elem_id="dl-main", equal_height=True):
        with gr.Column(scale=1, min_width=280, elem_id="dl-side"):
            with gr.Row(elem_id="dl-top"):
                pages = View(elem_id="dl-pages")
                order = gr.Dropdown(ORDERS, label="order", show_label=False, container=False, elem_id="dl-order")
            listing = DialogueList(elem_id="dl-list")
            with gr.Accordion("Rewards of this step", open=False, elem_id="dl-rewards") as rewards:
                histogram = Charts(elem_id="dl-histogram")
        with gr.Column(scale=3, min_width=300, elem_id="dl-pane"):
            back = View(back_bar(), elem_id="dl-back")
            replay = Replay(elem_id="dl-replay")
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
    keys = View(foot(), elem_id="dl-keys")
    timer = gr.Timer(REFRESH_SECONDS)
    version = gr.State(-1)

    fields = QueryFields(
        {
            "run": (run, ""),
            "phase": (phase, ""),
            "stage": (stage, ""),
            "step": (step, ""),
            "environment": (environment, ""),
            "level": (level, ""),
            "checkpoint": (checkpoint, ""),
            "condition": (condition, ""),
            "solved": (solved, ""),
            "reward": (reward, ""),
            "leak": (leak, ""),
            "labeled": (labeled, ""),
            "error": (error, ""),
            "group": (group, ""),
            "task": (task, ""),
            "order": (order, ""),
            "search": (search, ""),
        }
    )
    shown = [state, address, pages, listing, replay, histogram]

    def show(place: Place, before: Place | None = None, *, push: bool = False) -> dict[Any, Any]:
        """Return the outputs that differ from those of `before`."""
        if place.message:
            gr.Info(place.message, duration=4)
        query = place.address()
        out: dict[Any, Any] = {address: query if push else Replacement(query)}
        was = before or Place()
        if before is None or place.page is not was.page or place.current != was.current:
            rows = place.rows if before and place.page is was.page else None
            if rows is None:
                listed = place.page["rows"] if place.page else []
                rows = dialogue_list(listed, with_run="run" not in place.query)
                place = replace(place, rows=rows)
            out[listing] = select_row(rows, place.current)
        out[pages] = pager(place)
        out[replay] = content(place, read_only)
        if place.rewards is not None and step_of(place) != step_of(was):
            place = replace(place, rewards=rewards_chart(place))
        out[state] = replace(place, message="")
        out[histogram] = place.rewards or []  # an update without a value would lose the properties of a closed chart
        return out

    def offer(values: dict[str, Any]) -> dict[Any, Any]:
        """Return choices and value of every field, and the heading of the run."""
        chosen = int(values["run"]) if values["run"].isdigit() else None
        try:
            facets = endpoints.dialogue_facets(chosen)
        except NotFoundError:
            facets = endpoints.dialogue_facets()
        offered = choices(facets)
        out: dict[Any, Any] = {}
        for name, (component, _) in fields.fields.items():
            out[component] = gr.update(value=values[name])
            if name in offered:
                known = [ANY, *offered[name]]
                if values[name] and values[name] not in [value for _, value in known]:
                    known.append((values[name], values[name]))
                out[component] = gr.update(value=values[name], choices=known)
                if name not in ("run", "solved"):
                    out[component] |= {"visible": len(known) > 2 or bool(values[name])}
        measured = facets["measured"] or bool(values["order"])
        out[order] |= {"visible": measured}
        heading = None
        if chosen is not None:
            try:
                heading = run_tabs(studio.run.get_run(chosen)["run"], "Dialogues")
            except RL2FError:
                heading = None
        out[header] = heading or el("h1.rl-title", "Dialogues")
        out[version] = facets["version"]
        out[more] = gr.update(label=more_label(values))
        return out

    def more_label(values: dict[str, Any]) -> str:
        count = sum(bool(values[name]) for name in MORE)
        return f"More filters ({count})" if count else "More filters"

    def start(values: dict[str, Any], place: Place, query: dict[str, str]) -> Place:
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
        )

    def default_values(run_id: str) -> dict[str, str]:
        found = endpoints.default_dialogue_filter(int(run_id)) if run_id.isdigit() else {}
        return {name: str(value) for name, value in found.items() if name in fields.fields and value}

    @handler
    def open_page(query: dict[str, str], kept: dict[str, Any], is_narrow: bool) -> dict[Any, Any]:
        query = merged_ranges(query)
        failed: RL2FError | None = None
        if not set(query) - {"run"}:
            try:
                query = {**query, **default_values(query.get("run", ""))}
            except RL2FError as error:
                failed = error
        values = fields.values(query)
        place = Place(
            narrow=is_narrow,
            in_list="dialogue" not in query,
            annotator=str(kept.get("annotator", "")),
            reading=kept.get("font") == "reading",
            with_tokens=query.get("tokens") == "1",
        )
        try:
            place = start(values, place, query)
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
        filters = gr.update(open=not is_narrow)
        return {**show(place), **offer(values), filters_box: filters}

    @handler
    def edit(place: Place, *given: Any) -> dict[Any, Any]:
        values = {name: (value or "").strip() for name, value in zip(fields.fields, given, strict=True)}
        if fields.query(list(values.values())) == {k: v for k, v in place.query.items() if k != "all"}:
            return {state: place}
        changed_run = values["run"] != place.query.get("run", "")
        if changed_run:
            values |= dict.fromkeys(OF_RUN, "") | default_values(values["run"])
        return filtered(place, values, offered=changed_run)

    def filtered(place: Place, values: dict[str, Any], *, offered: bool = True) -> dict[Any, Any]:
        bare = not set(fields.query(list(values.values()))) - {"run", "order"}
        try:
            place = browser.load(start(values, place, {"all": "1"} if bare else {}))
        except RL2FError as error:
            return {state: place, notice: el("p.rl-wrong", str(error), role="alert")}
        label = {more: gr.update(label=more_label(values))}
        return {**show(place), notice: [], **label, **(offer(values) if offered else {})}

    @handler
    def clear_filters(place: Place) -> dict[Any, Any]:
        kept = {"run": place.query.get("run", "")}
        return filtered(place, fields.values(kept))

    @handler
    def act(place: Place, span: SelectedSpan | None, event: gr.EventData) -> dict[Any, Any]:
        data = event._data
        if "change" in data:
            return change(place, data["change"], str(data["value"]))
        before, place = place, browser.act(place, data, span)
        push = place.narrow and (data["action"] in ("open", "list"))
        labeled = data["action"] == "label" and place.message and place.dialogue is not before.dialogue
        out = show(place, before, push=push) | ({selection: None} if labeled else {})
        font = {"font": "reading" if place.reading else "mono"}
        return {**out, preferences: font if data["action"] == "font" else None}

    def change(place: Place, name: str, value: str) -> dict[Any, Any]:
        """Keep what the user typed in a field of the label."""
        if name == "note":
            return {state: replace(place, note=value), preferences: None}
        before, place = place, replace(place, annotator=value.strip())
        return {**show(place, before), preferences: {"annotator": place.annotator}}

    @handler
    def add_note(place: Place, text: str, where: str) -> dict[Any, Any]:
        before, place = place, browser.add_note(place, text, place.turn if where else None)
        return {**show(place, before), note: ""}

    @handler
    def refresh(place: Place, seen: int) -> dict[Any, Any]:
        run_id = place.query.get("run", "")
        now = studio.run.run_version(int(run_id)) if run_id.isdigit() else studio.runs.runs_version()
        if now == seen or place.page is None:
            return {version: now}
        place = browser.refresh(place)
        rows = dialogue_list(place.page["rows"] if place.page else [], with_run="run" not in place.query)
        place = replace(place, rows=rows)
        return {listing: select_row(rows, place.current), pages: pager(place), state: place, version: now}

    def rewards_chart(place: Place) -> list[Any]:
        found = step_of(place)
        return [histogram_chart(studio.run.run_histogram(*found), *found[1:])] if found else []

    @handler
    def show_rewards(place: Place) -> list[Any]:
        place = replace(place, rewards=rewards_chart(place))
        return [place, place.rewards]

    @handler
    def hide_rewards(place: Place) -> Place:
        return replace(place, rewards=None)

    @handler
    def open_bin(place: Place, event: gr.EventData) -> dict[Any, Any]:
        point = event._data["point"]
        low, high = repr(point["low"]), repr(point["high"])
        chosen = {
            "run": str(place.current[0]) if place.current else place.query.get("run", ""),
            "phase": "train",
            "stage": point["stage"],
            "step": str(point["step"]),
            "reward": low if low == high else f"{low}..{high}",
        }
        return filtered(place, fields.values(chosen))

    everything = [*shown, *fields.components, header, version, notice, more]
    address.input(open_page, [address, preferences, narrow], [*everything, filters_box], js=READ_BROWSER, **QUEUED)
    typed = (step, reward, task, group)
    picked = [each.input for each in fields.components if isinstance(each, gr.Dropdown)]
    edits = [*picked, search.change, *(event for each in typed for event in (each.submit, each.blur))]
    gr.on(edits, edit, [state, *fields.components], everything, **{**FAST, "trigger_mode": "always_last"})
    clear.click(clear_filters, state, everything, **FAST)
    clicks = [pages.click, listing.click, back.click, replay.click, replay.input, keys.click]
    gr.on(clicks, act, [state, selection], [*shown, selection, preferences], **ORDERED)
    add.click(add_note, [state, note, place_of_note], [*shown, note], **QUEUED)
    rewards.expand(show_rewards, state, [state, histogram], **FAST)
    rewards.collapse(hide_rewards, state, state, **FAST)
    histogram.select(open_bin, state, everything, **FAST)
    timer.tick(refresh, [state, version], [state, listing, pages, version], **FAST)


def _dropdown(label: str, values: list[tuple[str, str]] | None = None) -> gr.Dropdown:
    return gr.Dropdown(values or [ANY], value="", label=label, min_width=110)


def _text(label: str, **options: Any) -> gr.Textbox:
    return gr.Textbox(label=label, max_lines=1, min_width=90, **options)
