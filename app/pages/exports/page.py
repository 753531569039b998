"""Page Exports: datasets of leak-labeled dialogues, made by a job, and their files."""

from __future__ import annotations

import re

import gradio as gr
from gradio.components import Component

from app.common.quantities import parse_range
from app.components.browser.address import Replacement
from app.components.nodes import Element, el
from app.components.view import View
from app.endpoints.exports import NamedExport
from app.endpoints.studio import Studio
from app.endpoints.types import validated
from app.pages._events import FAST, LATEST, QUEUED, Updates, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.exports.view import count_text, export_list
from rl2f_core.errors import RL2FError, rl2f_command
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
DEFAULTS: JsonObject = {
    "runs": [],
    "name": "",
    "formats": ["unpaired_preference", "preference", "messages"],
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
    "include_test": False,
    "include_demonstrations": False,
    "include_base": False,
    "include_controls": False,
    "labeled_only": False,
    "privileged": False,
}
"""Field → default; `rl2f export` has an option of the same name for most of them."""
OPTIONS = {"formats": "--format", "files": "--file"}
"""Options of `rl2f export` that have another name than their field."""
INCLUDED = ("include_test", "include_demonstrations", "include_base", "include_controls")
NARROWED = {"phase", "stage", "steps", "checkpoint", "condition", *INCLUDED, "labeled_only"}
"""Fields of the part *Which dialogues*."""
FURTHER = {"name", "files", "match", "pairs", "seed", "privileged"}
"""Fields of the part *More*."""
REFRESH_SECONDS = 2.0


def build(studio: Studio) -> None:
    """Build the form on the left and the list of exports on the right."""
    _Page(studio).connect()


class _Page:
    """Components and events of the page."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.exports = studio, studio.exports
        self.writable = not studio.context.read_only
        self.address = page_frame(studio, TITLE)
        self.form: dict[str, Component] = {}
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=320):
                self._build_form()
                self.notice = View(elem_id="export-count")
                self.start = gr.Button("Export", variant="primary", interactive=False, elem_id="export-start")
                with gr.Accordion("Command", open=False):
                    self.command = gr.Code(
                        language="shell", show_label=False, interactive=False, elem_id="export-command"
                    )
            with gr.Column(scale=6, min_width=320):
                self.listed = View(elem_id="export-list")
        self.timer, self.drawn = gr.Timer(REFRESH_SECONDS), gr.State()
        self.fields = QueryFields({name: (self.form[name], default) for name, default in DEFAULTS.items()})

    def _build_form(self) -> None:
        form = self.form
        gr.Markdown("# Exports\nLeak-labeled dialogues as datasets in TRL's types.")
        form["runs"] = self.runs = gr.Dropdown([], label="Runs", multiselect=True)
        offered = self.exports.export_choices().formats
        formats = [(f"{item.title}: {item.description}", item.name) for item in offered]
        form["formats"] = gr.CheckboxGroup(formats, label="Dataset types")
        form["labels"] = self.labels = gr.Radio(LABEL_SOURCES, label="Labels that count")
        form["annotator"] = gr.Dropdown([EVERYBODY], label="Annotator")
        with gr.Accordion("Which dialogues", open=False) as self.narrowed:
            with gr.Row():
                form["phase"] = gr.Dropdown([ANY], label="Phase", min_width=140)
                form["stage"] = gr.Dropdown([ANY], label="Stage", min_width=140)
                form["steps"] = gr.Textbox(label="Steps", placeholder="10-20", max_lines=1, min_width=140)
                form["checkpoint"] = gr.Dropdown([ANY], label="Checkpoint", min_width=140)
                form["condition"] = gr.Dropdown([ANY], label="Condition", min_width=140)
            form["include_test"] = gr.Checkbox(
                label="Include validation and test tasks",
                info="A model that is trained on them cannot be evaluated on them.",
            )
            form["include_demonstrations"] = gr.Checkbox(
                label="Include demonstrations", info="Attempts that the environment or a person wrote."
            )
            form["include_base"] = gr.Checkbox(label="Include the untrained base")
            form["include_controls"] = gr.Checkbox(
                label="Include controls and forks", info="Their hints are empty, false or of another problem."
            )
            form["labeled_only"] = gr.Checkbox(label="Only dialogues with a human label")
        with gr.Accordion("More", open=False) as self.further:
            form["name"] = gr.Textbox(label="Name", info="Title of the dataset card.", max_length=100)
            form["files"] = gr.CheckboxGroup(FILE_TYPES, label="Files")
            with gr.Row():
                form["match"] = gr.Dropdown(MATCHES, label="Both hints of a pair share", min_width=140)
                form["pairs"] = gr.Number(label="Pairs per leaking hint", precision=0, minimum=1, min_width=140)
                form["seed"] = gr.Number(label="Seed", precision=0, minimum=0, min_width=140)
            form["privileged"] = gr.Checkbox(
                label="Include the answer in the prompts", info="For teachers and judges only."
            )

    def connect(self) -> None:
        """Connect the events."""
        address, form, inputs = self.address, self.form, self.fields.components
        state = [self.notice, self.start, self.command]
        opened = [address, *inputs, self.narrowed, self.further, *state, self.listed]
        address.input(self.open_page, address, opened, **FAST)
        gr.on(self.fields.edits, self.edit, inputs, [address, *state], **LATEST)
        lists = [form[name] for name in ("annotator", "phase", "stage", "checkpoint", "condition")]
        self.runs.input(self.offer, self.runs, lists, **FAST)
        self.labels.change(
            lambda source: gr.update(visible=source != "detector"), self.labels, form["annotator"], **FAST
        )
        self.start.click(self.start_export, inputs, self.listed, **QUEUED)
        self.listed.click(self.act, None, self.listed, **FAST)
        self.timer.tick(self.refresh, self.drawn, [self.drawn, self.listed], **FAST)

    # -- drawing ---------------------------------------------------------------------------------------------------
    def _choices(self, run_ids: list[int]) -> dict[str, JsonObject]:
        """Return the choices of fields that depend on the runs."""
        found = self.exports.export_choices(run_ids)
        lists = {
            "phase": [phase for phase in PHASES if phase in found.phases],
            "stage": found.stages,
            "checkpoint": found.checkpoints,
            "condition": found.conditions,
        }
        return {
            "runs": {"choices": [(f"{run.id} · {run.name}", run.id) for run in found.runs]},
            "annotator": {"choices": [EVERYBODY, *found.annotators]},
            **{name: {"choices": [ANY, *values]} for name, values in lists.items()},
        }

    def _form_state(self, given: JsonObject) -> Updates:
        """Return notice, state of the button, and command."""
        try:
            settings = export_settings(given)
            found = self.exports.count_export(given["runs"], settings["filter"]) if given["runs"] else None
        except RL2FError as error:
            wrong = el("p.rl-wrong", str(error), role="alert")
            return {self.notice: wrong, self.start: gr.update(interactive=False), self.command: ""}
        ready = found is not None and found.dialogues > 0 and bool(given["formats"]) and bool(given["files"])
        return {
            self.notice: count_text(given, found),
            self.start: gr.update(interactive=ready and self.writable),
            self.command: command_line(given),
        }

    def _list(self, shown: str = "") -> Element:
        found, paused = self.exports.list_exports(), self.studio.context.queue.paused
        return export_list(found, self.writable, paused=paused, shown=shown)

    # -- events ----------------------------------------------------------------------------------------------------
    @handler
    def refresh(self, last: object) -> Updates:
        """Show the exports again if they changed."""
        found = self._list()
        return gr.skip() if found == last else {self.drawn: found, self.listed: found}

    @handler
    def open_page(self, query: dict[str, str]) -> Updates:
        """Show the form of the address."""
        if "run" in query:
            query = {**query, "runs": query["run"]}
        values, missing, shown = self.fields.values(query), None, query.get("show", "")
        try:
            offered = self._choices(values["runs"])
        except RL2FError as error:  # a link to a run that was deleted
            missing = el("p.rl-warning", str(error), role="alert")
            values["runs"] = []
            offered = self._choices([])
        query = self.fields.query(list(values.values()))
        state = self._form_state(values)
        return {
            self.address: query,
            **{self.form[name]: gr.update(value=value, **offered.get(name, {})) for name, value in values.items()},
            self.narrowed: gr.update(open=not NARROWED.isdisjoint(query)),
            self.further: gr.update(open=not FURTHER.isdisjoint(query)),
            **state,
            self.notice: [missing, state[self.notice]],
            self.listed: self._list(shown),
        }

    @handler
    def offer(self, run_ids: list[int]) -> Updates:
        """Offer the choices of the chosen runs."""
        return {self.form[name]: gr.update(**item) for name, item in self._choices(run_ids).items() if name != "runs"}

    @handler
    def edit(self, *values: object) -> Updates:
        """Write the form to the address, and count its dialogues."""
        query = Replacement(self.fields.query(values))
        return {self.address: query, **self._form_state(self.fields.named(values))}

    @handler
    def start_export(self, *values: object) -> Element:
        """Put the export of the form into the queue."""
        given = self.fields.named(values)
        queued = self.exports.start_export(given["runs"], validated(NamedExport, export_settings(given)))
        gr.Info(f"Export {queued.run} is in the queue.")
        return self._list()

    @handler
    def act(self, event: gr.EventData) -> Element:
        """Do what a button of an export says."""
        data, name = event._data, event._data["action"]
        if name == "delete":
            self.exports.delete_export(data["folder"])
        elif name == "dismiss":
            self.studio.runs.delete_runs([int(data["run"])])
        else:
            {"stop": self.studio.run.stop_run, "resume": self.studio.run.resume_run}[name](int(data["run"]))
        return self._list()


def export_settings(form: JsonObject) -> JsonObject:
    """Return the fields of `ExportRun` except the runs; raise `ConfigError` if the steps cannot be read."""
    names = ("phase", "stage", "checkpoint", "condition", *INCLUDED, "labeled_only")
    same = ("formats", "files", "labels", "match", "privileged")
    runs = form["runs"]
    name = f"dialogues of {'run' if len(runs) == 1 else 'runs'} {' '.join(map(str, runs))}"
    return {
        **{name: form[name] for name in same},
        "annotator": "" if form["labels"] == "detector" else form["annotator"],
        "filter": {**{name: form[name] for name in names}, **parse_range("step", form["steps"] or "")},
        "name": (form["name"] or "").strip() or name[:100].strip(),
        "pairs_per_leak": form["pairs"] or 1,
        "seed": form["seed"] or 0,
    }


def command_line(form: JsonObject) -> str:
    """Return the command `rl2f export` that makes the same files."""
    settings = export_settings(form)
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", settings["name"])
    words = ["export", *map(str, form["runs"]), "--out", folder]
    for name, default in DEFAULTS.items():
        value, option = form[name], OPTIONS.get(name, f"--{name.replace('_', '-')}")
        if value == default or name in ("runs", "name"):
            continue
        for item in value if isinstance(value, list) else [value]:
            words += [option] if item is True else [option, str(item)]
    return rl2f_command(*words)
