"""Elements of the page Runs, made from the results of its endpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.common.quantities import duration, number, plural
from app.common.urls import page_url
from app.components.elements.run_groups import column_title, group_row, value_cell
from app.components.elements.sparkline import sparkline
from app.components.nodes import Attribute, Element, Node, action, badge, el, empty, page_button, progress, time_ago
from app.endpoints.compare import MAX_RUNS
from app.endpoints.run import ACTIONS
from app.endpoints.runs import ActiveRuns, QueueStatus, RunRow
from app.forms.run_form import FIRST_PRESET
from jobs.db.models import JobLog, ScheduledRun
from jobs.db.paging import Page
from jobs.db.queries.run_groups import RunGroup
from jobs.queue.trash import DeletedRun
from jobs.studies import TAG

HEARTBEAT_SECONDS = 60.0
"""Seconds without a heartbeat after which a card says so."""
Column = tuple[str, str, str]
"""Title, first order of a click, and class of a column."""
FIRST: tuple[Column, ...] = (("Status", "", ""), ("Run", "name", ""))
FACTS: tuple[Column, ...] = (
    ("Environment", "environment", "runs-wide"),
    ("Method", "", "runs-wide"),
    ("Model", "", "runs-wide"),
)
REWARD: tuple[Column, ...] = (("Reward", "-reward", "rl-num"), ("", "", ""))
PROGRESS: tuple[Column, ...] = (("Steps", "", "rl-num runs-wide"), ("Duration", "", "rl-num runs-wide"))
LAST: tuple[Column, ...] = (("Ended", "-ended", ""),)
"""The table's columns; chosen ones replace `FACTS` and `PROGRESS`."""


def stack(*children: Node) -> Element:
    """Return parts below each other."""
    return el("div.rl-page", *children)


def head(writable: bool) -> Element:
    """Return the title of the page and the button for a new run."""
    new = el("a.rl-button.rl-primary.runs-new", "New run", href=page_url("new")) if writable else None
    return stack(el("div.rl-head", el("h1", "Runs"), el("span.rl-grow"), new))


def welcome(read: bool, labeled: bool, started: bool, writable: bool) -> Element:
    """Return the first three steps; a step that is done has a check mark."""
    start = el("a.rl-button.rl-small", "Take a first look", href=page_url("new", preset=FIRST_PRESET))
    steps = [
        _step("Read a dialogue", "hints turn by turn, and what the student made of them", read,
              action("Read a dialogue", "read", style="rl-small", trigger="select")),
        _step("Label a hint", "does it give the answer away?", labeled,
              el("a.rl-button.rl-small", "Label a hint", href=page_url("labels"))),
        _step("Start a run", "the preset first_look takes three to six minutes; the quickstart takes 20 to 30", started,
              start if writable else None),
    ]  # fmt: skip
    return el(
        "section.rl-card.rl-stack.runs-welcome",
        el(
            "div.rl-row",
            el("b.rl-grow", "Welcome. Three steps to start with:"),
            action("Hide", "hide", style="rl-small rl-quiet", trigger="select"),
        ),
        el("ol.runs-steps", steps),
        aria_label="first steps",
    )


def _step(title: str, text: str, done: bool, button: Element | None) -> Element:
    mark = el("span", "✓ " if done else "○ ", class_="rl-right" if done else "rl-muted", aria_hidden="true")
    name = el("span", mark, title if done else button or title, " (done)" if done else None)
    return el("li.rl-row", name, el("span.rl-muted.rl-small", text), data_done=done)


def no_runs(writable: bool) -> Element:
    """Return the content of a workspace without runs."""
    link = el("a.rl-button.rl-primary.runs-start", "Take a first look", href=page_url("new", preset=FIRST_PRESET))
    return empty(
        "No runs yet",
        "A run trains a student with a teacher's hints, or evaluates one. "
        "The preset first_look takes three to six minutes on two cores and shows every part; the quickstart takes "
        "20 to 30 and shows an effect.",
        link if writable else None,
        action("Add the example", "add_example") if writable else None,
    )


# -- running and queued ------------------------------------------------------------------------------------------------
def live(active: ActiveRuns, queue: QueueStatus, now: float) -> list[Node]:
    """Return the running runs as cards, and the queue."""
    cards = el("div.rl-cards", [_card(run, now, not queue.read_only) for run in active.active])
    queued = active.queued_total or queue.paused
    return [
        _section("Running", "running", cards) if active.active else None,
        _section("Queue", "queue", *_queue(active, queue), tools=_queue_tools(queue)) if queued else None,
    ]


def _card(run: RunRow, now: float, writable: bool) -> Element:
    total, heartbeat = run.total, run.heartbeat
    steps = f"{number(run.done)}/{number(total)}" if total else "starting"
    stats = [(number(run.reward), "reward")] if run.reward is not None else []
    stats.append((number(run.tokens_per_second or None), "tokens/s"))
    stats.append((duration(now - run.started if run.started else None), "elapsed"))
    left = el("span", f"ETA {duration(run.eta)}") if run.eta is not None else None
    if heartbeat and now - heartbeat > HEARTBEAT_SECONDS:
        left = el("span.rl-leak", "! no heartbeat since ", time_ago(heartbeat))
    allowed = ACTIONS.get(run.status, ()) if writable else ()
    return el(
        "article.rl-card.rl-stack",
        el(
            "div.rl-row.runs-line",
            badge(run.status, run.detail),
            el("a.rl-grow.rl-cut.runs-name", run.name, href=page_url("run", run=run.id), title=run.name),
            action("Stop", "stop", style="rl-small", run=run.id) if "stop" in allowed else None,
            el("button.rl-button.rl-small.rl-danger", "Abort", **_abort(run)) if "abort" in allowed else None,
            _menu(run, writable),
        ),
        el("div.rl-muted.rl-small.rl-cut", _about(run)),
        progress(run.done, total),
        el(
            "div.rl-row.rl-small.rl-num",
            el("span", f"step {steps}" if total and run.kind == "train" else steps),
            el("span.rl-muted", run.phase) if run.phase else None,
            el("span.rl-grow"),
            left,
        ),
        el(
            "div.rl-row.runs-line",
            el("div.runs-stats", [el("div.rl-stat", el("b", value), el("span", label)) for value, label in stats]),
            el("div.runs-graph", sparkline(run.rewards, 130, 36)),
        ),
        data_run=run.id,
        data_key=f"card{run.id}",
    )


def _abort(run: RunRow) -> dict[str, str | int]:
    text = f"Abort {run.name}? It stops immediately. Progress since the last saved state is lost."
    return {"data_action": "abort", "data_run": run.id, "data_confirm": text, "data_confirm_label": "Abort"}


def _queue_tools(queue: QueueStatus) -> list[Node]:
    label, name = ("Resume queue", "resume_queue") if queue.paused else ("Pause queue", "pause_queue")
    gpus = len(queue.cuda_devices)
    slots = f"Slots: {queue.cpu_slots} CPU{f', {gpus} GPU' if gpus else ''}"
    return [
        None if queue.read_only else action(label, name, style="rl-small"),
        el("span.rl-muted.rl-small", queue.error or slots),
    ]


def _queue(active: ActiveRuns, queue: QueueStatus) -> list[Node]:
    waiting, total = active.queued, active.queued_total
    if not total:
        return [el("p.rl-muted", "Queue paused and empty. New runs wait until it resumes.", role="status")]
    ids: list[int | str | None] = [None, *(run.id for run in waiting), "end", None]
    rows = [_queued(run, i, ids[i - 1], ids[i + 2], not queue.read_only) for i, run in enumerate(waiting, 1)]
    paused = "Queue paused. Running jobs continue; new ones wait."
    return [
        el("div.rl-card.rl-leak", paused, role="status") if queue.paused else None,
        _table(None, rows),
        el("p.rl-muted", f"and {total - len(waiting)} more") if total > len(waiting) else None,
    ]


def _queued(run: RunRow, place: int, above: int | str | None, below: int | str | None, writable: bool) -> Element:
    """Return a row of the queue.

    Args:
        run: The run.
        place: 1-based place.
        above: The run before which it moves up; None for the first one.
        below: The run before which it moves down, or `end`; None for the last one.
        writable: The server changes runs.
    """
    name, run_id = run.name, run.id

    def move(sign: str, word: str, before: int | str | None) -> Element:
        text: dict[str, Attribute] = {"aria_label": f"Move {name} {word}", "run": run_id, "before": before}
        return action(sign, "move", style="rl-icon", title=word.capitalize(), disabled=before is None, **text)

    label = f"Remove {name} from the queue"
    remove = action("×", "stop", style="rl-icon", title="Remove from queue", aria_label=label, run=run_id)
    tools = [move("↑", "up", above), move("↓", "down", below), remove] if writable else None
    link = el("a", name, href=page_url("run", run=run_id))
    return el(
        "tr",
        el("td.rl-num.rl-muted.runs-at", str(place)),
        el("td.runs-main", link, " ", _chips(run), el("div.rl-muted.rl-small", _about(run))),
        el("td.rl-muted.rl-small.runs-when", "added ", time_ago(run.created)),
        el("td.runs-tools", tools, _menu(run, writable)),
        data_run=run_id,
        data_key=f"queued{run_id}",
    )


# -- list --------------------------------------------------------------------------------------------------------------
def runs_table(
    page: Page[RunRow] | Page[RunGroup],
    selected: Collection[int],
    sort: str,
    title: str = "Finished",
    *,
    filtered: bool,
    writable: bool,
    columns: Sequence[str] = (),
    members: Sequence[RunRow] = (),
) -> Element:
    """Return the heading, the bar of the selection and the table of runs, or of groups with the runs of one of them.

    Args:
        page: The rows.
        selected: Numbers of the selected runs.
        sort: Order of the rows.
        title: Heading.
        filtered: A filter hides runs.
        writable: The server changes runs.
        columns: Settings and metrics with a column each.
        members: The runs of the unfolded group.
    """
    runs = [*members, *(row for row in page.rows if isinstance(row, RunRow))]
    bar = _selection(runs, selected, writable, len(page.rows) > len(runs)) if selected else None
    if not page.rows:
        clear = action("Clear filters", "clear", trigger="select") if filtered else None
        return stack(bar, empty("No runs match" if filtered else "No run has finished yet", clear))
    every = el("input", type="checkbox", aria_label="Select all of this page", data_change="select_all",
               checked=all(run in selected for row in page.rows for run in run_ids(row)))  # fmt: skip
    chosen = [(name, f"-{name}", "rl-num") for name in columns]
    shown = [*FIRST, *chosen, *REWARD, *LAST] if columns else [*FIRST, *FACTS, *REWARD, *PROGRESS, *LAST]
    header = el("tr", el("th.runs-box", every), [_header(*column, sort) for column in shown], el("th"))
    rows = []
    for row in page.rows:
        if isinstance(row, RunRow):
            rows.append(_row(row, row.id in selected, writable, columns))
            continue
        opened = [run for run in members if run.id in row.runs]
        rows.append(group_row(row, selected, columns, bool(opened)))
        rows += [_row(run, run.id in selected, writable, columns, "runs-member") for run in opened]
    heading = el("h2", title, el("span.rl-muted.rl-num", f"{page.total:,}"))
    return stack(el("section.rl-stack", heading, bar, _table(header, rows), data_part="list", aria_label=title))


def run_ids(row: RunRow | RunGroup) -> list[int]:
    """Return the numbers of the runs of a row."""
    return [row.id] if isinstance(row, RunRow) else row.runs


def deleted_table(deleted: Sequence[DeletedRun], writable: bool) -> Element:
    """Return the deleted runs with what people entered about them."""
    if not deleted:
        return stack(empty("No deleted run", "Deleted runs stay here until the trash is emptied."))
    rows = []
    for run in deleted:
        counts = [plural(run.labels, "label"), plural(run.notes, "note"), *(f"#{tag}" for tag in run.tags)]
        facts = el("span.rl-muted.rl-small", f" #{run.run} · {' · '.join(counts)}")
        restore = action("Restore", "restore", style="rl-small", run=run.run, aria_label=f"Restore {run.name}")
        rows.append(
            el(
                "tr",
                el("td.runs-status", badge(run.status)),
                el("td.runs-main", el("b", run.name), facts),
                el("td.runs-wide", run.environment),
                el("td.runs-wide", run.method or run.kind),
                el("td.rl-muted.runs-when", "deleted ", time_ago(run.deleted)),
                el("td.runs-tools", restore if writable else None),
            )
        )
    heading = el("h2", "Deleted", el("span.rl-muted.rl-num", f"{len(deleted):,}"))
    return stack(el("section.rl-stack", heading, _table(None, rows), aria_label="Deleted"))


def unreadable(message: str) -> Element:
    """Return an error in the filters of the address."""
    text = el("p.rl-wrong", message, role="alert")
    return stack(el("div.rl-empty", text, action("Clear filters", "clear", trigger="select")))


def pager(page: Page[RunRow] | Page[RunGroup]) -> Element | None:
    """Return the positions of the shown rows, and links to the pages before and after."""
    if not page.rows:
        return None
    last = page.first + len(page.rows) - 1
    turns = [("◄ Previous page", page.before), ("Next page ►", page.after)]
    buttons = [page_button(label, label, cursor) for label, cursor in turns]
    count = el("span.rl-muted.rl-small.rl-num", f"{page.first:,}–{last:,} of {page.total:,}")
    return stack(el("div.rl-row.runs-pager", count, buttons if page.before or page.after else None))


def _header(title: str, order: str, style: str, sort: str) -> Element:
    if not order:
        return el("th", title or None, class_=style, scope="col" if title else None)
    key, is_down = order.removeprefix("-"), sort.startswith("-")
    arrow = direction = None
    if sort.removeprefix("-") == key:
        arrow, direction = (" ↓", "descending") if is_down else (" ↑", "ascending")
        order = key if is_down else f"-{key}"
    short = column_title(title)
    button = el("button.runs-sort", short, arrow, data_action="sort", data_sort=order, data_trigger="select",
                title=title if short != title else None)  # fmt: skip
    return el("th", button, class_=style, scope="col", aria_sort=direction)


def _row(run: RunRow, selected: bool, writable: bool, columns: Sequence[str] = (), style: str = "") -> Element:
    run_id, name = run.id, run.name
    took = None if run.started is None or run.ended is None else run.ended - run.started
    box = el("input", type="checkbox", checked=selected, aria_label=f"Select {name}", data_change="select",
             data_run=run_id)  # fmt: skip
    dialogues = el("a.rl-icon.runs-dialogues", "❝", href=page_url("dialogues", run=run_id), title="Dialogues",
                   aria_label=f"Dialogues of {name}")  # fmt: skip
    has_reason = run.status in ("queued", "failed", "interrupted") and run.detail
    more = f" (+{run.note_count - 1})" if run.note_count > 1 else ""
    return el(
        "tr",
        el("td.runs-box", box),
        el("td.runs-status", badge(run.status, run.detail)),
        el(
            "td.runs-main",
            el("a.runs-name", name, href=page_url("run", run=run_id)),
            " ",
            el("span.rl-muted.rl-small.rl-num", f"#{run_id}"),
            " ",
            _chips(run),
            _remark(run.detail, run.detail) if has_reason else None,
            _remark(f"✎ {run.latest_note}{more}", run.latest_note) if run.latest_note else None,
        ),
        [value_cell(column, run.values.get(column)) for column in columns] if columns else _facts(run),
        el("td.rl-num", number(run.reward), data_label="reward"),
        el("td.runs-spark", sparkline(run.rewards, 84, 22)),
        None
        if columns
        else [
            el("td.rl-num.runs-wide", f"{number(run.done)}/{number(run.total)}" if run.total else "–"),
            el("td.rl-num.runs-wide", duration(took)),
        ],
        el("td.rl-muted.runs-when", time_ago(run.ended or run.created)),
        el("td.runs-tools", dialogues, _menu(run, writable)),
        class_=style or None,
        data_run=run_id,
        data_key=f"run{run_id}",
    )


def _facts(run: RunRow) -> list[Element]:
    kind = run.method if run.kind == "train" else run.kind
    return [el("td.runs-wide", run.environment), el("td.runs-wide", kind), el("td.runs-wide.rl-muted", run.model)]


def _remark(text: str, title: str) -> Element:
    return el("div.rl-small.rl-muted.runs-note", text, title=title)


def _selection(rows: Sequence[RunRow], selected: Collection[int], writable: bool, grouped: bool) -> Element:
    def permitted(name: str) -> list[RunRow]:
        return [run for run in rows if writable and run.id in selected and name in ACTIONS.get(run.status, ())]

    def ids(listed: Sequence[RunRow]) -> str:
        return ",".join(str(run.id) for run in listed)

    resumable, deletable = permitted("resume"), permitted("delete")
    several = ",".join(map(str, sorted(selected))) if len(selected) > 1 else ""
    compare = el(
        "a.rl-button.rl-small.runs-compare",
        "Compare",
        href=page_url("compare", runs=several, seeds=1 if grouped else None),
    )
    if not 1 < len(selected) <= MAX_RUNS:
        compare = el("button.rl-button.rl-small", "Compare", disabled=True, title=f"Select 2 to {MAX_RUNS} runs")
    return el(
        "div.rl-row.runs-bulk",
        el("b", f"{len(selected)} selected", role="status"),
        compare,
        action("Show differing settings", "differing", style="rl-small", trigger="select") if several else None,
        action(f"Resume {len(resumable)}", "resume", style="rl-small", run=ids(resumable)) if resumable else None,
        action(f"Delete {len(deletable)}…", "delete", style="rl-small rl-danger", run=ids(deletable),
               confirm=_delete_text(deletable)) if deletable else None,
        action("Clear selection", "unselect", style="rl-small rl-quiet", trigger="select"),
        data_key="selection",
    )  # fmt: skip


def _delete_text(rows: Sequence[RunRow]) -> str:
    name, their = (rows[0].name, "its") if len(rows) == 1 else (f"{len(rows)} runs", "their")
    return (
        f"Delete {name} with {their} dialogues, labels, notes and checkpoints? "
        "With the status “deleted” you can restore all of it, by default for 30 days."
    )


# -- schedules ---------------------------------------------------------------------------------------------------------
def scheduler(planned: Sequence[ScheduledRun], problems: Sequence[JobLog], writable: bool) -> Element:
    """Return the schedules, and the errors of the scheduler."""
    titles = ("On", "Schedule", "Next", "Last", "")
    header = el("tr", [el("th", title or None, scope="col" if title else None) for title in titles])
    listed = _table(header, [_schedule(item, writable) for item in planned])
    failed = _table(None, [_problem(item) for item in problems])
    return stack(
        _section("Schedules", "schedules", listed) if planned else None,
        _section("Scheduler errors", "trouble", failed) if problems else None,
    )


def _schedule(schedule: ScheduledRun, writable: bool) -> Element:
    name, key = schedule.name, schedule.id
    times = {"date": f"once, at {schedule.when}", "nightly": f"evaluates the newest checkpoint, {schedule.when}"}
    when = f"{times.get(schedule.trigger, schedule.when)} {schedule.timezone}"
    box = el("input", type="checkbox", checked=schedule.enabled, disabled=not writable, value=key,
             aria_label=f"{name} is on", data_change="schedule", data_schedule=key)  # fmt: skip
    off = el("span.rl-muted", "never" if schedule.enabled else "off")
    remove = action("Delete…", "delete_schedule", style="rl-small rl-quiet", schedule=key,
                    confirm=f"Delete the schedule {name}? Its runs remain.")  # fmt: skip
    return el(
        "tr",
        el("td.runs-box", box),
        el("td.runs-main", name, el("div.rl-muted.rl-small.rl-mono", when)),
        el("td", time_ago(schedule.next_run) if schedule.next_run else off),
        el("td.rl-muted", time_ago(schedule.last_run)),
        el("td.runs-tools", remove if writable else None),
        data_schedule=key,
        data_key=f"schedule{key}",
    )


def _problem(problem: JobLog) -> Element:
    sign, style = ("✗ failed", "rl-wrong") if problem.outcome == "failed" else ("! missed", "rl-leak")
    return el(
        "tr",
        el("td.rl-muted.runs-when", time_ago(problem.time)),
        el("td", el("span", sign, class_=style)),
        el("td", problem.job),
        el("td.runs-main.rl-muted", el("div.runs-note", problem.detail)),
        data_key=f"problem{problem.id}",
    )


# -- parts of several lists --------------------------------------------------------------------------------------------
def _section(title: str, part: str, *children: Node, tools: Sequence[Node] = ()) -> Element:
    head = el("div.rl-row", el("h2", title), *tools)
    return el("section.rl-stack", head, *children, data_part=part, aria_label=title)


def _table(header: Element | None, rows: Sequence[Element]) -> Element:
    content = el("table.rl-table", el("thead", header) if header else None, el("tbody", rows))
    return el("div.rl-card.runs-table", content)


def _about(run: RunRow) -> str:
    return " · ".join(text for text in (run.environment, run.method or run.kind, run.model) if text)


def _chips(run: RunRow) -> list[Node]:
    origin = run.origin or ""
    return [
        el("span.rl-chip", "example", title="Recorded on another machine") if origin == "example" else None,
        el("span.rl-chip", "scheduled", title=origin) if origin.startswith("schedule:") else None,
        *map(_tag, run.tags),
    ]


def _tag(tag: str) -> Element:
    """Return a tag that shows its runs, or the report of a study."""
    if tag.startswith(TAG):
        report = page_url("compare", study=tag.removeprefix(TAG))
        return el("a.rl-chip", tag, href=report, title="Report of the study")
    return el("button.rl-chip.runs-tag", f"#{tag}", title=f"Show runs tagged {tag}", data_action="tag", data_tag=tag,
              data_trigger="select")  # fmt: skip


def _menu(run: RunRow, writable: bool) -> Element:
    run_id, name = run.id, run.name
    buttons: dict[str, Element] = {
        "stop": el("button", "Remove from queue" if run.status == "queued" else "Stop",
                   data_action="stop", data_run=run_id),
        "abort": el("button.rl-danger", "Abort…", **_abort(run)),
        "resume": el("button", "Resume", data_action="resume", data_run=run_id),
        "delete": el("button.rl-danger", "Delete…", data_action="delete", data_run=run_id,
                     data_confirm=_delete_text([run])),
    }  # fmt: skip
    changes = [
        el("a", "Clone", href=page_url("new", clone=run_id)),
        el("a", "Export", href=page_url("exports", runs=run_id)),
        el("button", "Tags and notes…", data_action="notes", data_run=run_id, data_name=name,
           data_tags="\n".join(run.tags), data_trigger="select"),
        *(buttons[item] for item in ACTIONS.get(run.status, ())),
    ]  # fmt: skip
    return el(
        "details.rl-menu",
        el("summary.rl-icon", "⋯", aria_label=f"Actions of {name}", title="Actions"),
        el(
            "div.rl-menu-items",
            el("a", "Open", href=page_url("run", run=run_id)),
            el("a", "Dialogues", href=page_url("dialogues", run=run_id)),
            changes if writable else None,
        ),
        data_key=f"menu{run_id}",
    )
