"""Page Exports: datasets of leak-labeled dialogues, made by a job, and their files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from app.common.console import human_bytes
from app.common.urls import page_url
from app.components.address import Replacement
from app.components.nodes import Element, Node, action, badge, el, empty, progress, time_ago
from app.components.view import View
from app.endpoints.exports import ExportCount, ExportedModel, ExportJob, ExportList, FinishedExport
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.types import JsonObject

PATH = "exports"
TITLE = "Exports"
ORDER = 80
ANY = ("any", "")
EVERYBODY = ("everybody, by majority", "")
FILE_TYPES = [("JSON lines", "jsonl"), ("Parquet", "parquet")]
PHASES = ("train", "preflight", "evaluation", "chat", "fork", "distill")
MATCHES = [("the task", "task"), ("the attempt", "attempt"), ("the whole history", "history")]
LABEL_SOURCES = [("Human, else detectors", "both"), ("Human only", "human"), ("Detectors only", "detector")]
STEPS = re.compile(r"\s*(\d{1,9})?\s*(?:(–|-|\.\.)\s*(\d{1,9})?)?\s*")
PRIVILEGED = "⚑ Every prompt contains the answer. A student trained on it learns to read answers that it will not have."
REQUIRED = {
    "formats": "Choose at least one dataset type.",
    "files": "Choose at least one file type.",
    "runs": "Choose a run.",
}
DEFAULTS: dict[str, Any] = {
    "runs": [],
    "name": "",
    "formats": ["stepwise_supervision", "unpaired_preference", "preference", "messages"],
    "files": ["jsonl", "parquet"],
    "labels": "both",
    "annotator": "",
    "phase": "",
    "stage": "",
    "steps": "",
    "checkpoint": "",
    "condition": "",
    "match": "task",
    "pairs": 1,
    "seed": 0,
    "include_controls": False,
    "labeled_only": False,
    "privileged": False,
}
"""Field → default; `rl2f export` has an option of the same name for most of them."""
OPTIONS = {"formats": "--format", "files": "--file", "include_controls": "--include-controls",
           "labeled_only": "--labeled-only"}  # fmt: skip
"""Options of `rl2f export` that have another name than their field."""
NARROWED = {"phase", "stage", "steps", "checkpoint", "condition", "include_controls", "labeled_only"}
"""Fields of the part *Which dialogues*."""
FURTHER = {"name", "files", "match", "pairs", "seed", "privileged"}
"""Fields of the part *More*."""
REFRESH_SECONDS = 2.0


def build(studio: Studio) -> None:
    """Build the form on the left and the list of exports on the right."""
    context, exports = studio.context, studio.exports
    writable = not context.read_only

    address = page_frame(studio, TITLE)
    form: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            gr.Markdown("# Exports\nLeak-labeled dialogues as datasets in TRL's types.")
            form["runs"] = gr.Dropdown([], label="Runs", multiselect=True)
            formats = exports.export_choices()["formats"]
            form["formats"] = gr.CheckboxGroup(
                [(f"{each['title']}: {each['description']}", each["name"]) for each in formats], label="Dataset types"
            )
            form["labels"] = gr.Radio(LABEL_SOURCES, label="Labels that count")
            form["annotator"] = gr.Dropdown([EVERYBODY], label="Annotator")
            with gr.Accordion("Which dialogues", open=False) as narrowed:
                with gr.Row():
                    form["phase"] = gr.Dropdown([ANY], label="Phase", min_width=140)
                    form["stage"] = gr.Dropdown([ANY], label="Stage", min_width=140)
                    form["steps"] = gr.Textbox(label="Steps", placeholder="10-20", max_lines=1, min_width=140)
                    form["checkpoint"] = gr.Dropdown([ANY], label="Checkpoint", min_width=140)
                    form["condition"] = gr.Dropdown([ANY], label="Condition", min_width=140)
                form["include_controls"] = gr.Checkbox(
                    label="Include controls and forks", info="Their hints are empty, false or of another problem."
                )
                form["labeled_only"] = gr.Checkbox(label="Only dialogues with a human label")
            with gr.Accordion("More", open=False) as further:
                form["name"] = gr.Textbox(label="Name", info="Title of the dataset card.", max_length=100)
                form["files"] = gr.CheckboxGroup(FILE_TYPES, label="Files")
                with gr.Row():
                    form["match"] = gr.Dropdown(MATCHES, label="Both hints of a pair share", min_width=140)
                    form["pairs"] = gr.Number(label="Pairs per leaking hint", precision=0, minimum=1, min_width=140)
                    form["seed"] = gr.Number(label="Seed", precision=0, minimum=0, min_width=140)
                form["privileged"] = gr.Checkbox(
                    label="Include the answer in the prompts", info="For teachers and judges only."
                )
            notice = View(elem_id="export-count")
            start = gr.Button("Export", variant="primary", interactive=False, elem_id="export-start")
            with gr.Accordion("Command", open=False):
                command = gr.Code(language="shell", show_label=False, interactive=False, elem_id="export-command")
        with gr.Column(scale=6, min_width=320):
            listed = View(elem_id="export-list")
    timer, drawn = gr.Timer(REFRESH_SECONDS), gr.State()

    fields = QueryFields({name: (form[name], default) for name, default in DEFAULTS.items()})
    choice_lists = [form[name] for name in ("runs", "annotator", "phase", "stage", "checkpoint", "condition")]

    def choices(run_ids: list[int]) -> list[Any]:
        found = exports.export_choices(run_ids)
        phases = [phase for phase in PHASES if phase in found["phases"]]
        lists = (phases, found["stages"], found["checkpoints"], found["conditions"])
        return [
            gr.update(choices=[(f"{run['id']} · {run['name']}", run["id"]) for run in found["runs"]]),
            gr.update(choices=[EVERYBODY, *found["annotators"]]),
            *(gr.update(choices=[ANY, *values]) for values in lists),
        ]

    def form_state(values: Sequence[Any]) -> list[Any]:
        """Return notice, state of the button, and command."""
        given = dict(zip(DEFAULTS, values, strict=True))
        try:
            settings = export_settings(given)
            found = exports.count_export(given["runs"], settings["filter"]) if given["runs"] else None
        except RL2FError as error:
            return [el("p.rl-wrong", str(error), role="alert"), gr.update(interactive=False), ""]
        ready = found is not None and found["dialogues"] > 0 and bool(given["formats"]) and bool(given["files"])
        return [count_text(given, found), gr.update(interactive=ready and writable), command_line(given)]

    def show_list() -> Element:
        return export_list(exports.list_exports(), writable, paused=context.queue.paused)

    @handler
    def refresh(last: Element | None) -> Any:
        found = show_list()
        return gr.skip() if found == last else [found, found]

    @handler
    def open_page(query: dict[str, str]) -> list[Any]:
        if "run" in query:
            query = {**query, "runs": query["run"]}
        values, missing = fields.values(query), None
        try:
            offered = choices(values["runs"])
        except RL2FError as error:  # a link to a run that was deleted
            missing = el("p.rl-warning", str(error), role="alert")
            values["runs"] = []
            offered = choices([])
        merged = [gr.update(value=value) for value in values.values()]
        for update, component in zip(offered, choice_lists, strict=True):
            merged[fields.components.index(component)] |= update
        query = fields.query(list(values.values()))
        folds = [gr.update(open=not names.isdisjoint(query)) for names in (NARROWED, FURTHER)]
        state = form_state(list(values.values()))
        state[0] = [missing, state[0]]
        return [query, *merged, *folds, *state, show_list()]

    @handler
    def edit(*values: Any) -> list[Any]:
        return [Replacement(fields.query(values)), *form_state(values)]

    @handler
    def start_export(*values: Any) -> Element:
        given = dict(zip(DEFAULTS, values, strict=True))
        queued = exports.start_export(given["runs"], export_settings(given))
        gr.Info(f"Export {queued['run']} is in the queue.")
        return show_list()

    @handler
    def act(event: gr.EventData) -> Element:
        data, name = event._data, event._data["action"]
        if name == "delete":
            exports.delete_export(data["folder"])
        elif name == "dismiss":
            studio.runs.delete_runs([int(data["run"])])
        else:
            {"stop": studio.run.stop_run, "resume": studio.run.resume_run}[name](int(data["run"]))
        return show_list()

    state = [notice, start, command]
    inputs = fields.components
    address.input(open_page, address, [address, *inputs, narrowed, further, *state, listed], **FAST)
    gr.on(fields.edits, edit, inputs, [address, *state], **LATEST)
    form["runs"].input(handler(lambda run_ids: choices(run_ids)[1:]), form["runs"], choice_lists[1:], **FAST)
    form["labels"].change(
        lambda source: gr.update(visible=source != "detector"), form["labels"], form["annotator"], **FAST
    )
    start.click(start_export, inputs, listed, **QUEUED)
    listed.click(act, None, listed, **FAST)
    timer.tick(refresh, drawn, [drawn, listed], **FAST)


def export_settings(form: Mapping[str, Any]) -> JsonObject:
    """Return the fields of `ExportRun` except the runs; raise `ConfigError` if the steps cannot be read."""
    step_from, step_to = parse_steps(form["steps"] or "")
    names = ("phase", "stage", "checkpoint", "condition", "include_controls", "labeled_only")
    same = ("formats", "files", "labels", "match", "privileged")
    runs = form["runs"]
    name = f"dialogues of {'run' if len(runs) == 1 else 'runs'} {' '.join(map(str, runs))}"
    return {
        **{name: form[name] for name in same},
        "annotator": "" if form["labels"] == "detector" else form["annotator"],
        "filter": {**{name: form[name] for name in names}, "step_from": step_from, "step_to": step_to},
        "name": (form["name"] or "").strip() or name[:100].strip(),
        "pairs_per_leak": form["pairs"] or 1,
        "seed": form["seed"] or 0,
    }


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Return first and last step of `12`, `10-20`, `10-` or `-20`; raise `ConfigError` otherwise."""
    found = STEPS.fullmatch(text)
    if found is None:
        raise ConfigError("The steps cannot be read.", value=text, fix="Write one step, 12, or a range, 10-20.")
    first, dash, last = found.groups()
    low, high = (int(each) if each else None for each in (first, last))
    return low, high if dash else low


def command_line(form: Mapping[str, Any]) -> str:
    """Return the command `rl2f export` that makes the same files."""
    settings = export_settings(form)
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", settings["name"])
    words = ["rl2f", "export", *map(str, form["runs"]), "--out", folder]
    for name, default in DEFAULTS.items():
        value, option = form[name], OPTIONS.get(name, f"--{name}")
        if value == default or name in ("runs", "name"):
            continue
        for each in value if isinstance(value, list) else [value]:
            words += [option] if each is True else [option, str(each)]
    return " ".join(shlex.quote(word) for word in words)


def count_text(form: Mapping[str, Any], found: ExportCount | None) -> Element:
    """Return how many dialogues the export would contain, or what is missing."""
    missing = next((text for name, text in REQUIRED.items() if not form[name]), None)
    if missing or found is None:
        return el("p.rl-muted", missing)
    text = f"{_count(found['dialogues'], 'dialogue')}, {found['labeled']:,} of them with human labels"
    link = None
    if form["labels"] == "human" and not found["labeled"]:
        link = el("a", "Label some first", href=page_url("labels", run=form["runs"][0]))
    warning = el("p.rl-warning", PRIVILEGED, role="alert") if form["privileged"] else None
    return el("div", warning, el("p", text, ". " if link else None, link, aria_live="polite"))


def export_list(found: ExportList, writable: bool, *, paused: bool = False) -> Element:
    """Return the exports that wait, run or failed, and below them the finished ones with their files."""
    jobs = [_job(job, writable, paused) for job in [*found["active"], *found["failed"]]]
    finished = [_export(each, writable) for each in found["finished"]]
    models = [_model(each, writable) for each in found["models"]]
    nothing = empty(
        "No export yet",
        "Choose a run and press Export. Its dialogues become JSON lines and Parquet files with a dataset card.",
    )
    title = "Queued, running and failed"
    return el(
        "div.rl-page",
        el("section.rl-stack", el("h2", title), jobs, aria_label=f"{title} exports") if jobs else None,
        el("section.rl-stack", el("h2", "Finished"), finished or nothing, aria_label="Finished exports"),
        el("section.rl-stack", el("h2", "Models"), models, aria_label="Exported models") if models else None,
    )


def _job(job: ExportJob, writable: bool, paused: bool) -> Element:
    active = job["status"] in ("queued", "starting", "running")
    steps = "leaking hints paired" if job["phase"] == "pairs" else "dialogues"
    text = f"{job['done']:,.0f} of {job['total']:,.0f} {steps}" if job["total"] else job["phase"] or job["status"]
    buttons = [
        action("Stop", "stop", style="rl-small", run=job["run"]) if active else None,
        None if active else action("Try again", "resume", style="rl-small", run=job["run"]),
        None if active else action("Dismiss", "dismiss", style="rl-small rl-quiet", run=job["run"]),
    ]
    return el(
        "article.rl-card.rl-stack.export-job",
        el(
            "div.rl-row",
            badge(job["status"]),
            el("a.rl-grow.rl-cut", job["name"], href=page_url("run", run=job["run"])),
            time_ago(job["ended"] or job["created"]),
        ),
        progress(job["done"], job["total"]) if active and job["status"] != "queued" else None,
        el("span.rl-muted.rl-small.rl-num", text) if active else None,
        el("p.rl-warning", "The queue is paused. Resume it on ", el("a", "Runs", href="/"), ".")
        if paused and job["status"] == "queued"
        else None,
        el("p.rl-wrong", job["detail"]) if job["status"] == "failed" and job["detail"] else None,
        el("div.rl-row", buttons) if writable and job["status"] != "stopping" else None,
        data_key=f"job{job['run']}",
    )


def _export(export: FinishedExport, writable: bool) -> Element:
    sizes = {file["name"]: file["bytes"] for file in export["files"]}
    folder = export["folder"]

    def link(name: str, text: str) -> Element | None:
        if name not in sizes:
            return None
        size = el("span.rl-muted.rl-num", f" {human_bytes(sizes[name])}")
        return el("a", text, size, href=f"/exports/{folder}/{name}", download=True, title=name)

    sources: list[Node] = [", "] * (2 * len(export["runs"]) - 1)
    sources[::2] = [_source(run["run"], run["name"]) for run in export["runs"]]
    rows = [
        el(
            "tr",
            el("td", form["name"]),
            el("td.rl-num", f"{form['rows']:,}"),
            *(el("td", link(f"{form['name']}.{suffix}", "download") or "–") for suffix in ("jsonl", "parquet")),
        )
        for form in export["formats"]
    ]
    titles = {"type": "", "rows": "rl-num", "JSON lines": "", "Parquet": ""}
    header = el("tr", *(el("th", title, class_=style or None, scope="col") for title, style in titles.items()))
    remove = action(
        "Delete",
        "delete",
        style="rl-small rl-quiet",
        folder=folder,
        confirm=f"Delete the export {export['name']}, {human_bytes(export['bytes'])}? The exported runs remain.",
    )
    return el(
        "article.rl-card.rl-stack.export-done",
        el(
            "div.rl-row",
            el("b.rl-grow.rl-cut", export["name"], title=folder),
            el("span.rl-chip.rl-leak", "⚑ contains answers", title=PRIVILEGED) if export["privileged"] else None,
            el("span.rl-muted.rl-num", human_bytes(export["bytes"])),
            el("span.rl-muted", time_ago(export["created"])),
        ),
        el("div.rl-muted.rl-small", "from ", sources, f" · {label_text(export)}"),
        el("div.rl-scroll", el("table.rl-table", el("thead", header), el("tbody", rows))),
        [el("p.rl-muted.rl-small", f"No {name}: {why}") for name, why in export["left_out"].items()],
        el(
            "div.rl-row.rl-small",
            link("README.md", "card"),
            link("manifest.json", "manifest"),
            el("span.rl-grow"),
            action("Copy Python", "copy", style="rl-small", text=load_code(export)) if rows else None,
            remove if writable else None,
        ),
        data_key=folder,
        data_folder=folder,
    )


def _model(model: ExportedModel, writable: bool) -> Element:
    folder = model["folder"]
    rows = [
        el(
            "tr",
            el("td", el("a", file["name"], href=f"/exports/{folder}/{file['name']}", download=True)),
            el("td.rl-num", human_bytes(file["bytes"])),
        )
        for file in model["files"]
    ]
    remove = action(
        "Delete",
        "delete",
        style="rl-small rl-quiet",
        folder=folder,
        confirm=f"Delete the model {model['name']}, {human_bytes(model['bytes'])}? The checkpoint remains.",
    )
    return el(
        "article.rl-card.rl-stack.export-model",
        el(
            "div.rl-row",
            el("b.rl-grow.rl-cut", model["name"], title=folder),
            el("span.rl-muted.rl-num", human_bytes(model["bytes"])),
            el("span.rl-muted", time_ago(model["created"])),
        ),
        el("div.rl-muted.rl-small", f"from {model['base']}"),
        el("div.rl-scroll", el("table.rl-table", el("tbody", rows))),
        el("div.rl-row.rl-small", remove) if writable else None,
        data_key=folder,
    )


def _source(run: str, name: str) -> Node:
    return el("a", f"{run} · {name}", href=page_url("run", run=run)) if run.isdigit() else name


def label_text(export: FinishedExport) -> str:
    """Return how many dialogues, hints and labels an export contains."""
    labels = export["labels"]
    parts = [_count(export["dialogues"], "dialogue")] if export["dialogues"] is not None else []
    if labels:
        parts.append(_count(labels["hints"], "hint"))
        for source, title in (("human", "people"), ("detector", "detectors"), ("planted", "planted")):
            counts = labels.get(source) or {}
            if counts.get("leak") or counts.get("no_leak"):
                parts.append(f"{title}: {counts.get('leak', 0):,} leak, {counts.get('no_leak', 0):,} no leak")
        parts += [f"{count:,} {why}" for why, count in labels.get("without", {}).items()]
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def load_code(export: FinishedExport) -> str:
    """Return Python code that loads an export."""
    arguments = f'{export["directory"]!r}, "{export["formats"][0]["name"]}", split="train"'
    return f"from datasets import load_dataset\nrows = load_dataset({arguments})"
