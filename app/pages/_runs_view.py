"""Elements of the page Runs, made from the results of its endpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.common.quantities import duration, number
from app.common.urls import page_url
from app.components.nodes import Element, Node, action, badge, el, empty, progress, time_ago
from app.components.sparkline import sparkline
from app.endpoints.run import ACTIONS
from app.pages._runs_frame import section, stack, table

if TYPE_CHECKING:
    from app.endpoints.run import RunNote
    from app.endpoints.runs import ActiveRuns, QueueStatus, RunPage, RunRow

HEARTBEAT_SECONDS = 60.0
"""Seconds without a heartbeat after which a card says so."""
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Status", "", ""),
    ("Run", "name", ""),
    ("Environment", "environment", "runs-wide"),
    ("Method", "", "runs-wide"),
    ("Model", "", "runs-wide"),
    ("Reward", "-reward", "rl-num"),
    ("", "", ""),
    ("Steps", "", "rl-num runs-wide"),
    ("Duration", "", "rl-num runs-wide"),
    ("Ended", "-ended", ""),
)
"""Title, first order of a click, and class of each column."""


@dataclass(frozen=True)
class Steps:
    """What a new user has done."""

    read: bool
    labeled: bool
    started: bool


def head(writable: bool) -> Element:
    """Return the title of the page and the button for a new run."""
    new = el("a.rl-button.rl-primary.runs-new", "New run", href=page_url("new")) if writable else None
    return stack(el("div.rl-head", el("h1", "Runs"), el("span.rl-grow"), new))


def welcome(steps: Steps, writable: bool) -> Element:
    """Return the first three steps; a step that is done has a check mark."""
    start = el("a.rl-button.rl-small", "Start the quickstart", href=page_url("new", preset="quickstart"))
    listed = [
        ("Read a dialogue", "hints turn by turn, and what the student made of them", steps.read,
         action("Read a dialogue", "read", style="rl-small")),
        ("Label a hint", "does it give the answer away?", steps.labeled,
         el("a.rl-button.rl-small", "Label a hint", href=page_url("labels"))),
        ("Start the quickstart", "a small training run of some minutes", steps.started, start if writable else None),
    ]  # fmt: skip
    return stack(
        el(
            "section.rl-card.rl-stack.runs-welcome",
            el(
                "div.rl-row",
                el("b.rl-grow", "Welcome. Three steps to start with:"),
                action("Hide", "hide", style="rl-small rl-quiet"),
            ),
            el("ol.runs-steps", [_step(*step) for step in listed]),
            aria_label="first steps",
        )
    )


def _step(title: str, text: str, done: bool, button: Element | None) -> Element:
    mark = el("span", "✓ " if done else "○ ", class_="rl-right" if done else "rl-muted", aria_hidden="true")
    name = el("span", mark, title if done else button or title, " (done)" if done else None)
    return el("li.rl-row", name, el("span.rl-muted.rl-small", text), data_done=done)


def no_runs(writable: bool) -> Element:
    """Return the content of a workspace without runs."""
    link = el("a.rl-button.rl-primary.runs-start", "Start the quickstart", href=page_url("new", preset="quickstart"))
    return stack(
        empty(
            "No runs yet",
            "A run trains a student with a teacher's hints, or evaluates one. "
            "The quickstart takes some minutes on two cores.",
            *([link] if writable else []),
        )
    )


# -- running and queued ------------------------------------------------------------------------------------------------
def live(active: ActiveRuns, queue: QueueStatus, now: float) -> Element:
    """Return the running runs as cards, and the queue."""
    writable = not queue["read_only"]
    cards = el("div.rl-cards", [_card(run, now, writable) for run in active["active"]])
    queued = active["queued_total"] or queue["paused"]
    return stack(
        section("Running", "running", cards) if active["active"] else None,
        section("Queue", "queue", *_queue(active, queue), tools=_queue_tools(queue)) if queued else None,
    )


def _card(run: RunRow, now: float, writable: bool) -> Element:
    total = run["total"]
    steps = f"{number(run['done'])}/{number(total)}" if total else "starting"
    stats = [(number(run["reward"]), "reward")] if run["reward"] is not None else []
    stats.append((number(run["tokens_per_second"] or None), "tokens/s"))
    stats.append((duration(now - run["started"] if run["started"] else None), "elapsed"))
    return el(
        "article.rl-card.rl-stack",
        el(
            "div.rl-row.runs-line",
            badge(run["status"], run["detail"]),
            el("a.rl-grow.rl-cut.runs-name", run["name"], href=page_url("run", run=run["id"]), title=run["name"]),
            _buttons(run) if writable else None,
            _menu(run, writable),
        ),
        el("div.rl-muted.rl-small.rl-cut", _about(run)),
        progress(run["done"], total),
        el(
            "div.rl-row.rl-small.rl-num",
            el("span", f"step {steps}" if total and run["kind"] == "train" else steps),
            el("span.rl-muted", run["phase"]) if run["phase"] else None,
            el("span.rl-grow"),
            _time_left(run, now),
        ),
        el(
            "div.rl-row.runs-line",
            el("div.runs-stats", [el("div.rl-stat", el("b", value), el("span", label)) for value, label in stats]),
            el("div.runs-graph", sparkline(run["rewards"], 130, 36)),
        ),
        data_run=run["id"],
        data_key=f"card{run['id']}",
    )  # fmt: skip


def _time_left(run: RunRow, now: float) -> Element | None:
    heartbeat = run["heartbeat"]
    if heartbeat and now - heartbeat > HEARTBEAT_SECONDS:
        return el("span.rl-leak", "! no heartbeat since ", time_ago(heartbeat))
    return el("span", f"ETA {duration(run['eta'])}") if run["eta"] is not None else None


def _buttons(run: RunRow) -> list[Node]:
    allowed = ACTIONS.get(run["status"], ())
    return [
        action("Stop", "stop", style="rl-small", run=run["id"]) if "stop" in allowed else None,
        el("button.rl-button.rl-small.rl-danger", "Abort", **_abort(run)) if "abort" in allowed else None,
    ]


def _abort(run: RunRow) -> dict[str, str | int]:
    text = f"Abort {run['name']}? It stops immediately. Progress since the last saved state is lost."
    return {"data_action": "abort", "data_run": run["id"], "data_confirm": text, "data_confirm_label": "Abort"}


def _queue_tools(queue: QueueStatus) -> list[Node]:
    label, name = ("Resume queue", "resume_queue") if queue["paused"] else ("Pause queue", "pause_queue")
    gpus = len(queue["cuda_devices"])
    slots = f"Slots: {queue['cpu_slots']} CPU{f', {gpus} GPU' if gpus else ''}"
    return [
        None if queue["read_only"] else action(label, name, style="rl-small"),
        el("span.rl-muted.rl-small", queue["error"] or slots),
    ]


def _queue(active: ActiveRuns, queue: QueueStatus) -> list[Node]:
    waiting, total = active["queued"], active["queued_total"]
    if not total:
        return [el("p.rl-muted", "Queue paused and empty. New runs wait until it resumes.", role="status")]
    ids: list[int | str | None] = [None, *(run["id"] for run in waiting), "end", None]
    rows = [_queued(run, i, ids[i - 1], ids[i + 2], not queue["read_only"]) for i, run in enumerate(waiting, 1)]
    paused = "Queue paused. Running jobs continue; new ones wait."
    return [
        el("div.rl-card.rl-leak", paused, role="status") if queue["paused"] else None,
        table(None, rows),
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
    name, number_ = run["name"], run["id"]

    def move(sign: str, word: str, before: int | str | None) -> Element:
        return el(
            "button.rl-icon", sign, title=word.capitalize(), disabled=before is None,
            aria_label=f"Move {name} {word}", data_action="move", data_run=number_, data_before=before,
        )  # fmt: skip

    tools = [
        move("↑", "up", above),
        move("↓", "down", below),
        el("button.rl-icon", "×", title="Remove from queue", data_action="stop",
           data_run=number_, aria_label=f"Remove {name} from the queue"),
    ]  # fmt: skip
    return el(
        "tr",
        el("td.rl-num.rl-muted.runs-at", str(place)),
        el(
            "td.runs-main",
            el("a", name, href=page_url("run", run=number_)),
            " ",
            _chips(run),
            el("div.rl-muted.rl-small", _about(run)),
        ),
        el("td.rl-muted.rl-small.runs-when", "added ", time_ago(run["created"])),
        el("td.runs-tools", tools if writable else None, _menu(run, writable)),
        data_run=number_,
        data_key=f"queued{number_}",
    )


# -- list --------------------------------------------------------------------------------------------------------------
def table_heading(status: str) -> Element:
    """Return the heading above the filters."""
    return stack(el("h2", "Finished" if not status else "All runs" if status == "any" else "Runs"))


def runs_table(page: RunPage, selected: Collection[int], sort: str, *, filtered: bool, writable: bool) -> Element:
    """Return the bar of the selection and the table of runs."""
    if not page["rows"]:
        title = "No runs match" if filtered else "No run has finished yet"
        clear = [action("Clear filters", "clear")] if filtered else []
        return stack(_selection(page["rows"], selected, writable), empty(title, *clear))
    all_selected = all(run["id"] in selected for run in page["rows"])
    every = el("input", type="checkbox", aria_label="Select all of this page", checked=all_selected, value="all",
               data_change="select_all")  # fmt: skip
    header = el("tr", el("th.runs-box", every), [_header(*column, sort) for column in COLUMNS], el("th"))
    rows = [_row(run, run["id"] in selected, writable) for run in page["rows"]]
    return stack(
        el(
            "section.rl-stack",
            _selection(page["rows"], selected, writable),
            table(header, rows),
            data_part="list",
            aria_label="Finished",
        )
    )


def unreadable(message: str) -> Element:
    """Return an error in the filters of the address."""
    text = el("p.rl-wrong", message, role="alert")
    return stack(el("div.rl-empty", text, action("Clear filters", "clear")))


def pager(page: RunPage) -> Element:
    """Return the positions of the shown runs, and links to the pages before and after."""
    if not page["rows"]:
        return stack()
    last = page["first"] + len(page["rows"]) - 1
    turns = [("◄ Previous page", page["before"]), ("Next page ►", page["after"])]
    buttons = [
        el("button.rl-button.rl-small", label, disabled=cursor is None, data_action="turn",
           data_cursor=cursor)
        for label, cursor in turns
    ]  # fmt: skip
    count = el("span.rl-muted.rl-small.rl-num", f"{page['first']:,}–{last:,} of {page['total']:,}")
    return stack(el("div.rl-row.runs-pager", count, buttons if page["before"] or page["after"] else None))


def _header(title: str, order: str, style: str, sort: str) -> Element:
    if not order:
        return el("th", title or None, class_=style, scope="col" if title else None)
    key = order.removeprefix("-")
    if sort.removeprefix("-") != key:
        return el("th", _sort_button(title, "", order), class_=style, scope="col")
    down = sort.startswith("-")
    button = _sort_button(title, " ↓" if down else " ↑", key if down else f"-{key}")
    return el("th", button, class_=style, scope="col", aria_sort="descending" if down else "ascending")


def _sort_button(title: str, arrow: str, order: str) -> Element:
    return el("button.runs-sort", title, arrow, data_action="sort", data_sort=order)


def _row(run: RunRow, selected: bool, writable: bool) -> Element:
    took = run["ended"] - run["started"] if run["started"] and run["ended"] else None
    box = el("input", type="checkbox", checked=selected, aria_label=f"Select {run['name']}", value=run["id"],
             data_change="select")  # fmt: skip
    has_reason = run["status"] in ("queued", "failed", "interrupted") and run["detail"]
    more = f" (+{run['note_count'] - 1})" if run["note_count"] > 1 else ""
    return el(
        "tr",
        el("td.runs-box", box),
        el("td.runs-status", badge(run["status"], run["detail"])),
        el(
            "td.runs-main",
            el("a.runs-name", run["name"], href=page_url("run", run=run["id"])),
            " ",
            el("span.rl-muted.rl-small.rl-num", f"#{run['id']}"),
            " ",
            _chips(run),
            _remark(run["detail"], run["detail"]) if has_reason else None,
            _remark(f"✎ {run['latest_note']}{more}", run["latest_note"]) if run["latest_note"] else None,
        ),
        el("td.runs-wide", run["environment"]),
        el("td.runs-wide", run["method"] if run["kind"] == "train" else run["kind"]),
        el("td.runs-wide.rl-muted", run["model"]),
        el("td.rl-num.runs-reward", number(run["reward"])),
        el("td.runs-spark", sparkline(run["rewards"], 84, 22)),
        el("td.rl-num.runs-wide", f"{number(run['done'])}/{number(run['total'])}" if run["total"] else "–"),
        el("td.rl-num.runs-wide", duration(took)),
        el("td.rl-muted.runs-when", time_ago(run["ended"] or run["created"])),
        el("td.runs-tools", _dialogues_link(run), _menu(run, writable)),
        data_run=run["id"],
        data_key=f"run{run['id']}",
    )


def _remark(text: str, title: str) -> Element:
    return el("div.rl-small.rl-muted.runs-note", text, title=title)


def _dialogues_link(run: RunRow) -> Element:
    return el("a.rl-icon.runs-dialogues", "❝", href=page_url("dialogues", run=run["id"]), title="Dialogues",
              aria_label=f"Dialogues of {run['name']}")  # fmt: skip


def _selection(rows: Sequence[RunRow], selected: Collection[int], writable: bool) -> Element | None:
    if not selected:
        return None
    permitted = {
        name: [run for run in rows if run["id"] in selected and name in ACTIONS.get(run["status"], ())]
        for name in ("resume", "delete")
    }
    resumable, deletable = permitted["resume"], permitted["delete"]
    compare: Node = el("button.rl-button.rl-small", "Compare", disabled=True,
                       title="Select two runs or more")  # fmt: skip
    if len(selected) > 1:
        runs = ",".join(map(str, sorted(selected)))
        compare = el("a.rl-button.rl-small.runs-compare", "Compare", href=page_url("compare", runs=runs))
    return el(
        "div.rl-row.runs-bulk",
        el("b", f"{len(selected)} selected", role="status"),
        compare,
        _of_all("Resume", "resume", resumable) if resumable and writable else None,
        _of_all("Delete", "delete", deletable) if deletable and writable else None,
        action("Clear selection", "unselect", style="rl-small rl-quiet"),
        data_key="selection",
    )


def _of_all(label: str, name: str, rows: Sequence[RunRow]) -> Element:
    ids = ",".join(str(run["id"]) for run in rows)
    if name != "delete":
        return action(f"{label} {len(rows)}", name, style="rl-small", run=ids)
    return action(f"{label} {len(rows)}…", name, style="rl-small rl-danger", run=ids, confirm=_delete_text(rows))


def _delete_text(rows: Sequence[RunRow]) -> str:
    one = len(rows) == 1
    name, subject, files = (
        (rows[0]["name"], "The run", "Its") if one else (f"{len(rows)} runs", "The runs", "Their")
    )  # fmt: skip
    deleted = "is" if one else "are"
    return (
        f"Delete {name}? {subject} with all dialogues, labels, notes and checkpoints {deleted} deleted. "
        f"{files} files stay in the workspace's trash for a while."
    )


# -- parts of several lists --------------------------------------------------------------------------------------------
def _about(run: RunRow) -> str:
    return " · ".join(text for text in (run["environment"], run["method"] or run["kind"], run["model"]) if text)


def _chips(run: RunRow) -> list[Node]:
    origin = run["origin"] or ""
    return [
        el("span.rl-chip", "example") if origin == "example" else None,
        el("span.rl-chip", "scheduled", title=origin) if origin.startswith("schedule:") else None,
        *(
            el("button.rl-chip.runs-tag", f"#{tag}", title=f"Show runs tagged {tag}",
               data_action="tag", data_tag=tag)
            for tag in run["tags"]
        ),
    ]  # fmt: skip


def _menu(run: RunRow, writable: bool) -> Element:
    number_, name = run["id"], run["name"]
    labels = {"stop": "Remove from queue" if run["status"] == "queued" else "Stop", "resume": "Resume"}

    def act(each: str) -> Element:
        if each == "abort":
            return el("button.rl-danger", "Abort…", **_abort(run))
        data: dict[str, str | int] = {"data_action": each, "data_run": number_}
        if each == "delete":
            data["data_confirm"] = _delete_text([run])
            return el("button.rl-danger", "Delete…", **data)
        return el("button", labels[each], **data)

    changes = [
        el("a", "Clone", href=page_url("new", clone=number_)),
        el("a", "Export", href=page_url("exports", runs=number_)),
        el("button", "Tags and notes…", data_action="notes", data_run=number_, data_name=name,
           data_tags="\n".join(run["tags"])),
        *(act(each) for each in ACTIONS.get(run["status"], ())),
    ]  # fmt: skip
    return el(
        "details.rl-menu",
        el("summary.rl-icon", "⋯", aria_label=f"Actions of {name}", title="Actions"),
        el(
            "div.rl-menu-items",
            el("a", "Open", href=page_url("run", run=number_)),
            el("a", "Dialogues", href=page_url("dialogues", run=number_)),
            changes if writable else None,
        ),
        data_key=f"menu{number_}",
    )


def notes(listed: Sequence[RunNote]) -> Element:
    """Return the notes of a run in its dialog."""
    rows = [
        el(
            "div.rl-row.runs-line",
            el("div.rl-grow.rl-small", el("div.runs-note", note["text"]), time_ago(note["time"])),
            action("Delete", "delete_note", style="rl-small rl-quiet", note=note["id"]),
            data_key=f"note{note['id']}",
        )
        for note in listed
    ]
    return stack(el("h3", "Notes") if rows else None, *rows)
