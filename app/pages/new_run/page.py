"""Page New run: a form and its YAML side by side, to check, start or schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import time

import gradio as gr
import yaml as pyyaml

from app.common.urls import page_url
from app.components.browser.keys import Key
from app.components.browser.stored import Stored
from app.components.charts import Charts
from app.components.form import Form
from app.components.nodes import Node
from app.components.view import View
from app.endpoints.launch import ConfigSource, FormState
from app.endpoints.studio import Studio
from app.endpoints.types import validated
from app.forms.estimate import Estimate, Pace, estimate, estimate_study
from app.forms.run_form import DEFAULT_PRESET, STUDY
from app.forms.schema import Path
from app.pages._events import FAST, Updates, handler, in_order, once_opened
from app.pages._frame import page_frame
from app.pages.new_run import view as show
from app.pages.new_run.draft import Draft
from app.pages.new_run.form import draw_form, draw_yaml
from app.pages.new_run.own_data import OwnDataCard
from app.pages.new_run.schedule import ScheduleCard
from rl2f_core.common.text.integers import whole_number
from rl2f_core.config.overrides import set_nested
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.types import JsonObject

PATH = "new"
TITLE = "New run"
ORDER = 20
CLONES = 50
"""Newest runs that are offered to be cloned; the address can name any other."""
POLL_SECONDS = 1.0
TRAINING = ("train", "preflight")


def build(studio: Studio) -> None:
    """Build the form on the left, and actions, preflight and YAML on the right."""
    _Page(studio).connect()


class _Page:
    """Components and events of the page; each browser tab edits a draft of its own."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.launch = studio, studio.launch
        self.writable = not studio.context.read_only
        kinds = self.launch.run_form().kinds
        self.specs: dict[str, JsonObject] = {kind: dict(self.launch.run_form(kind)) for kind in kinds}
        first = Draft()  # the page shows the default at once; the event `address.input` opens a draft of its own
        checked = self._begin(first, f"preset:{DEFAULT_PRESET}", self.launch.get_preset(DEFAULT_PRESET))

        self.draft = gr.State()
        self.address = page_frame(studio, TITLE, [Key("Ctrl+Enter", "start the run", "#nr-start", typing=True)])
        self.drafts = Stored("rl2f.drafts")
        with gr.Row(elem_classes="nr-head", equal_height=True):
            self._build_head()
        self.source = View()
        self.notice = View()
        self.own_data = OwnDataCard()
        with gr.Row(elem_classes="nr-columns", equal_height=False) as self.body:
            self.form = Form(draw_form(first), around="nr-columns", elem_id="nr-form")
            with gr.Column(elem_classes="nr-right"):
                with gr.Column(elem_classes=["rl-card", "nr-act"]):
                    self._build_actions(first)
                self.plan = ScheduleCard()
                with gr.Column(visible=False, elem_id="nr-result", elem_classes="rl-card") as self.result:
                    self.verdict, self.histogram, self.facts = View(), Charts(), View()
                with gr.Accordion("YAML", open=True, elem_classes="nr-code"):
                    self._build_yaml(first, checked)
        self.go = gr.Textbox(visible="hidden", elem_classes="rl-hidden")
        self.timer = gr.Timer(POLL_SECONDS, active=False)

    def _build_head(self) -> None:
        gr.Markdown("# New run", elem_classes="nr-title")
        default = [(show.spaced(DEFAULT_PRESET), DEFAULT_PRESET)]
        self.preset = gr.Dropdown(default, value=DEFAULT_PRESET, label="Preset", elem_id="nr-preset", min_width=180)
        self.variant = gr.Dropdown([], label="Variant", elem_id="nr-variant", visible=False, min_width=180)
        self.clone = gr.Dropdown([], label="Clone a run", elem_id="nr-clone", min_width=180)
        self.kind = gr.Dropdown(list(self.specs), value="train", label="Kind", elem_id="nr-kind", min_width=90)
        files = [".yaml", ".yml"]
        self.upload = gr.UploadButton("Load YAML", file_types=files, type="binary", size="sm", min_width=90)
        self.open_own_data = gr.Button(
            "Own data …", size="sm", min_width=90, interactive=self.writable, elem_id="nr-own-data"
        )

    def _build_actions(self, first: Draft) -> None:
        self.summary = View(self._summary(first), elem_id="nr-summary")
        options: JsonObject = {"interactive": self.writable, "min_width": 80}
        with gr.Row(elem_classes="nr-buttons"):
            self.preflight = gr.Button("Preflight", elem_id="nr-preflight", **options)
            self.schedule = gr.Button("Schedule …", elem_id="nr-schedule", **options)
            self.start = gr.Button("Start now", variant="primary", elem_id="nr-start", **options)

    def _build_yaml(self, first: Draft, state: FormState) -> None:
        self.command = View(show.command(state), elem_id="nr-command")
        hint = "override, e.g. stages.1.steps=5"
        self.override = gr.Textbox(
            show_label=False, label="Override", placeholder=hint, elem_id="nr-override", max_lines=1
        )
        self.yaml = Form(draw_yaml(first), elem_id="nr-yaml")

    def connect(self) -> None:
        """Connect the events."""
        draft, address, drafts = self.draft, self.address, self.drafts
        ordered, item = in_order(PATH), in_order(PATH, "multiple")
        of_kind = [self.kind, self.preflight, self.schedule, self.start]
        updated = [self.form, self.yaml, self.summary, self.command, drafts, *of_kind]
        where = [draft, address, self.preset, self.variant, self.clone]
        opened = [*where, self.source, self.notice, self.body, self.timer, self.result, *updated]
        address.input(self.open_page, [draft, address, drafts], opened, js=drafts.reader(), **ordered)
        self.preset.input(self.open_preset, [draft, self.preset, drafts], opened, js=drafts.reader(), **ordered)
        self.variant.input(self.open_preset, [draft, self.variant, drafts], opened, js=drafts.reader(), **ordered)
        self.clone.input(self.open_clone, [draft, self.clone, drafts], opened, js=drafts.reader(), **ordered)
        self.notice.click(self.discard, draft, [self.notice, *updated], **ordered)
        self.kind.input(self.choose_kind, [draft, self.kind], updated, **ordered)
        loaded = [self.source, self.notice, *updated]
        self.upload.upload(self.load_file, [draft, self.upload], loaded, **ordered)
        self.form.input(self.edit, draft, updated, **item)
        self.form.click(self.act, draft, updated, **ordered)
        self.yaml.input(self.type_yaml, draft, updated, **item)
        self.yaml.blur(self.leave_yaml, draft, updated, **item)
        self.override.submit(self.set_override, [draft, self.override], [self.override, *updated], **ordered)
        gr.on([self.summary.click, self.command.click], self.lead, draft, updated, **ordered)
        self.start.click(self.start_run, draft, [self.go, *updated], **ordered)
        self.go.change(None, self.go, None, js="(url) => { if (url) location.assign(url); }", **FAST)
        result = [self.result, self.timer, self.verdict, self.histogram, self.facts, self.summary]
        self.preflight.click(self.start_preflight, [draft, address], [self.form, address, *result], **ordered)
        self.timer.tick(self.follow, draft, result, **ordered)
        self.verdict.click(self.act_on_preflight, [draft, address], [address, *result], **ordered)
        self.plan.connect(self.launch, draft, self.schedule, self.form, self._lead_to_error, ordered)
        self.own_data.connect(self.studio, draft, self.open_own_data, self._use_environment, loaded, ordered)

    # -- the draft -------------------------------------------------------------------------------------------------
    def _set_checked(self, draft: Draft, state: FormState, text: str) -> FormState:
        """Take a checked configuration."""
        draft.checked, draft.text = state, text
        if state.data is not None:
            draft.data, draft.spec = state.data, self.specs.get(state.kind, self.specs["train"])
        return state

    def _begin(self, draft: Draft, key: str, text: str) -> FormState:
        """Start a draft from a preset or clone."""
        draft.key, draft.start = key, self.launch.form_of_yaml(text)
        draft.choices = self.launch.form_choices()
        draft.opened, draft.memory, draft.typed = set(), {}, {}
        draft.judged, draft.warnings = None, ()
        return self._set_checked(draft, draft.start, draft.start.yaml)

    def _refresh(self, draft: Draft, focus: Path | None = None, go: int | None = None) -> Updates:
        """Return the updates of a draft; the focus moves to a field or a line."""
        state = draft.checked
        assert state is not None and draft.start is not None
        draft.serial += 1
        for path in [*(tuple(error.path) for error in state.errors), focus or ()]:
            draft.reveal(path)
        is_new = draft.text == draft.start.yaml
        return {
            self.form: draw_form(draft, focus=focus),
            self.yaml: draw_yaml(draft, go=go),
            self.summary: self._summary(draft),
            self.command: show.command(state),
            self.drafts: {draft.key: None if is_new else {"yaml": draft.text, "time": time()}},
            **self._fit_kind(state.kind),
        }

    def _fit_kind(self, kind: str) -> Updates:
        """Return what depends on the kind of the run; a study has no single one, and only starts."""
        is_study = kind == STUDY
        return {
            self.kind: gr.update(value=None if is_study else kind, visible=not is_study),
            self.preflight: gr.update(visible=kind in TRAINING),
            self.schedule: gr.update(visible=not is_study),
            self.start: gr.update(value="Start study" if is_study else "Start now"),
        }

    def _summary(self, draft: Draft) -> list[Node]:
        """Return status, size and changes of the run, which are shown beside the button *Start now*."""
        state = draft.checked
        if state is None:  # the address named nothing that can be opened
            return []
        judged = None if show.is_outdated(draft.judged, state) else draft.judged
        return show.summary(state, self._estimate(draft), draft.changes(), draft.open_warnings(), judged)

    def _estimate(self, draft: Draft) -> Estimate | None:
        """Return the size of the draft's run; the pace of a model is read once."""
        state = draft.checked

        def pace_of(model: str) -> Pace | None:
            if model not in draft.paces:
                draft.paces[model] = self.launch.pace_of(model)
            return draft.paces[model]

        if state is not None and state.study is not None:
            return estimate_study([*state.study.arms.values()], len(state.study.settings.seeds), pace_of)
        return None if state is None or state.config is None else estimate(state.config, pace_of)

    def _check_form(self, draft: Draft) -> Updates:
        state = self.launch.yaml_of_form(draft.data, draft.text or None)
        self._set_checked(draft, state, state.yaml)
        return self._refresh(draft)

    def _use_environment(self, draft: Draft, environment: JsonObject, file: str, warnings: Sequence[str]) -> Updates:
        draft.choices = self.launch.form_choices()
        draft.leave_task(file.partition(".")[0], warnings)
        draft.data["environment"] = environment
        return {self.source: show.note(f"Own data: {file}."), self.notice: None, **self._check_form(draft)}

    def _lead_to_error(self, draft: Draft) -> Updates | None:
        """Return None, or updates that move the focus to the first error."""
        state = draft.checked
        if state is None or state.ok:
            return None
        problem = state.yaml_error
        if problem is not None:
            gr.Warning("The YAML cannot be read.")
            return self._refresh(draft, go=problem.line or 1)
        gr.Warning("Fix the errors first.")
        return self._refresh(draft, focus=next((tuple(e.path) for e in state.errors if e.path), None))

    # -- where the form starts -------------------------------------------------------------------------------------
    def _open(self, draft: Draft, query: dict[str, str], stored: JsonObject) -> Updates:
        number, name = query.get("clone"), query.get("preset") or DEFAULT_PRESET
        run, _, checkpoint = query.get("evaluate", "").partition(":")
        if checkpoint:
            key, parent = f"evaluate:{run}:{checkpoint}", int(run)
            text = self.studio.run.draft_evaluation(parent, checkpoint)
        elif number:
            key, parent = f"clone:{number}", int(number)
            text = self.launch.clone_run(parent)
        else:
            key, parent, text = f"preset:{name}", None, self.launch.get_preset(name)
        draft.parent = parent
        start = self._begin(draft, key, text)
        found = stored.get(draft.key) or {}
        was = found.get("yaml")
        back = None
        if isinstance(was, str) and was not in (text, start.yaml):
            self._set_checked(draft, self.launch.form_of_yaml(was), was)
            back = show.restored(found.get("time") or time())
        presets = [*self.launch.list_presets(), *self.launch.list_study_presets()]
        chosen = None if parent else name
        variants = show.variant_choices(presets, chosen)
        listed = [(show.clone_label(run), str(run.id)) for run in self.studio.runs.list_runs(limit=CLONES).rows]
        if number and number not in [value for _, value in listed]:
            listed.insert(0, (f"#{number}", number))
        draft.preflight = whole_number(query.get("preflight", ""), None)
        assert draft.checked is not None
        return {
            self.draft: draft,
            self.address: query,
            self.preset: gr.update(choices=show.preset_choices(presets, chosen), value=chosen),
            self.variant: gr.update(choices=variants, value=chosen if variants else None, visible=bool(variants)),
            self.clone: gr.update(choices=listed, value=number),
            self.source: show.about(presets, chosen, parent, checkpoint),
            self.notice: back,
            self.body: gr.update(visible=True),
            self.timer: gr.update(active=draft.preflight is not None),
            self.result: gr.update(visible=draft.preflight is not None),
            **self._refresh(draft),
        }

    @handler
    def open_page(self, draft: Draft | None, query: dict[str, str], stored: JsonObject) -> Updates:
        """Open the draft of the address; changes that the browser stored come back."""
        draft = draft or Draft()
        try:
            return self._open(draft, query, stored)
        except (RL2FError, ValueError) as error:
            text, fix = getattr(error, "what", str(error)), getattr(error, "fix", None)
            nearest = getattr(error, "known", None) or () if "preset" in query else ()
            value = getattr(error, "value", None)
            message = show.missing(f"{text} Got: {value!r}." if value else text, fix, nearest)
        hidden = gr.update(visible=False)
        shown: Updates = {self.source: message, self.notice: None, self.body: hidden, self.result: hidden}
        return {self.draft: draft, self.address: query, **shown}

    def open_preset(self, draft: Draft | None, name: str | None, stored: JsonObject) -> Updates:
        """Start from a preset."""
        return self.open_page(draft, {"preset": name or DEFAULT_PRESET}, stored)

    def open_clone(self, draft: Draft | None, number: str, stored: JsonObject) -> Updates:
        """Start from a copy of a run."""
        return self.open_page(draft, {"clone": number}, stored)

    @once_opened
    def discard(self, draft: Draft) -> Updates:
        """Return to the preset or the copy."""
        assert draft.start is not None
        self._set_checked(draft, draft.start, draft.start.yaml)
        return {self.notice: None, **self._refresh(draft)}

    @once_opened
    def choose_kind(self, draft: Draft, name: str) -> Updates:
        """Change the kind of the run."""
        if draft.checked is None or draft.checked.yaml_error is not None:
            gr.Warning("Fix the YAML first.")
            return {self.kind: draft.checked.kind if draft.checked else gr.skip()}
        state = self.launch.yaml_of_form(draft.data, draft.text, name)
        self._set_checked(draft, state, state.yaml)
        return self._refresh(draft)

    @once_opened
    def load_file(self, draft: Draft, content: bytes) -> Updates:
        """Take the configuration of a file."""
        text = content.decode("utf-8", errors="replace")
        if len(text) > self.specs["train"]["max_characters"]:
            gr.Warning("That file is too large for a configuration.")
            return gr.skip()
        state = self.launch.form_of_yaml(text)
        self._set_checked(draft, state, state.yaml if state.ok else text)
        return {self.source: show.note("Loaded from a file."), self.notice: None, **self._refresh(draft)}

    # -- edits -----------------------------------------------------------------------------------------------------
    @once_opened
    def edit(self, draft: Draft, event: gr.EventData) -> Updates:
        """Take the edits of inputs of the form."""
        data = event._data
        if data["draft"] != draft.key:
            return gr.skip()
        for name, value, number in data["edits"]:
            if number > draft.count and name in draft.controls:
                draft.controls[name](value)
                draft.typed[name] = (value, None)
        draft.count = max(draft.count, *(number for _, _, number in data["edits"]))
        return self._check_form(draft)

    @once_opened
    def type_yaml(self, draft: Draft, event: gr.EventData) -> Updates:
        """Take the edited YAML."""
        data = event._data
        if data["draft"] != draft.key:
            return gr.skip()
        _, text, number = data["edits"][0]
        if number > draft.text_count:
            draft.text_count = number
            self._set_checked(draft, self.launch.form_of_yaml(text), text)
        return self._refresh(draft)

    @once_opened
    def act(self, draft: Draft, event: gr.EventData) -> Updates:
        """Do what a button of the form says."""
        data = event._data
        draft.change(data["action"], data.get("fold", ""), data.get("at", ""))
        return self._check_form(draft)

    @once_opened
    def leave_yaml(self, draft: Draft) -> Updates:
        """Write a valid configuration with all defaults."""
        if draft.checked is None or not draft.checked.ok:
            return gr.skip()
        draft.text = draft.checked.yaml
        return self._refresh(draft)

    @once_opened
    def set_override(self, draft: Draft, text: str) -> Updates:
        """Set the value of a path."""
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("An override is PATH=VALUE.", value=text, fix="For example stages.1.steps=5.")
        draft.data = dict(set_nested(draft.data, path.strip(), pyyaml.safe_load(value)))
        return {self.override: "", **self._check_form(draft)}

    # -- start -----------------------------------------------------------------------------------------------------
    @once_opened
    def lead(self, draft: Draft, event: gr.EventData) -> Updates:
        """Move the focus to the field or line of an error."""
        at, line = event._data.get("at"), event._data.get("line")
        return self._refresh(draft, focus=tuple(json.loads(at)) if at else None, go=line and int(line))

    @once_opened
    def start_run(self, draft: Draft) -> Updates:
        """Start the run, and open its page."""
        if lost := self._lead_to_error(draft):
            return lost
        assert draft.checked is not None
        state = draft.checked
        if state.study is not None:
            self.launch.launch_study(state.yaml)
            url = page_url("compare", study=state.study.name)
        else:
            url = self.launch.launch_run(validated(ConfigSource, {"yaml": state.yaml}), draft.parent).url
        return {self.go: url, self.drafts: {draft.key: None}}

    # -- preflight -------------------------------------------------------------------------------------------------
    def _show_preflight(self, draft: Draft) -> Updates:
        """Return progress or result of the preflight."""
        assert draft.preflight is not None
        now = self.launch.get_preflight(draft.preflight)
        if now.verdict is None:
            return {self.verdict: show.preflight_progress(now), self.histogram: [], self.facts: None}
        draft.judged = now
        return {
            self.summary: self._summary(draft),
            self.verdict: show.preflight_verdict(now, show.is_outdated(now, draft.checked)),
            self.histogram: show.preflight_charts(now),
            self.facts: show.preflight_facts(now),
        }

    def _hide_preflight(self, draft: Draft) -> Updates:
        draft.preflight = draft.judged = None
        emptied: Updates = {
            self.verdict: None,
            self.histogram: [],
            self.facts: None,
            self.summary: self._summary(draft),
        }
        return {self.result: gr.update(visible=False), self.timer: gr.update(active=False), **emptied}

    @once_opened
    def start_preflight(self, draft: Draft, query: dict[str, str]) -> Updates:
        """Start a preflight, and name it in the address."""
        if lost := self._lead_to_error(draft):
            return {self.form: lost[self.form]}
        assert draft.checked is not None
        draft.preflight = self.launch.preflight_config(
            validated(ConfigSource, {"yaml": draft.checked.yaml}), draft.parent
        ).run
        return {
            self.address: {**query, "preflight": str(draft.preflight)},
            self.result: gr.update(visible=True),
            self.timer: gr.update(active=True),
            **self._show_preflight(draft),
        }

    @handler
    def follow(self, draft: Draft) -> Updates:
        """Show the progress of the preflight."""
        if draft.preflight is None:
            return {self.result: gr.update(visible=False), self.timer: gr.update(active=False)}
        try:
            return self._show_preflight(draft)
        except RL2FError:  # the run was deleted
            return self._hide_preflight(draft)

    @handler
    def act_on_preflight(self, draft: Draft, query: dict[str, str], event: gr.EventData) -> Updates:
        """Cancel the preflight, or close its card."""
        if event._data["action"] == "cancel" and draft.preflight is not None:
            self.launch.abort_preflight(draft.preflight)
            return self._show_preflight(draft)
        rest = {name: value for name, value in query.items() if name != "preflight"}
        return {self.address: rest, **self._hide_preflight(draft)}
