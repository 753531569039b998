"""Rendering of the page Dialogues: pager, content of the pane, keys, choices of the filters, and the histogram."""

from __future__ import annotations

import time

from app.common.urls import page_url
from app.components.browser.keys import Key
from app.components.elements.replay import LABEL_KEYS, group_view, replay
from app.components.elements.transcript import LABEL_TEXTS
from app.components.nodes import Element, Node, action, el, empty, page_button
from app.endpoints.dialogues import DialogueFacets
from app.endpoints.run import RewardHistogram
from app.pages.dialogues.browse import PageState
from rl2f_core.common.text.decimals import decimal
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

MAX_SOLVED_TURNS = 64
FOOT = (
    (("j", "next_turn", "next turn"), ("k", "previous_turn", "previous turn"), "turn"),
    (("n", "next", "next dialogue"), ("p", "previous", "previous dialogue"), "dialogue"),
    (("N", "next_step", "next step"), ("P", "previous_step", "previous step"), "step"),
    (("g", "first", "first dialogue"), ("G", "last", "last dialogue"), "first, last"),
    (("u", "undo", "undo your last label"), "undo"),
    (("v", "group", "group side by side"), "group"),
    (("l", "table", "all dialogues as a table"), "table"),
    (("t", "turn_tokens", "tokens and their log-probabilities"), "tokens"),
    (("a", "reveal", "show or hide the gold answer"), "answer"),
    (("e", "expand", "expand all"), ("x", "collapse", "collapse all"), "expand, collapse"),
    (("m", "font", "reading or mono font"), "font"),
)
"""Keys, actions and descriptions; the last text names the group."""
FALLBACKS = {"next": ".dl-back", "previous": ".dl-back", "group": ".dv"}
"""Where a narrow window, which has no list of keys, has a button of the same action."""
ALIASES = {"j": "j ArrowDown", "k": "k ArrowUp"}


def shortcuts() -> list[Key]:
    """Return the keys of the page."""
    keys = []
    for *entries, _ in FOOT:
        for key, name, text in entries:
            targets = [f".dl-foot [data-action={name}]"]
            targets += [f"{FALLBACKS[name]} [data-action={name}]"] if name in FALLBACKS else []
            keys.append(Key(ALIASES.get(key, key), text, ", ".join(targets)))
    labels = ".dv-turn[data-current] .dv-labels"
    keys += [
        Key(key, f"label the turn's hint: {LABEL_TEXTS[name]}", f"{labels} [data-label={name}]")
        for name, key in LABEL_KEYS.items()
    ]
    return [
        *keys,
        Key("f", "fork: another hint after this turn", ".dv-turn[data-current] .dv-fork"),
        Key("c", "copy a link to this turn", ".dv-copy"),
        Key("Ctrl+Enter", "add the note", "#dl-note-add", typing=True),
    ]


def foot() -> Element:
    """Return the keys as buttons."""
    shown: list[Node] = []
    for *entries, text in FOOT:
        buttons = [
            el("button.dl-key", el("kbd", key), title=title, aria_label=title, data_action=name)
            for key, name, title in entries
        ]
        shown.append(el("span", buttons, text))
    more = [("f", "fork"), ("c", "copy link"), ("?", "all keys")]
    shown += [el("span", el("kbd", key), text) for key, text in more]
    return el("div.dl-foot.rl-muted.rl-small", shown, role="toolbar", aria_label="actions by key")


def back_bar() -> Element:
    """Return the buttons above a dialogue in a narrow window."""
    moves = [
        action(text, name, style="rl-small", aria_label=f"{name} dialogue")
        for text, name in (("▲ p", "previous"), ("▼ n", "next"))
    ]
    return el("div.dl-back", action("← List", "list", style="rl-small"), el("span.rl-grow"), moves)


def message(text: Node) -> Element | None:
    """Return the result of an action, which disappears after some seconds."""
    return el("p.dl-message", text, role="status", data_key=str(time.monotonic_ns())) if text else None


def pager(place: PageState) -> Element:
    """Return the position in the list, the buttons of the pages, and a link to all dialogues if the page filtered."""
    page = place.page
    rows, first = (page.rows, page.first) if page else ([], 1)
    text = "0 dialogues"
    if page and rows:
        text = f"{first:,}–{first + len(rows) - 1:,} of {page.total or 0:,}"
    buttons = el(
        "div.dl-pager.rl-row",
        el("span.rl-num", text, aria_live="polite"),
        el("span.rl-grow"),
        page_button("◄", "previous page", page.before if page else None),
        page_button("►", "next page", page.after if page else None),
        action("List" if place.is_table else "Table", "table", style="rl-small", title="all dialogues as a table (l)"),
        data_view="table" if place.is_table else "list" if place.in_list else "dialogue",
    )
    if not place.is_default:
        return buttons
    part = place.query.get("checkpoint") or place.query.get("stage") or place.query.get("phase")
    every = el("a", "Show all", href=page_url("dialogues", run=place.query.get("run"), all=1))
    return el("div.rl-stack.rl-small", el("p.rl-muted", f"Latest: {part}. ", every), buttons)


def content(place: PageState) -> Element:
    """Return the current dialogue or group, or why there is none."""
    if place.error is not None:
        return error_view(place.error)
    if place.group:
        return group_view(place.group, place.current[1] if place.current else "")
    if place.dialogue is not None:
        return replay(place.dialogue, place)
    if place.page is not None and not place.page.rows:
        return nothing(place)
    return el("p.rl-muted", "Select a dialogue from the list.")


def error_view(error: RL2FError) -> Element:
    """Return what failed and the fix."""
    value = "" if error.value is None else f"Got: {error.value}. "
    link = el("a.rl-button", "All dialogues", href="/dialogues?all=1")
    return empty(error.what, f"{value}{error.fix or ''}", link, role="alert")


def nothing(place: PageState) -> Element:
    """Return the content of an empty list."""
    filtered = bool(set(place.query) - {"run", "all", "order"})
    title = "No dialogue matches these filters" if filtered else "No dialogues yet"
    text = "Remove a filter, or search for other words." if filtered else "Start a run, or choose another one."
    if "step" in place.query:
        text = "The studio has no stored dialogues of this step. " + text
    if "used_hints" in place.query:
        text = "Used hints are known only if the bits of a hint are (Information in hints on the run's page). " + text
    all_url = page_url("dialogues", run=place.query.get("run"), all=1)
    new_run = el("a.rl-button.rl-primary", "New run", href=page_url("new"))
    buttons = [
        el("a.rl-button.rl-primary", "Clear filters", href=all_url) if filtered else new_run,
        el("a.rl-button", "All runs", href="/"),
    ]
    return empty(title, text, *buttons)


# -- filters ---------------------------------------------------------------------------------------------------------
def choices(facets: DialogueFacets) -> dict[str, list[tuple[str, str]]]:
    """Return the choices of each filter except `any`."""
    same = {
        "phase": facets.phases,
        "stage": facets.stages,
        "level": facets.levels,
        "environment": facets.environments,
        "checkpoint": facets.checkpoints,
        "condition": facets.conditions,
    }
    turns = range(1, min(facets.longest, MAX_SOLVED_TURNS) + 1)
    return {
        **{name: [(value, value) for value in values] for name, values in same.items()},
        "run": [(f"{run.id} · {run.name}", str(run.id)) for run in facets.runs],
        "solved": [
            *(("solved", "any"), ("never", "never"), ("no verdict", "unknown")),
            *((f"at turn {turn}", str(turn)) for turn in turns),
        ],
    }


# -- histogram -------------------------------------------------------------------------------------------------------
def step_of(place: PageState) -> tuple[int, str, int] | None:
    """Return run, stage and step of the current dialogue; None if it is not a dialogue of a training step."""
    shown = place.dialogue
    return (shown.run_id, shown.stage, shown.step) if shown and shown.phase == "train" else None


def histogram_chart(found: RewardHistogram, stage: str, step: int) -> JsonObject:
    """Return the chart of a step's rewards; the data of a bar is its range of rewards."""
    bins = found.bins
    points = [{"low": item.low, "high": item.high, "stage": stage, "step": step} for item in bins]
    names = [" to ".join(map(decimal, dict.fromkeys((item.low, item.high)))) for item in bins]
    bar: JsonObject = {
        "type": "bar",
        "x": names,
        "y": [len(item.dialogues) for item in bins],
        "customdata": points,
        "marker": {"color": "--rl-student"},
        "hovertemplate": "reward %{x}: %{y} dialogues<extra></extra>",
    }
    axis = {"color": "--rl-muted", "gridcolor": "--rl-grid", "fixedrange": True, "automargin": True}
    layout: JsonObject = {
        "height": 150,
        "margin": {"l": 30, "r": 6, "t": 6, "b": 24},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": "--rl-muted"},
        "xaxis": {**axis, "type": "category"},
        "yaxis": {**axis, "rangemode": "tozero"},
        "bargap": 0.1,
    }
    counts = ", ".join(f"{name}: {len(item.dialogues)}" for name, item in zip(names, bins, strict=True))
    return {
        "key": "rewards",
        "title": f"Rewards of {stage} step {step}",
        "unit": f"{found.total} dialogues",
        "note": "Click a bar to list its dialogues.",
        "words": f"Histogram of {found.total} rewards. {counts}",
        "figure": {"data": [bar], "layout": layout},
    }
