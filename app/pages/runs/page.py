"""Page Runs: running and queued runs, the list of all others, schedules, and errors of the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import gradio as gr

from app.common.example_runs import example_annotators
from app.common.quantities import plural
from app.common.urls import page_url
from app.components.browser.address import Replacement
from app.components.browser.keys import Key
from app.components.browser.notify import EndedRuns, EndNotifications
from app.components.nodes import Element, Node, el
from app.components.view import View
from app.endpoints.runs import RunRow
from app.endpoints.studio import Studio
from app.endpoints.types import validated
from app.pages._events import EACH, FAST, LATEST, QUEUED, EventOptions, Updates, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.runs import view
from app.pages.runs.notes import notes_dialog
from jobs.db.errors import NotFoundError
from jobs.db.models import ENDED
from jobs.db.paging import Page
from jobs.db.queries.run_groups import RunGroup
from jobs.db.queries.runs import RunFilter, RunSort
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

PATH = ""
TITLE = "Runs"
ORDER = 10
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
    ("largest hint effect", "-hint_effect"),
    ("highest solve rate", "-solve_rate"),
]
DELETED = "deleted"
STATUSES = [("finished", ""), *((status, status) for status in ENDED), ("any status", "any"), (DELETED, DELETED)]
FACETS = {"kind": "kinds", "environment": "environments", "method": "methods", "tag": "tags"}
"""Filter → its values in `run_facets`."""
GROUPS = [("single runs", ""), ("grouped by seed", "seed")]
DEFAULTS: JsonObject = {"search": "", "status": "", **dict.fromkeys(FACETS, ""), "sort": "-ended", "group": "",
                        "columns": []}  # fmt: skip
"""Filter → value that the address omits."""
TABLE = ("sort", "group", "columns")
"""Fields that hide no run."""
ANY = "any"
"""Kind of runs and of their jobs, such as exports."""
MAX_COLUMNS = 8
"""Chosen columns; further ones do not fit."""
MAX_MEMBERS = 50
"""Runs of an unfolded group that are listed."""
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
]
Query = Mapping[str, str]
"""Parameters of the address: filters that differ from `DEFAULTS`, and `cursor`."""


@dataclass(frozen=True)
class Shown:
    """What the page shows, to skip updates without a change."""

    version: int = -1
    time: float = 0.0
    active: int = 0
    facets: dict[str, list[str]] | None = None
    selected: list[int] = field(default_factory=list)


def build(studio: Studio) -> None:
    """Build the page from top to bottom: first steps, running, queue, list, schedules."""
    _Page(studio)


class _Page:
    """Layout and events of the page; the address has the filters and the page of the list."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.runs = studio, studio.runs
        self.writable = not studio.context.read_only
        self.address = page_frame(studio, TITLE, KEYS)
        with gr.Row(elem_classes="runs-head"):
            self.head = View()
            EndNotifications(lambda since: ended_runs(studio, since))
        self.live = View(elem_id="runs-live")
        with gr.Row(elem_classes="runs-filters", visible="hidden") as self.toolbar:
            options: JsonObject = {"show_label": False, "container": False, "min_width": 120}
            hint = "Search name, tag, note, model…"
            search = gr.Textbox(
                label="Search runs", placeholder=hint, elem_classes="search", max_lines=1, **options
            )  # fmt: skip
            status = gr.Dropdown(STATUSES, label="Status", **options)
            self.facets = {
                name: gr.Dropdown([(f"any {name}", "")], label=name.capitalize(), **options) for name in FACETS
            }
            sort = gr.Dropdown(SORTS, label="Order", **options)
            self.group = gr.Dropdown(GROUPS, label="Rows", **options)
            self.columns = gr.Dropdown([], label="Columns", multiselect=True, max_choices=MAX_COLUMNS,
                                       elem_classes="runs-columns", **options)  # fmt: skip
        self.table = View(elem_id="runs-list")
        self.pager = View()
        self.jobs = View(elem_id="runs-jobs")
        self.dialog = View()
        timer = gr.Timer(REFRESH_SECONDS)
        self.shown, self.selected = gr.State(Shown()), gr.State([])
        self.newcomer = gr.BrowserState(NEW_USER, storage_key="rl2f.welcome", secret="rl2f")
        components: dict[str, Any] = {"search": search, "status": status, **self.facets, "sort": sort}
        components |= {"group": self.group, "columns": self.columns}
        self.filters = QueryFields({name: (item, DEFAULTS[name]) for name, item in components.items()})

        fields, place = self.filters.components, [self.address, self.selected]
        listed = [self.table, self.pager]
        content = [self.shown, self.address, self.live, *listed, self.toolbar, self.jobs, *self.facets.values()]
        browsed = [self.address, *fields, *listed, self.selected, self.live, self.newcomer, self.dialog]
        shown = [self.shown, *place, self.newcomer]
        shaped = [self.group, self.columns]
        opened = [self.head, *content, search, status, sort, *shaped]
        self.address.input(self.open_page, [*place, self.newcomer], opened, **FAST)
        gr.on([self.group.focus, self.columns.focus], self.offer_columns, shaped, shaped, **FAST)
        timer.tick(self.refresh, shown, content, **FAST)
        # `input` misses Backspace and pasted text in a Textbox, and is triggered twice by a Dropdown; but `change` is
        # also triggered while Python updates choices and value together
        updated = [sort, *shaped]
        edits = [item.input if item in updated else item.change for item in components.values()]
        gr.on(edits, self.edit, [*place, *fields], [self.address, *listed], **LATEST)
        self.pager.click(self.turn, place, [self.address, *listed], **FAST)
        browse, form = [self.live.select, self.table.select], [*place, self.newcomer, *fields]
        gr.on(browse, self.browse, form, browsed, **EACH)
        # one after the other, in the order of the clicks
        in_order: EventOptions = {"trigger_mode": "multiple", "concurrency_limit": 1, **QUEUED}
        self.table.input(self.select, place, [self.selected, self.table], **in_order)
        clicks = [self.live.click, self.table.click, self.jobs.click]
        gr.on(clicks, self.click, [*place, self.newcomer], [*content, self.selected], **in_order)
        self.jobs.input(self.enable, None, self.jobs, **in_order)
        saved = self.dialog.submit(self.save_notes, None, self.dialog, **FAST)
        saved.success(self.refresh, shown, content, **FAST)
        self.dialog.click(lambda: None, None, self.dialog, **FAST)

    # -- content ---------------------------------------------------------------------------------------------------
    def find(self, query: Query) -> Page[RunRow] | Page[RunGroup]:
        """Return the page of runs or groups that the address names; empty if no run has a named value any more."""
        filter, columns = run_filter(query), chosen_columns(query)
        try:
            if by := query.get("group"):
                return self.runs.list_run_groups(filter, by, query.get("cursor"), columns=["reward", *columns])
            return self.runs.list_runs(filter, query.get("cursor"), columns=columns)
        except NotFoundError:
            return Page([], 0, None, None)

    def members(self, query: Query) -> Sequence[RunRow]:
        """Return the runs of the unfolded group."""
        if not query.get("group") or not query.get("open"):
            return []
        filter = run_filter(query).model_copy(update={"group": query["open"]})
        try:
            return self.runs.list_runs(filter, limit=MAX_MEMBERS, columns=chosen_columns(query)).rows
        except NotFoundError:
            return []

    def draw(self, page: Page[RunRow] | Page[RunGroup], query: Query, chosen: list[int]) -> Updates:
        """Return the table and the pager."""
        title = {"": "Finished", "any": "All runs"}.get(query.get("status", ""), "Runs")
        table = view.runs_table(
            page,
            chosen,
            query.get("sort", DEFAULTS["sort"]),
            title,
            filtered=is_filtered(query),
            writable=self.writable,
            columns=chosen_columns(query),
            members=self.members(query),
        )
        return {self.table: table, self.pager: view.pager(page)}

    def listing(self, query: Query, chosen: list[int]) -> Updates:
        """Return the table and the pager; deleted runs or an error in the address replace them."""
        if query.get("status") == DELETED:
            return {self.table: view.deleted_table(self.runs.list_deleted_runs(), self.writable), self.pager: None}
        try:
            return self.draw(self.find(query), query, chosen)
        except RL2FError as error:
            return {self.table: view.unreadable(str(error)), self.pager: None}

    def content(self, query: Query, chosen: list[int], new: Mapping[str, bool], seen: Shown | None = None) -> Updates:
        """Return everything but the form; the filters' choices only if they differ from those that were seen."""
        version, now = self.runs.runs_version(), time.time()
        active, facets = self.runs.list_active_runs(), self.runs.run_facets()
        count, exists = len(active.active), bool(facets["statuses"])
        planned, problems = self.runs.list_schedules(), self.runs.job_problems()
        link = link_below({"schedule": len(planned), "scheduler error": len(problems)})
        first = self.first_steps(new) if exists else view.no_runs(self.writable)
        content: Updates = {
            self.shown: Shown(version, now, count, facets, chosen),
            self.address: gr.update(title=f"({count}) {TITLE}" if count else TITLE),
            self.live: view.stack(first, *view.live(active, self.runs.queue_status(), now), link),
            **(self.listing(query, chosen) if exists else {self.table: None, self.pager: None}),
            self.toolbar: gr.update(visible=exists or "hidden"),
            self.jobs: view.scheduler(planned, problems, self.writable),
        }
        if seen is None or facets != seen.facets:
            content |= {field: facet_choices(name, facets, query.get(name, "")) for name, field in self.facets.items()}
        return content

    def first_steps(self, new: Mapping[str, bool]) -> Node:
        """Return the first steps, unless they are done or hidden."""
        if new["hidden"]:
            return None
        labeled = not example_annotators().issuperset(self.studio.labels.list_annotators())
        started = any(run.origin != "example" for run in self.runs.list_runs(limit=5).rows)
        return None if labeled and started else view.welcome(new["read"], labeled, started, self.writable)

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def open_page(self, query: dict[str, str], chosen: list[int], new: dict[str, bool]) -> Updates:
        """Show the runs of the address."""
        form, content = self.filters.values(query), self.content(query, chosen, new)
        fields = {name: field for name, (field, _) in self.filters.fields.items()}
        known = [value for _, value in STATUSES]
        extra = [] if form["status"] in known else [(form["status"], form["status"])]
        return {
            self.head: view.head(self.writable),
            **content,
            **{field: content[field] | {"value": form[name]} for name, field in self.facets.items()},
            fields["search"]: form["search"],
            fields["status"]: gr.update(choices=[*STATUSES, *extra], value=form["status"]),
            fields["sort"]: gr.update(choices=sort_choices(form["sort"]), value=form["sort"]),
            self.group: gr.update(choices=[*GROUPS, *own_choices(form["group"])], value=form["group"]),
            self.columns: gr.update(choices=form["columns"], value=form["columns"]),
        }

    @handler
    def offer_columns(self, group: str, columns: list[str]) -> Updates:
        """Offer all settings and metrics, once a field is focused: there are hundreds."""
        found = self.runs.run_columns()
        settings = [(name, name) for name in found.settings]
        names = dict.fromkeys([*(columns or []), *found.metrics, *found.settings])
        return {
            self.group: gr.update(choices=[*GROUPS, *settings], value=group),
            self.columns: gr.update(choices=[*names], value=columns),
        }

    @handler
    def refresh(self, seen: Shown, query: dict[str, str], chosen: list[int], new: dict[str, bool]) -> Updates:
        """Show what changed since the last refresh."""
        is_late = seen.active and time.time() - seen.time > CLOCK_SECONDS
        # a refresh that started before a change of the selection shows the old one: the next refresh corrects that
        is_current = seen.version == self.runs.runs_version() and seen.selected == chosen and not is_late
        if is_current or seen.version == Shown().version:
            return {self.shown: gr.skip()}
        return self.content(query, chosen, new, seen)

    @handler
    def edit(self, query: dict[str, str], chosen: list[int], *values: object) -> Updates:
        """Filter by the form; the first letter of a search adds an entry to the history, further ones replace it."""
        filtered = self.filters.query(values)
        if filtered == {name: text for name, text in query.items() if name in DEFAULTS}:
            return {self.table: gr.skip()}  # the page itself changed the field
        is_typing = query.get("search", "") not in ("", filtered.get("search", ""))
        return {self.address: Replacement(filtered) if is_typing else filtered, **self.listing(filtered, chosen)}

    @handler
    def turn(self, event: gr.EventData, query: dict[str, str], chosen: list[int]) -> Updates:
        """Show another page of the list."""
        query = {**query, "cursor": event._data["cursor"]}
        return {self.address: query, **self.listing(query, chosen)}

    @handler
    def select(self, event: gr.EventData, query: dict[str, str], chosen: list[int]) -> Updates:
        """Select one run or all of the shown ones."""
        data, page = event._data, self.find(query)
        every = [run for row in page.rows for run in view.run_ids(row)]
        changed = every if data["change"] == "select_all" else [int(run) for run in data["run"].split(",")]
        chosen = [run for run in chosen if run not in changed] + (changed if data["value"] else [])
        return {self.selected: chosen, self.table: self.draw(page, query, chosen)[self.table]}

    @handler
    def browse(
        self, event: gr.EventData, query: dict[str, str], chosen: list[int], new: dict[str, bool], *values: object
    ) -> Updates:
        """Do what changes no run: sort, filter, clear the selection, open the dialog, the first steps."""
        data, name = event._data, event._data["action"]
        if name in ("sort", "tag", "clear", "differing"):
            changes: JsonObject = DEFAULTS if name == "clear" else {name: data.get(name)}
            if name == "differing":
                changes = {"columns": self.runs.run_columns(differing=chosen).settings[:MAX_COLUMNS]}
            form = self.filters.named(values) | changes
            query = self.filters.query(list(form.values()))
            fields: Updates = {self.filters.fields[item][0]: value for item, value in changes.items()}
            columns, sort = self.columns, self.filters.fields["sort"][0]
            if columns in fields:
                fields[columns] = gr.update(choices=changes["columns"], value=changes["columns"])
            if sort in fields:
                fields[sort] = gr.update(choices=sort_choices(form["sort"]), value=form["sort"])
            return {self.address: query, **fields, **self.listing(query, chosen)}
        if name == "unfold":
            query = {**query, "open": "" if query.get("open") == data["group"] else data["group"]}
            return {self.address: Replacement(query), **self.listing(query, chosen)}
        if name == "unselect":
            return {self.selected: [], **self.listing(query, [])}
        if name == "notes":
            return {self.dialog: self.notes_dialog(int(data["run"]), data["name"], data["tags"].split("\n"))}
        if name == "hide":
            stays = self.content(query, chosen, {**new, "hidden": True})[self.live]
            return {self.newcomer: {**new, "hidden": True}, self.live: stays}
        found = self.studio.dialogues.welcome_dialogue()
        if found is None:
            raise NotFoundError("There are no dialogues yet.", fix="Start the preset first_look.")
        link = page_url("dialogues", run=found.run, dialogue=found.event_id)
        return {self.newcomer: {**new, "read": True}, self.address: link}

    @handler
    def click(self, event: gr.EventData, query: dict[str, str], chosen: list[int], new: dict[str, bool]) -> Updates:
        """Do an action of runs, of the queue or of a schedule."""
        try:
            chosen = act(self.studio, event._data, chosen)
        except RL2FError as error:  # another user was faster: show the runs as they are
            gr.Warning(str(error))
        return {self.selected: chosen, **self.content(query, chosen, new)}

    @handler
    def enable(self, event: gr.EventData) -> Element:
        """Enable or disable a schedule."""
        self.runs.enable_schedule(int(event._data["schedule"]), event._data["value"])
        return view.scheduler(self.runs.list_schedules(), self.runs.job_problems(), self.writable)

    # -- dialog of tags and notes ----------------------------------------------------------------------------------
    def notes_dialog(self, run: int, name: str, own: list[str]) -> Element:
        """Return the dialog of a run."""
        known = sorted({*self.runs.run_facets()["tags"], *filter(None, own)})
        return notes_dialog(run, name, own, known, self.studio.run.list_notes(run))

    @handler
    def save_notes(self, event: gr.EventData) -> None:
        """Save tags and notes, and close the dialog."""
        run, fields = int(event._data["run"]), event._data["fields"]
        words = [*fields.get("tag", []), *(word.strip() for word in fields["new"][0].split(","))]
        self.studio.run.tag_run(run, [word for word in words if word])
        for note in fields.get("deleted", []):
            self.studio.run.delete_note(run, int(note))
        if fields["note"][0].strip():
            self.studio.run.add_note(run, fields["note"][0])


def link_below(counts: Mapping[str, int]) -> Element | None:
    """Return a link to what stands below the list of runs, with its counts."""
    text = ", ".join(plural(count, noun) for noun, count in counts.items() if count)
    return el("a.rl-small", f"{text} ↓", href="#runs-jobs") if text else None


def statuses(form: Mapping[str, str]) -> Sequence[str] | None:
    """Return the statuses of a filter: of finished runs if it is empty, None for `any`."""
    if form["status"] == "any":
        return None
    return [word for word in form["status"].split(",") if word] or ENDED


def run_filter(query: Query) -> RunFilter:
    """Return the filter of the address; jobs of runs are included if their kind, or any kind, is chosen."""
    form = {**DEFAULTS, **query}
    given = {name: form[name] for name in ("search", *FACETS)} | {"status": statuses(form), "jobs": bool(form["kind"])}
    given["kind"] = "" if form["kind"] == ANY else form["kind"]
    order = "sort" if form["sort"] in get_args(RunSort) else "sort_by"
    return validated(RunFilter, {**given, order: form["sort"]})


def chosen_columns(query: Query) -> list[str]:
    """Return the settings and metrics of the address that the table shows."""
    return [name for name in query.get("columns", "").split(",") if name][:MAX_COLUMNS]


def own_choices(value: str) -> list[tuple[str, str]]:
    """Return a choice for a setting by which runs are grouped."""
    return [] if value in ("", "seed") else [(value, value)]


def sort_choices(value: str) -> list[tuple[str, str]]:
    """Return the orders, and that of a column if it is another one."""
    name = value.removeprefix("-")
    known = value in [order for _, order in SORTS]
    return SORTS if known else [*SORTS, (f"{name}, descending" if value.startswith("-") else name, value)]


def is_filtered(query: Query) -> bool:
    """Return whether a filter hides finished runs."""
    return any(query.get(name) for name in DEFAULTS if name not in TABLE)


def facet_choices(name: str, facets: dict[str, list[str]], value: str) -> JsonObject:
    """Return the choices of a filter; it is hidden if there is nothing to choose."""
    found = facets[FACETS[name]]
    known = [*found, *([value] if value and value not in (*found, ANY) else [])]
    first = [("runs", ""), ("runs and jobs", ANY)] if name == "kind" else [(f"any {name}", "")]
    choices = [*first, *((f"#{item}" if name == "tag" else item, item) for item in known)]
    return gr.update(choices=choices, visible=len(found) > 1 or bool(value) or "hidden")


def act(studio: Studio, data: Mapping[str, str], chosen: list[int]) -> list[int]:
    """Do an action of a run, of several runs or of the queue; return the selection afterwards."""
    runs, name = studio.runs, data["action"]
    ids = [int(item) for item in data.get("run", "").split(",") if item]
    if name in ("pause_queue", "resume_queue"):
        (runs.pause_queue if name == "pause_queue" else runs.resume_queue)()
    elif name == "move":
        runs.move_run(ids[0], None if data["before"] == "end" else int(data["before"]))
    elif name == "restore":
        gr.Info(f"{runs.restore_run(ids[0]).name} was restored.")
    elif name == "add_example":
        runs.add_example_runs()
    elif name == "delete_schedule":
        runs.delete_schedule(int(data["schedule"]))
    elif name == "delete":
        deleted = runs.delete_runs(ids)
        if count := len(deleted.deleted):
            gr.Info(f"{plural(count, 'run')} deleted. Restore with the status “deleted”.")
        for kept in deleted.kept:
            gr.Warning(kept.reason)
        return [run for run in chosen if run not in deleted.deleted]
    else:
        change = {"stop": studio.run.stop_run, "abort": studio.run.abort_run, "resume": studio.run.resume_run}[name]
        texts = {"stop": "Stopping {} after this step.", "abort": "Aborting {}.", "resume": "{} queued."}
        for run in map(change, ids):
            was_queued = name == "stop" and run.status == "stopped"
            gr.Info(("{} was removed from the queue." if was_queued else texts[name]).format(run.name))
    return chosen


def ended_runs(studio: Studio, since: float | None) -> EndedRuns:
    """Return the runs that ended after a time, for desktop notifications."""
    now = time.time()
    rows = [] if since is None else studio.runs.list_runs(RunFilter(status=ENDED, sort="-ended"), limit=10).rows
    return {
        "time": now,
        "runs": [
            {"title": run.name, "text": run.status, "url": page_url("run", run=run.id)}
            for run in rows
            if (since or now) < (run.ended or 0) <= now
        ],
    }
