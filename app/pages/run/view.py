"""Elements of the page Run, made from the endpoints' data."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from app.common.quantities import duration, plural
from app.common.urls import page_url
from app.components.elements.dialogue_list import dialogue_list
from app.components.elements.evaluation_view import conclusions_card, dialogues_link, evaluation_sheet
from app.components.elements.leak_trust import trust_section
from app.components.nodes import Attribute, Element, Node, action, badge, el, empty, progress, table, time_ago
from app.endpoints.chat import ChatMemory
from app.endpoints.leaks.detector_cards import DetectorCard
from app.endpoints.run import RunCheckpoint, RunDetails, RunLog, RunStage
from app.endpoints.runs import RunRow
from app.forms.estimate import ELSEWHERE
from app.pages.run.tabs import RunTab, tab_links
from jobs.db.dialogue_models import DialogueSummary
from jobs.db.models import ACTIVE, Log, NoteSummary, RunSummary
from rl2f_core.errors import rl2f_command
from rl2f_core.types import JsonObject

MAX_LISTED_CHECKPOINTS = 5
"""Newest checkpoints on the tab Overview."""
MODEL_FORMATS = {
    "safetensors": "Merged model (safetensors)",
    "peft": "Adapter (PEFT)",
    "gguf-f16": "GGUF f16",
    "gguf-q8_0": "GGUF q8_0",
}
"""Formats in the menu of a checkpoint; `rl2f models export` has more."""
NO_FILES = "its files were not kept"
ABORT = "Stops immediately. Progress since the last saved state is lost."


# -- pages without a run -------------------------------------------------------------------------------------------
def not_found(text: str, fix: str = "It may have been deleted, or the link is wrong.") -> Element:
    """Return the page of a run that does not exist."""
    return empty(text, fix, el("a.rl-button.rl-primary", "All runs", href="/"), role="alert")


def run_choice(rows: Sequence[RunRow]) -> Element:
    """Return a list of runs to choose from."""
    if not rows:
        start = el("a.rl-button.rl-primary", "New run", href="/new")
        return empty("There is no run yet.", "Start one, then watch it here.", start)
    body = [
        el(
            "tr",
            el("td.rl-num", str(row.id)),
            el("td", el("a", row.name, href=page_url("run", run=row.id))),
            el("td", badge(row.status)),
            el("td.rl-muted", " · ".join(filter(None, [row.environment, row.method]))),
            el("td.rl-muted", time_ago(row.created)),
        )
        for row in rows
    ]
    return el(
        "div.rl-section",
        el("h1.rl-title", "Which run?"),
        el("div.rl-card", table((), body)),
    )


# -- heading -------------------------------------------------------------------------------------------------------
def heading(details: RunDetails, tab: RunTab, read_only: bool) -> Element:
    """Return name, facts, status, actions, notices and tabs of a run."""
    run = details.run
    active = run.status in ACTIVE
    return el(
        "div.rl-stack.rl-run-head",
        el(
            "div.rl-head",
            el("h1", run.name, title=run.folder),
            el("div.rl-run-facts", _facts(details, active)),
            el("div.rl-run-state", el("span.rl-row", _state(run, active)), _buttons(details, read_only)),
        ),
        _notices(details, active),
        tab_links(run.id, tab, switch=True),
    )


def _facts(details: RunDetails, active: bool) -> Iterable[Node]:
    run = details.run
    kind = None if run.kind == "train" else run.kind
    for text in (f"run {run.id}", kind, run.environment, run.method):
        if text:
            yield el("span", text)
    model = run.model.rstrip("/").rpartition("/")[2]
    if model:
        yield el("span", model, title=run.model)
    if active and run.tokens_per_second:
        yield el("span.rl-num", f"{run.tokens_per_second:,.0f} tokens/s")
    yield el("span", f"seed {run.seed}")
    if details.teacher_costs:
        title = "model teacher, training and evaluation together"
        yield el("span", f"teacher: {details.teacher_costs}", title=title)
    if run.parent:
        yield el("span", el("a", f"from run {run.parent}", href=page_url("run", run=run.parent)))


def _state(run: RunSummary, active: bool) -> Iterable[Node]:
    yield badge(run.status, run.detail)
    total = run.total
    position = f"step {run.done:,.0f}/{total:,.0f}" if total else run.phase
    if position:
        yield el("span.rl-num", position)
    if active and run.phase and total:
        yield el("span.rl-muted", run.phase)
    if active and run.eta is not None:
        yield el("span.rl-num", f"ETA {duration(run.eta)}")
    if not active and run.started and run.ended:
        length, place = duration(run.ended - run.started), " on another machine" if run.origin in ELSEWHERE else ""
        yield el("span.rl-muted", "ended ", time_ago(run.ended), f", duration {length}{place}")


def _buttons(details: RunDetails, read_only: bool) -> Element:
    run, run_id = details.run, details.run.id

    refused = run.detail if run.status == "failed" and "not worth starting" in (run.detail or "") else None
    main = "" if refused else "rl-primary"

    def act(name: str, label: str, title: str, style: str = "", confirm: str | None = None) -> Element | None:
        if name not in details.actions:
            return None
        asked: dict[str, Attribute] = {"confirm": confirm, "confirm_label": label if name == "abort" else None}
        return action(label, name, style=f"rl-small {style}", title=title, disabled=read_only, **asked)

    def link(label: str, url: str, title: str = "", style: str = "") -> Element:
        return el("a.rl-button.rl-small", label, href=url, title=title or None, class_=style)

    fork_url, by_value = page_url("fork", fork=run_id), page_url("dialogues", run=run.parent, order="-worth")
    delete = f"Delete run {run_id}, {run.name}, with its dialogues, labels, notes and files? Runs can restore it."
    return el(
        "span.rl-row",
        act("stop", "Remove from queue" if run.status == "queued" else "Stop", "Stops after this step and saves"),
        act("abort", "Abort", ABORT, "rl-danger", f"Abort run {run_id}? {ABORT}"),
        link("Change the configuration", page_url("new", clone=run_id), refused, "rl-primary") if refused else None,
        act("resume", "Resume" if run.sessions else "Start", "Resumes from the last saved state", main),
        link("View fork results", fork_url, "Continuations of the forked dialogue", "rl-primary")
        if run.kind == "fork"
        else None,
        link("Sort by hint value", by_value, "Dialogues by the value of their hints", "rl-primary")
        if run.kind == "hint_value" and run.parent
        else None,
        files_link(run),
        link("Clone", page_url("new", clone=run_id), "A new run with this configuration"),
        link("Compare", page_url("compare", runs=run_id)),
        link("Export", page_url("exports", run=run_id), "Its dialogues as datasets"),
        act("delete", "Delete", "Deletes the run and its files", "rl-danger", delete),
    )


def _notices(details: RunDetails, active: bool) -> Iterable[Node]:
    run = details.run
    status, detail = run.status, run.detail
    if active and status != "queued":
        yield progress(run.done, run.total)
    if status == "stopping":
        steps = {"": "the current step", "starting": "the start"}
        what = steps.get(run.phase or "", f"the current step of {run.phase}")
        text = f"Stopping: waits until {what} has ended and is saved. Abort stops immediately, without saving."
        yield el("div.rl-alert", text)
    if status == "queued":
        start = "The queue is paused: resume it to start." if details.queue_paused else "Starts automatically."
        yield el("div.rl-alert", f"Queued. {start} {detail or ''} ", el("a", "See the queue", href="/"))
    if detail and status in ("failed", "interrupted", "stopped"):
        yield el("div.rl-alert", detail, data_kind="error" if status == "failed" else None)
    if details.problem:
        yield el("div.rl-alert", details.problem, data_kind="error")
    if run.invalid_lines:
        count = run.invalid_lines
        text = " of the run's events is invalid and was" if count == 1 else "s of the run's events are invalid and were"
        yield el("div.rl-alert", f"{count} line{text} omitted.")


# -- overview and checkpoints --------------------------------------------------------------------------------------
def overview_sides(
    details: RunDetails, cards: Sequence[DetectorCard], now: float, read_only: bool, server: Element | None = None
) -> Element:
    """Return stages, newest checkpoints with the served models, detector cards and child runs."""
    run = details.run
    stages = [_stage(stage, run.status, now) for stage in details.stages]
    return el(
        "div.rl-two",
        el("section.rl-card.rl-stack", el("h2", "Stages"), el("ol.rl-stages", stages)) if stages else None,
        checkpoint_table(details, read_only, MAX_LISTED_CHECKPOINTS, server) if run.kind == "train" else None,
        trust_section(cards),
        child_table(details.children),
    )


def _stage(stage: RunStage, status: str, now: float) -> Element:
    ended, started, seconds = stage.done >= stage.steps, stage.started, stage.seconds
    if seconds is None and started and status == "running":
        seconds = now - started
    sign, name = ("✓", "done") if ended else ("●", "running") if started else ("○", "not started")
    color = "rl-right" if ended else "rl-muted"
    return el(
        "li",
        el("span", sign, class_=color, title=name, role="img", aria_label=name),
        el(
            "span",
            el("b", stage.name),
            f" {stage.method}",
            el("span.rl-muted", ", demonstrations") if stage.off_policy else None,
        ),
        el(
            "span.rl-num.rl-muted",
            f"{stage.done}/{stage.steps}",
            f" · {duration(seconds)}" if seconds is not None else None,
        ),
    )


def checkpoint_table(
    details: RunDetails, read_only: bool, limit: int | None = None, server: Element | None = None
) -> Element:
    """Return the newest `limit` checkpoints with their actions, or all with step and hash; below, the served models."""
    run, checkpoints = details.run, details.checkpoints[::-1]
    rows = [_checkpoint(run.id, row, read_only, limit is None) for row in checkpoints[:limit]]
    more = len(checkpoints) - len(rows)
    titles = ("name", "step", "saved", "SHA-256", "") if limit is None else ()
    url = page_url("run", run=run.id, tab="checkpoints")
    return el(
        "section.rl-card.rl-stack",
        el("h2", "Checkpoints"),
        table(titles, rows, "rl-checkpoints") if rows else el("span.rl-muted", "No checkpoint yet."),
        el("a", f"{more} more", href=url, data_action="tab", data_tab="checkpoints") if more else None,
        server,
    )


def served_models(memory: ChatMemory, api_key: str | None) -> Element | None:
    """Return what OpenAI clients of the served checkpoints need, and requests and memory; None if nothing is served."""
    if not memory.served:
        return None
    texts = {"models": ", ".join(memory.served), "address": memory.url or "", "API key": api_key or ""}
    messages = [{"role": role, "content": "…"} for role in ("system", "user")]
    body = json.dumps({"model": memory.served[0], "messages": messages, "max_tokens": 64}, ensure_ascii=False)
    head = f"-H 'Content-Type: application/json' -H 'Authorization: Bearer {api_key or '…'}'"
    texts["request"] = f"curl {memory.url}/chat/completions {head} -d '{body}'"
    rows = [
        el("tr", el("th", name, scope="row"), el("td.rl-mono", "curl …" if name == "request" else text),
           el("td", action("Copy", "copy", style="rl-small", text=text)))
        for name, text in texts.items()
    ]  # fmt: skip
    note = "The student learned the prompts of its run: copy the system message and a task from a dialogue."
    use = f"requests: {memory.requests} · {(memory.bytes or 0) / 1e6:,.0f} MB of memory"
    stop = action("Stop serving", "stop_serving", style="rl-small")
    return el(
        "section.rl-stack",
        el("h3", "Served to OpenAI clients"),
        table((), rows),
        el("p.rl-muted.rl-small", note),
        el("div.rl-row", el("span.rl-muted", use), stop),
        id="served-models",
    )


def _checkpoint(run: int, row: RunCheckpoint, read_only: bool, complete: bool) -> Element:
    uses = _checkpoint_uses(run, row, read_only) if row.has_files else [el("span.rl-muted", NO_FILES)]
    buttons = [*uses, action("Copy hash", "copy", style="rl-small", text=row.sha256) if complete else None]
    details = [
        el("td.rl-muted", f"{row.stage} {row.step}"),
        el("td.rl-muted", time_ago(row.time)),
        el("td.rl-mono", row.sha256[:12], title=row.sha256),
    ]
    return el(
        "tr",
        el("td", el("b", row.name), title=f"SHA-256 {row.sha256}"),
        details if complete else details[1],
        el("td", el("span.rl-row", buttons)),
        data_key=row.name,
    )


def _checkpoint_uses(run: int, row: RunCheckpoint, read_only: bool) -> list[Element]:
    """Return the actions that need the adapter of a checkpoint."""
    return [
        el("a.rl-button.rl-small", "Evaluate", href=page_url("new", evaluate=f"{run}:{row.name}")),
        el("a.rl-button.rl-small", "Chat", href=page_url("chat", checkpoints=f"{run}:{row.name}")),
        _export_menu(run, row, read_only),
        _serve_menu(run, row, read_only),
    ]


def _export_menu(run: int, row: RunCheckpoint, read_only: bool) -> Element:
    """Return the menu of a checkpoint's exports: its model in several formats, and the dialogues of its stage."""
    name = row.name
    models = [
        el("button", title, data_action="export_model", data_checkpoint=name, data_format=format)
        for format, title in MODEL_FORMATS.items()
    ]
    return el(
        "details.rl-menu",
        el("summary.rl-button.rl-small", "Export", aria_label=f"Export {name}"),
        el(
            "div.rl-menu-items",
            None if read_only else models,
            el("a", f"Dialogues of {row.stage}", href=page_url("exports", run=run, stage=row.stage)),
        ),
        data_key=f"export-{name}",
    )


def _serve_menu(run: int, row: RunCheckpoint, read_only: bool) -> Element:
    """Return the menu that serves a checkpoint to OpenAI clients, and copies the command for a server of its own."""
    name, command = row.name, rl2f_command("serve-model", f"{run}@{row.name}")
    title = "Copy this command. It serves the checkpoint to OpenAI clients."
    start = el("button", "Serve in the studio", data_action="serve", data_checkpoint=name)
    return el(
        "details.rl-menu",
        el("summary.rl-button.rl-small", "Serve", aria_label=f"Serve {name}"),
        el(
            "div.rl-menu-items",
            None if read_only else start,
            el("button.rl-mono", command, title=title, data_action="copy", data_text=command),
        ),
        data_key=f"serve-{name}",
    )


def files_link(run: RunSummary) -> Element | None:
    """Return the link to the files of a finished export; None for another run."""
    if run.status != "succeeded" or run.kind not in ("export", "model_export"):
        return None
    return el("a.rl-button.rl-small", "Files", href=page_url("exports", show=run.folder))


def child_table(children: Sequence[RunSummary]) -> Element | None:
    """Return the runs that were started from this one."""
    if not children:
        return None
    rows = [
        el(
            "tr",
            el("td", el("a", f"{child.id} {child.name}", href=page_url("run", run=child.id))),
            el("td", child.kind),
            el("td", badge(child.status)),
            el("td.rl-muted", time_ago(child.created)),
            el("td", files_link(child)),
        )
        for child in children
    ]
    return el("section.rl-card.rl-stack", el("h2", "Runs from this one"), table((), rows))


def charts_note(details: RunDetails, active: bool) -> Element | None:
    """Return what a click does and which stages are excluded, or why there is no chart."""
    if not details.steps and details.run.kind != "train":
        return None
    if not details.steps and active:
        return empty("Waiting for the first step…", "The charts appear automatically.")
    if not details.steps:
        return empty("This run has no training step.", "Its log says why. Resume it to start again.")
    note = "Click a point to open the dialogues of that step."
    stages = ", ".join(stage.name for stage in details.stages if stage.off_policy)
    if stages:
        note += f" {stages}: demonstrations, whose rewards are not the student's and are excluded."
    return el("p.rl-muted.rl-small", note)


def newest_dialogues(rows: Sequence[DialogueSummary]) -> Element | None:
    """Return dialogues of the newest step, which open on a click; None without any."""
    newest = [row for row in rows if (row.stage, row.step) == (rows[0].stage, rows[0].step)]
    if not newest:
        return None
    title = el("h2", f"Dialogues of {newest[0].stage} step {newest[0].step}")
    return el("section.rl-card.rl-stack.rl-newest", title, dialogue_list(newest, with_run=False))


def tags_and_notes(details: RunDetails, read_only: bool) -> Element:
    """Return tags and notes, each with a button that removes it."""
    remove = {tag: action("×", "untag", style="rl-icon", title=f"Remove {tag}", tag=tag) for tag in details.tags}
    tags = [el("span.rl-chip", tag, None if read_only else button) for tag, button in remove.items()]
    count, url = details.dialogue_notes, page_url("dialogues", run=details.run.id)
    others = el("a", f"{plural(count, 'note')} on its dialogues", href=url)
    return el(
        "div.rl-stack",
        el("h2", "Tags and notes"),
        el("div.rl-tags", tags) if tags else None,
        el("div.rl-notes", [_note(note, read_only) for note in details.notes]),
        others if count else None,
    )


def _note(note: NoteSummary, read_only: bool) -> Element:
    return el(
        "div.rl-note",
        el("p", note.text),
        el("span.rl-muted.rl-small", time_ago(note.time)),
        None if read_only else action("×", "delete_note", style="rl-icon", title="Delete this note", note=note.id),
        data_key=f"note{note.id}",
    )


# -- evaluation, configuration, log --------------------------------------------------------------------------------
def evaluation_title(evaluation: JsonObject | None, active: bool, part: JsonObject | None = None) -> Element:
    """Return the title of an evaluation with the conclusions of its part, or how to make an evaluation."""
    if evaluation is None and active:
        return empty("No evaluation yet.", "Available after the final evaluation.")
    if evaluation is None:
        return empty("This run has no evaluation.", "Evaluate one of its checkpoints on the tab Checkpoints.")
    chip = None if evaluation["whole"] else el("span.rl-chip", "in progress")
    title = el("h2.rl-h2", "Evaluation ", el("span.rl-muted.rl-small", evaluation["title"]), chip)
    return el("div.rl-section", title, conclusions_card(part or evaluation))


def evaluation_tables(evaluation: JsonObject | None, run: int) -> Element | None:
    """Return the tables of an evaluation."""
    return evaluation_sheet(evaluation, dialogues_link(run)) if evaluation else None


def environment_table(meta: Mapping[str, object] | None) -> Element:
    """Return seed, revision, machine and package versions of a run."""
    if meta is None:
        return el("p.rl-muted", "The run directory has no record of its environment.")
    packages = meta.get("packages")
    values = {name: value for name, value in meta.items() if name != "packages"}
    values |= packages if isinstance(packages, dict) else {}
    pairs = ((el("dt", name), el("dd", _recorded(name, value))) for name, value in values.items())
    return el("dl.rl-pairs", (cell for pair in pairs for cell in pair))


def _recorded(name: str, value: object) -> Node:
    if name == "created" and isinstance(value, int | float):
        return time_ago(value)
    if isinstance(value, dict):
        return "; ".join(f"{key}: {item}" for key, item in value.items())
    return "–" if value is None else str(value)


def log_view(log: RunLog, level: str = "", search: str = "") -> Element:
    """Return the log messages of a run and the end of its worker's output, which stays scrolled to the end.

    Args:
        log: The messages and the output.
        level: Show only messages of this level.
        search: Show only messages and lines that contain this text.
    """
    size = log.size
    cut = "; the last 64 kB are shown" if size > len(log.text.encode()) + 1000 else ""
    output = el(
        "div.rl-code.rl-wrap.rl-follow",
        el("pre", log.text),
        tabindex=0,
        role="log",
        aria_label="Output of the worker",
    )
    levels = Counter(message.level for message in log.messages)
    chosen = [message for message in log.messages if _matches(message, level, search)]
    lines = [line for line in log.text.splitlines() if search.lower() in line.lower()] if search else None
    if lines is not None:
        output = (
            el("pre.rl-code.rl-wrap", "\n".join(lines)) if lines else el("p.rl-muted", "No line of the output matches.")
        )
    choices = [("", "all levels"), *((name, f"{name} ({count})") for name, count in levels.items())]
    options = [el("option", text, value=name, selected=name == level) for name, text in choices]
    none = el("p.rl-muted", "No message of this level matches." if log.messages else "The run has no messages.")
    return el(
        "div.rl-card.rl-stack",
        el(
            "div.rl-row",
            el("select.rl-field", options, data_change="level", aria_label="level of messages"),
            el(
                "input.rl-field",
                type="search",
                value=search,
                placeholder="Search the log",
                data_change="search",
                aria_label="search the log",
            ),
        ),
        el("div.rl-notes", [_log_message(message) for message in chosen] or none),
        el("p.rl-muted.rl-small", f"{size / 1000:,.1f} kB{cut}" if size else "The worker has printed nothing."),
        output if size else None,
    )


def _matches(message: Log, level: str, search: str) -> bool:
    return level in ("", message.level) and search.lower() in message.text.lower()


def _log_message(message: Log) -> Element:
    first, _, rest = message.text.partition("\n")
    level = el("span.rl-muted", "info ") if message.level == "info" else el("b.rl-leak", f"{message.level} ")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.time))
    line = [el("span.rl-muted.rl-num", f"{when} "), level, el("span", first.lstrip("# "))]
    if not rest:
        return el("div.rl-row", line)
    return el("details", el("summary.rl-row", line), el("pre.rl-code", rest))
