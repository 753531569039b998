"""Page Runs: running and queued runs, the list of all others, schedules, and errors of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import gradio as gr

from app.common.urls import page_url
from app.components.keys import Key
from app.components.nodes import el
from app.components.notify import EndedRuns, EndNotifications
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages import _runs_view as view
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages._runs_frame import scheduler
from jobs.db.errors import NotFoundError
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    from app.endpoints.runs import DeletedRuns, RunFacets, RunPage, RunRow, RunSort, RunStatus

PATH = ""
TITLE = "Runs"
ORDER = 10
FINISHED: list[RunStatus] = ["succeeded", "failed", "stopped", "interrupted"]
SORTS = [
    ("recently finished", "-ended"),
    ("oldest finished", "ended"),
    ("newest", "-created"),
    ("oldest", "created"),
    ("name", "name"),
    ("name, descending", "-name"),
    ("environment", "environment"),
    ("environment, descending", "-environment"),
    ("highest reward", "-reward"),
    ("lowest reward", "reward"),
]
ORDERS = [order for _, order in SORTS]
DEFAULT_SORT = "-ended"
STATUSES = [("finished", ""), *((status, status) for status in FINISHED), ("any status", "any")]
FACETS = {"kind": "kinds", "environment": "environments", "method": "methods", "tag": "tags"}
"""Filter → its values in `run_facets`."""
REFRESH_SECONDS = 2.0
CLOCK_SECONDS = 20.0
"""Seconds after which the times of running runs are refreshed although no run changed."""
NEW_USER = {"read": False, "hidden": False}
KEYS = [
    Key("j ArrowDown", "next run", "[data-part=list] a.runs-name", "next"),
    Key("k ArrowUp", "previous run", "[data-part=list] a.runs-name", "previous"),
    Key("o", "open the run", "[data-part=list] tr:focus-within a.runs-name"),
    Key("d", "its dialogues", "[data-part=list] tr:focus-within a.runs-dialogues"),
    Key("x", "select the run", "[data-part=list] tr:focus-within input"),
    Key("v", "compare the selected runs", "a.runs-compare"),
    Key("n", "new run", "a.runs-new"),
    Key("Escape", "close the dialog", "#run-notes-cancel", typing=True),
]
Outputs = dict[Any, Any]


@dataclass(frozen=True)
class Shown:
    """What the page shows, to skip updates without a change."""

    version: int = -1
    time: float = 0.0
    active: int = 0
    facets: RunFacets | None = None


def build(studio: Studio) -> None:
    """Build the page from top to bottom: first steps, running, queue, list, schedules."""
    context, runs = studio.context, studio.runs
    writable = not context.read_only

    address = page_frame(studio, TITLE, KEYS)
    with gr.Row(elem_classes="runs-head"):
        head = View()
        EndNotifications(lambda since: ended_runs(studio, since))
    welcome = View()
    live = View(elem_id="runs-live")
    heading = View()
    with gr.Row(elem_classes="runs-filters", visible="hidden") as toolbar:
        options: dict[str, Any] = {"show_label": False, "container": False, "min_width": 120}
        search = gr.Textbox(
            label="Search runs",
            placeholder="Search name, tag, note, model…",
            elem_classes="search",
            max_lines=1,
            **options,
        )
        status = gr.Dropdown(STATUSES, label="Status", **options)
        kind, environment, method, tag = (
            gr.Dropdown([(f"any {name}", "")], label=name.capitalize(), **options) for name in FACETS
        )
        sort = gr.Dropdown(SORTS, label="Order", **options)
    table = View(elem_id="runs-list")
    pager = View()
    jobs = View(elem_id="runs-jobs")
    with gr.Column(visible=False, elem_classes="rl-modal", elem_id="run-notes") as dialog:
        notes_title = View()
        tags = gr.Dropdown([], label="Tags", multiselect=True, allow_custom_value=True, info="Enter adds a new tag.")
        notes = View()
        note = gr.Textbox(label="New note", lines=3, autofocus=True)
        with gr.Row(elem_classes="rl-actions"):
            cancel = gr.Button("Cancel", size="sm", elem_id="run-notes-cancel")
            save = gr.Button("Save", size="sm", variant="primary")
    timer = gr.Timer(REFRESH_SECONDS)

    shown, selected, cursor, annotated = gr.State(Shown()), gr.State([]), gr.State(None), gr.State(0)
    newcomer = gr.BrowserState(NEW_USER, storage_key="rl2f.welcome", secret="rl2f")
    facet_fields = {"kind": kind, "environment": environment, "method": method, "tag": tag}
    filters = QueryFields(
        {
            "search": (search, ""),
            "status": (status, ""),
            "kind": (kind, ""),
            "environment": (environment, ""),
            "method": (method, ""),
            "tag": (tag, ""),
            "sort": (sort, DEFAULT_SORT),
        }
    )

    # -- content ---------------------------------------------------------------------------------------------------
    def form_of(values: Sequence[Any]) -> dict[str, str]:
        return {name: value or "" for name, value in zip(filters.fields, values, strict=True)}

    def find(form: Mapping[str, str], at: str | None) -> RunPage:
        return runs.list_runs(
            form["search"], statuses(form), form["kind"], form["environment"], form["method"], form["tag"],
            cast("RunSort", form["sort"] or DEFAULT_SORT), at,
        )  # fmt: skip

    def show_list(form: Mapping[str, str], at: str | None, chosen: list[int]) -> Outputs:
        try:
            page = find(form, at)
        except RL2FError as error:  # the address has an unknown order or status
            return {heading: view.table_heading(""), table: view.unreadable(str(error)), pager: []}
        rows = view.runs_table(
            page, chosen, form["sort"] or DEFAULT_SORT, filtered=is_filtered(form), writable=writable
        )
        return {heading: view.table_heading(form["status"]), table: rows, pager: view.pager(page)}

    def show_all(form: Mapping[str, str], at: str | None, chosen: list[int], new: Mapping[str, bool]) -> Outputs:
        """Return everything but the fields; `shown` has the facets."""
        version, now = runs.runs_version(), time.time()
        active, facets = runs.list_active_runs(), runs.run_facets()
        count = len(active["active"])
        exists = bool(facets["statuses"])
        return {
            shown: Shown(version, now, count, facets),
            address: gr.update(title=f"({count}) {TITLE}" if count else TITLE),
            welcome: first_steps(new) if exists else view.no_runs(writable),
            live: view.live(active, runs.queue_status(), now),
            **show_list(form, at, chosen),
            **({} if exists else {heading: [], table: [], pager: []}),
            toolbar: gr.update(visible=exists or "hidden"),
            jobs: scheduler(runs.list_schedules(), runs.job_problems(), writable),
        }

    def first_steps(new: Mapping[str, bool]) -> Any:
        if new["hidden"]:
            return []
        steps = view.Steps(
            read=new["read"],
            labeled=bool(studio.labels.list_annotators()),
            started=any(run["origin"] != "example" for run in runs.list_runs(limit=5)["rows"]),
        )
        return [] if steps.labeled and steps.started else view.welcome(steps, writable)

    def facet_updates(facets: RunFacets, form: Mapping[str, str]) -> Outputs:
        return {field: facet_choices(name, facets, form[name]) for name, field in facet_fields.items()}

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def open_page(query: dict[str, str], chosen: list[int], new: dict[str, bool]) -> Outputs:
        form, at = filters.values(query), query.get("cursor")
        content = show_all(form, at, chosen, new)
        for name, update in facet_updates(content[shown].facets, form).items():
            content[name] = update | {"value": form[next(key for key, field in facet_fields.items() if field is name)]}
        known = [value for _, value in STATUSES]
        extra = [] if form["status"] in known else [(form["status"], form["status"])]
        return {
            **content,
            head: view.head(writable),
            cursor: at,
            search: form["search"],
            status: gr.update(choices=[*STATUSES, *extra], value=form["status"]),
            sort: gr.update(value=form["sort"] if form["sort"] in ORDERS else DEFAULT_SORT),
        }

    @handler
    def refresh(seen: Shown, chosen: list[int], at: str | None, new: dict[str, bool], *values: Any) -> Outputs:
        late = seen.active and time.time() - seen.time > CLOCK_SECONDS
        if seen.version in (Shown().version, runs.runs_version()) and not late:
            return {shown: gr.skip()}
        form = form_of(values)
        content = show_all(form, at, chosen, new)
        return content if content[shown].facets == seen.facets else content | facet_updates(content[shown].facets, form)

    @handler
    def edit(query: dict[str, str], chosen: list[int], *values: Any) -> Outputs:
        wanted = filters.query(values)
        if wanted == {name: text for name, text in query.items() if name in filters.fields}:
            return {table: gr.skip()}  # the page itself changed the field
        return {address: wanted, cursor: None, **show_list(form_of(values), None, chosen)}

    @handler
    def turn(event: gr.EventData, chosen: list[int], *values: Any) -> Outputs:
        at = event._data["cursor"]
        query = {**filters.query(values), "cursor": at}
        return {address: query, cursor: at, **show_list(form_of(values), at, chosen)}

    @handler
    def select(event: gr.EventData, chosen: list[int], at: str | None, *values: Any) -> Outputs:
        form, data = form_of(values), event._data
        shown_ids = [run["id"] for run in find(form, at)["rows"]]
        if data["change"] == "select_all":
            checked = shown_ids if data["value"] else []
        else:
            checked = [int(value) for value in data["checked"] if value.isdigit()]
        chosen = [run for run in chosen if run not in shown_ids] + checked
        return {selected: chosen, **show_list(form, at, chosen)}

    def refilter(changes: Mapping[str, str], chosen: list[int], values: Sequence[Any]) -> Outputs:
        form = {**form_of(values), **changes}
        fields = {filters.fields[name][0]: value for name, value in changes.items()}
        return {address: filters.query(list(form.values())), cursor: None, **fields, **show_list(form, None, chosen)}

    @handler
    def click(event: gr.EventData, chosen: list[int], at: str | None, new: dict[str, bool], *values: Any) -> Outputs:
        data, form = event._data, form_of(values)
        name = data["action"]
        if name in ("sort", "tag"):
            return refilter({name: data[name]}, chosen, values)
        if name == "clear":
            return refilter({name: default for name, (_, default) in filters.fields.items()}, chosen, values)
        if name == "unselect":
            return {selected: [], **show_list(form, at, [])}
        if name == "notes":
            return open_notes(int(data["run"]), data["name"], [tag for tag in data["tags"].split("\n") if tag])
        try:
            chosen = act(studio, data, chosen)
        except RL2FError as error:  # another user was faster: show the runs as they are
            gr.Warning(str(error))
        content = show_all(form, at, chosen, new)
        return {selected: chosen, **content, **facet_updates(content[shown].facets, form)}

    @handler
    def enable(event: gr.EventData) -> Any:
        runs.enable_schedule(int(event._data["schedule"]), event._data["value"])
        return scheduler(runs.list_schedules(), runs.job_problems(), writable)

    @handler
    def step(event: gr.EventData, new: dict[str, bool]) -> Outputs:
        if event._data["action"] == "hide":
            return {newcomer: {**new, "hidden": True}, welcome: []}
        found = studio.dialogues.welcome_dialogue()
        if found is None:
            raise NotFoundError("There are no dialogues yet.", fix="Start the quickstart.")
        link = page_url("dialogues", run=found["run"], dialogue=found["event_id"])
        return {newcomer: {**new, "read": True}, address: link}

    # -- dialog of tags and notes ----------------------------------------------------------------------------------
    def open_notes(run: int, name: str, own: list[str]) -> Outputs:
        return {
            annotated: run,
            dialog: gr.update(visible=True),
            notes_title: el("div.rl-page", el("h2", f"Tags and notes of {name}")),
            tags: gr.update(choices=sorted({*runs.run_facets()["tags"], *own}), value=own),
            notes: view.notes(studio.run.list_notes(run)),
            note: "",
        }

    @handler
    def save_notes(run: int, words: list[str], text: str) -> Outputs:
        studio.run.tag_run(run, [word for each in words for word in map(str.strip, each.split(",")) if word])
        if text.strip():
            studio.run.add_note(run, text)
        return {dialog: gr.update(visible=False)}

    @handler
    def delete_note(run: int, event: gr.EventData) -> Any:
        studio.run.delete_note(run, int(event._data["note"]))
        return view.notes(studio.run.list_notes(run))

    fields = filters.components
    place = [selected, cursor, newcomer, *fields]
    lists = [heading, table, pager]
    content = [shown, address, welcome, live, *lists, toolbar, jobs]
    dialog_parts = [annotated, dialog, notes_title, tags, notes, note]
    everything = [*content, selected, cursor, *fields, *dialog_parts]
    address.input(open_page, [address, selected, newcomer], [head, *content, cursor, *fields], **FAST)
    timer.tick(refresh, [shown, *place], [*content, *fields], **FAST)
    # `input` misses Backspace and pasted text in a Textbox, and is triggered twice by a Dropdown
    edits = [each.change for each in (search, status, kind, environment, method, tag, sort)]
    gr.on(edits, edit, [address, selected, *fields], [address, cursor, *lists], trigger_mode="always_last", **FAST)
    pager.click(turn, [selected, *fields], [address, cursor, *lists], **FAST)
    # one after the other, in the order of the clicks
    in_order: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1, **QUEUED}
    table.input(select, [selected, cursor, *fields], [selected, *lists], **in_order)
    gr.on([live.click, table.click, jobs.click], click, place, everything, **in_order)
    jobs.input(enable, None, jobs, **in_order)
    welcome.click(step, newcomer, [newcomer, welcome, address], **FAST)
    saved = save.click(save_notes, [annotated, tags, note], [dialog], **FAST)
    saved.success(refresh, [shown, *place], [*content, *fields], **FAST)
    cancel.click(lambda: gr.update(visible=False), None, dialog, **FAST)
    notes.click(delete_note, annotated, notes, **FAST)


def statuses(form: Mapping[str, str]) -> list[RunStatus] | None:
    """Return the statuses of a filter: of finished runs if it is empty, None for `any`."""
    if form["status"] == "any":
        return None
    return cast("list[RunStatus]", [word for word in form["status"].split(",") if word]) or FINISHED


def is_filtered(form: Mapping[str, str]) -> bool:
    """Return whether a filter hides finished runs."""
    return any(value for name, value in form.items() if name != "sort")


def facet_choices(name: str, facets: RunFacets, value: str) -> dict[str, Any]:
    """Return the choices of a filter; it is hidden if there is nothing to choose."""
    found = cast("list[str]", facets[FACETS[name]])  # type: ignore[literal-required]
    known = [*found, *([value] if value and value not in found else [])]
    choices = [(f"any {name}", ""), *((f"#{each}" if name == "tag" else each, each) for each in known)]
    return gr.update(choices=choices, visible=len(found) > 1 or bool(value) or "hidden")


def act(studio: Studio, data: Mapping[str, str], chosen: list[int]) -> list[int]:
    """Do an action of a run, of several runs or of the queue; return the selection afterwards."""
    runs, name = studio.runs, data["action"]
    ids = [int(each) for each in data.get("run", "").split(",") if each]
    if name in ("pause_queue", "resume_queue"):
        (runs.pause_queue if name == "pause_queue" else runs.resume_queue)()
    elif name == "move":
        runs.move_run(ids[0], None if data["before"] == "end" else int(data["before"]))
    elif name == "delete_schedule":
        runs.delete_schedule(int(data["schedule"]))
    elif name == "delete":
        deleted = runs.delete_runs(ids)
        report_deletion(deleted)
        return [run for run in chosen if run not in deleted["deleted"]]
    else:
        change = {"stop": studio.run.stop_run, "abort": studio.run.abort_run, "resume": studio.run.resume_run}[name]
        for run in ids:
            gr.Info(change_text(name, change(run)))
    return chosen


def report_deletion(deleted: DeletedRuns) -> None:
    """Show how many runs were deleted, and why others were not."""
    if count := len(deleted["deleted"]):
        gr.Info("1 run was deleted." if count == 1 else f"{count} runs were deleted.")
    for kept in deleted["kept"]:
        gr.Warning(kept["reason"])


def change_text(name: str, run: Mapping[str, Any]) -> str:
    """Return what a stop, abort or resume of a run does."""
    if name == "stop" and run["status"] == "stopped":
        return f"{run['name']} was removed from the queue."
    return {
        "stop": f"Stopping {run['name']} after this step.",
        "abort": f"Aborting {run['name']}.",
        "resume": f"{run['name']} queued.",
    }[name]


def ended_runs(studio: Studio, since: float | None) -> EndedRuns:
    """Return the runs that ended after a time, for desktop notifications."""
    now = time.time()
    rows: list[RunRow] = []
    if since is not None:
        rows = studio.runs.list_runs(status=FINISHED, sort="-ended", limit=10)["rows"]
    ended = [run for run in rows if since is not None and since < (run["ended"] or 0) <= now]
    return {
        "time": now,
        "runs": [{"title": run["name"], "text": run["status"], "url": page_url("run", run=run["id"])} for run in ended],
    }
