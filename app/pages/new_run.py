"""Page New run: a form and its YAML side by side, to check, start or schedule."""

from __future__ import annotations

import json
from time import time
from typing import Any

import gradio as gr
import yaml as pyyaml

from app.components.charts import Charts
from app.components.form import Form
from app.components.keys import Key
from app.components.stored import Stored
from app.components.view import View
from app.endpoints.launch import FormState
from app.endpoints.studio import Studio
from app.pages import _new_run_view as show
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._new_run_draft import Draft, Path
from app.pages._new_run_form import draw_form, draw_yaml
from app.pages._new_run_own_data import OwnDataCard
from app.pages._new_run_schedule import ScheduleCard
from rl2f_core.config.overrides import set_nested
from rl2f_core.errors import ConfigError, RL2FError

PATH = "new"
TITLE = "New run"
ORDER = 20
DEFAULT_PRESET = "quickstart"
CLONES = 50
"""Newest runs that are offered to be cloned; the address can name any other."""
POLL_SECONDS = 1.0
TRAINING = ("train", "preflight")
EACH_EDIT: dict[str, Any] = {**FAST, "trigger_mode": "multiple"}
"""Options of an edit; with `always_last`, Gradio sends the data of an older event again."""


def build(studio: Studio) -> None:
    """Build the form on the left, and actions, preflight and YAML on the right."""
    launch = studio.launch
    writable = not studio.context.read_only
    presets = launch.list_presets()
    specs: dict[str, dict[str, Any]] = {kind: dict(launch.run_form(kind)) for kind in launch.run_form()["kinds"]}

    def take(held: Draft, state: FormState, text: str) -> None:
        """Take a checked configuration."""
        held.checked, held.text = state, text
        if state["data"] is not None:
            held.data, held.spec = state["data"], specs[state["kind"]]

    def begin(held: Draft, key: str, text: str) -> None:
        """Start a draft from a preset or clone."""
        held.key, held.start = key, launch.form_of_yaml(text)
        held.choices = launch.form_choices()
        held.opened, held.memory, held.typed = set(), {}, {}
        take(held, held.start, held.start["yaml"])

    first = Draft()  # the page shows the default at once; the event `address.input` opens a draft of its own
    begin(first, f"preset:{DEFAULT_PRESET}", launch.get_preset(DEFAULT_PRESET))
    assert first.checked is not None

    draft = gr.State()
    address = page_frame(studio, TITLE, [Key("Ctrl+Enter", "start the run", "#nr-start", typing=True)])
    drafts = Stored("rl2f.drafts")
    with gr.Row(elem_classes="nr-head", equal_height=True):
        gr.Markdown("# New run", elem_classes="nr-title")
        preset = gr.Dropdown(
            show.preset_choices(presets, None), value=DEFAULT_PRESET, label="Preset", elem_id="nr-preset", min_width=180
        )
        variant = gr.Dropdown([], label="Variant", elem_id="nr-variant", visible=False, min_width=180)
        clone = gr.Dropdown([], label="Clone a run", elem_id="nr-clone", min_width=180)
        kind = gr.Dropdown(list(specs), value="train", label="Kind", elem_id="nr-kind", min_width=90)
        upload = gr.UploadButton("Load YAML", file_types=[".yaml", ".yml"], type="binary", size="sm", min_width=90)
        own_data = gr.Button("Own data …", size="sm", min_width=90, interactive=writable, elem_id="nr-own-data")
    source = View(show.about(presets, DEFAULT_PRESET, None))
    notice = View()
    own = OwnDataCard()
    with gr.Row(elem_classes="nr-columns", equal_height=False) as body:
        form = Form(draw_form(first), around="nr-columns", elem_id="nr-form")
        with gr.Column(elem_classes="nr-right"):
            with gr.Column(elem_classes=["rl-card", "nr-act"]):
                summary = View(show.summary(first.checked), elem_id="nr-summary")
                with gr.Row(elem_classes="nr-buttons"):
                    preflight = gr.Button("Preflight", elem_id="nr-preflight", interactive=writable, min_width=80)
                    schedule = gr.Button("Schedule …", elem_id="nr-schedule", interactive=writable, min_width=80)
                    start = gr.Button(
                        "Start now", variant="primary", elem_id="nr-start", interactive=writable, min_width=80
                    )
            planned = ScheduleCard()
            with gr.Column(visible=False, elem_id="nr-result", elem_classes="rl-card") as result:
                verdict = View()
                histogram = Charts()
                facts = View()
            with gr.Accordion("YAML", open=True, elem_classes="nr-code"):
                command = View(show.command(first.checked), elem_id="nr-command")
                override = gr.Textbox(
                    show_label=False,
                    label="Override",
                    placeholder="override, e.g. stages.1.steps=5",
                    elem_id="nr-override",
                    max_lines=1,
                )
                yaml = Form(draw_yaml(first), elem_id="nr-yaml")
    go = gr.Textbox(visible="hidden", elem_classes="rl-hidden")
    timer = gr.Timer(POLL_SECONDS, active=False)

    # -- edits -----------------------------------------------------------------------------------------------------
    updated = [form, yaml, summary, command, drafts]
    NOTHING: list[Any] = [gr.skip() for _ in updated]

    def refresh(held: Draft, focus: Path | None = None, go: int | None = None) -> list[Any]:
        """Return the updates of a draft; the focus moves to a field or a line."""
        state = held.checked
        assert state is not None and held.start is not None
        held.serial += 1
        for path in [*(tuple(error["path"]) for error in state["errors"]), focus or ()]:
            held.reveal(path)
        is_new = held.text == held.start["yaml"]
        return [
            draw_form(held, focus=focus),
            draw_yaml(held, go=go),
            show.summary(state),
            show.command(state),
            {held.key: None if is_new else {"yaml": held.text, "time": time()}},
        ]

    def check_form(held: Draft) -> list[Any]:
        state = launch.yaml_of_form(held.data, held.text)
        take(held, state, state["yaml"])
        return refresh(held)

    @handler
    def edit(held: Draft | None, event: gr.EventData) -> list[Any]:
        data = event._data
        if held is None or data["draft"] != held.key:
            return NOTHING
        with held.lock:
            for name, value, number in data["edits"]:
                if number > held.count and name in held.controls:
                    held.controls[name](value)
                    held.typed[name] = (value, None)
            held.count = max(held.count, *(number for _, _, number in data["edits"]))
            return check_form(held)

    @handler
    def type_yaml(held: Draft | None, event: gr.EventData) -> list[Any]:
        data = event._data
        if held is None or data["draft"] != held.key:
            return NOTHING
        with held.lock:
            _, text, number = data["edits"][0]
            if number > held.text_count:
                held.text_count = number
                take(held, launch.form_of_yaml(text), text)
            return refresh(held)

    @handler
    def act(held: Draft | None, event: gr.EventData) -> list[Any]:
        if held is None:
            return NOTHING
        with held.lock:
            data = event._data
            held.change(data["action"], data.get("fold", ""), data.get("at", ""))
            return check_form(held)

    @handler
    def leave_yaml(held: Draft | None) -> list[Any]:
        if held is None or held.checked is None or not held.checked["ok"]:
            return NOTHING
        with held.lock:
            held.text = held.checked["yaml"]  # with all defaults
            return refresh(held)

    @handler
    def set_override(held: Draft, text: str) -> list[Any]:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("An override is PATH=VALUE.", value=text, fix="For example stages.1.steps=5.")
        with held.lock:
            held.data = dict(set_nested(held.data, path.strip(), pyyaml.safe_load(value)))
            return ["", *check_form(held)]

    # -- where the form starts -------------------------------------------------------------------------------------
    def open_draft(held: Draft, query: dict[str, str], stored: dict[str, Any]) -> list[Any]:
        number, name = query.get("clone"), query.get("preset") or DEFAULT_PRESET
        text = launch.clone_run(int(number)) if number else launch.get_preset(name)
        held.parent = int(number) if number else None
        begin(held, f"clone:{number}" if number else f"preset:{name}", text)
        assert held.start is not None and held.checked is not None
        found = stored.get(held.key) or {}
        was = found.get("yaml")
        back = None
        if isinstance(was, str) and was not in (text, held.start["yaml"]):
            take(held, launch.form_of_yaml(was), was)
            back = show.restored(found.get("time") or time())
        chosen = None if number else name
        variants = show.variant_choices(presets, chosen)
        listed = [(show.clone_label(run), str(run["id"])) for run in studio.runs.list_runs(limit=CLONES)["rows"]]
        if number and number not in [value for _, value in listed]:
            listed.insert(0, (f"#{number}", number))
        held.preflight = int(query["preflight"]) if query.get("preflight", "").isdigit() else None
        return [
            held,
            query,
            gr.update(choices=show.preset_choices(presets, chosen), value=chosen),
            gr.update(choices=variants, value=chosen if variants else None, visible=bool(variants)),
            gr.update(choices=listed, value=number),
            held.checked["kind"],
            show.about(presets, chosen, held.parent),
            back,
            gr.update(visible=True),
            gr.update(active=held.preflight is not None),
            gr.update(visible=held.preflight is not None),
            *refresh(held),
        ]

    opened = [draft, address, preset, variant, clone, kind, source, notice, body, timer, result, *updated]

    @handler
    def open_page(held: Draft | None, query: dict[str, str], stored: dict[str, Any]) -> list[Any]:
        held = held or Draft()
        with held.lock:
            try:
                return open_draft(held, query, stored)
            except (RL2FError, ValueError) as error:
                text, fix = getattr(error, "what", str(error)), getattr(error, "fix", None)
                message = show.missing(str(error) if getattr(error, "value", None) else text, fix)
                hidden = gr.update(visible=False)
                return [held, query, *[gr.skip()] * 4, message, None, hidden, gr.skip(), hidden, *NOTHING]

    def open_preset(held: Draft, name: str | None, stored: dict[str, Any]) -> list[Any]:
        return open_page(held, {"preset": name or DEFAULT_PRESET}, stored)

    def open_clone(held: Draft, number: str, stored: dict[str, Any]) -> list[Any]:
        return open_page(held, {"clone": number}, stored)

    @handler
    def discard(held: Draft) -> list[Any]:
        with held.lock:
            assert held.start is not None
            take(held, held.start, held.start["yaml"])
            return [None, held.start["kind"], *refresh(held)]

    @handler
    def choose_kind(held: Draft, name: str) -> list[Any]:
        with held.lock:
            if held.checked is None or held.checked["yaml_error"] is not None:
                gr.Warning("Fix the YAML first.")
                return [held.checked["kind"] if held.checked else gr.skip(), gr.skip(), *NOTHING]
            state = launch.yaml_of_form(held.data, held.text, name)
            take(held, state, state["yaml"])
            return [name, gr.update(visible=name in TRAINING), *refresh(held)]

    @handler
    def load_file(held: Draft, content: bytes) -> list[Any]:
        text = content.decode("utf-8", errors="replace")
        if len(text) > specs["train"]["max_characters"]:
            gr.Warning("That file is too large for a configuration.")
            return [gr.skip(), gr.skip(), *NOTHING]
        with held.lock:
            state = launch.form_of_yaml(text)
            take(held, state, state["yaml"] if state["ok"] else text)
            return [state["kind"], show.note("Loaded from a file."), *refresh(held)]

    address.input(open_page, [draft, address, drafts], opened, js=drafts.reader(), **FAST)
    for chooser, opens in ((preset, open_preset), (variant, open_preset), (clone, open_clone)):
        chooser.input(handler(opens), [draft, chooser, drafts], opened, js=drafts.reader(), **FAST)
    notice.click(discard, draft, [notice, kind, *updated], **FAST)
    kind.input(choose_kind, [draft, kind], [kind, preflight, *updated], **QUEUED)
    upload.upload(load_file, [draft, upload], [kind, source, *updated], **QUEUED)
    form.input(edit, draft, updated, **EACH_EDIT)
    form.click(act, draft, updated, **FAST)
    yaml.input(type_yaml, draft, updated, **EACH_EDIT)
    yaml.blur(leave_yaml, draft, updated, **EACH_EDIT)
    override.submit(set_override, [draft, override], [override, *updated], **FAST)

    # -- start -----------------------------------------------------------------------------------------------------
    def lead_to_error(held: Draft) -> list[Any] | None:
        """Return None, or updates that move the focus to the first error."""
        state = held.checked
        if state is None or state["ok"]:
            return None
        problem = state["yaml_error"]
        if problem is not None:
            gr.Warning("The YAML cannot be read.")
            return refresh(held, go=problem["line"] or 1)
        gr.Warning("Fix the errors first.")
        return refresh(held, focus=next((tuple(e["path"]) for e in state["errors"] if e["path"]), None))

    @handler
    def lead(held: Draft, event: gr.EventData) -> list[Any]:
        with held.lock:
            at, line = event._data.get("at"), event._data.get("line")
            return refresh(held, focus=tuple(json.loads(at)) if at else None, go=line and int(line))

    @handler
    def start_run(held: Draft) -> list[Any]:
        with held.lock:
            if lost := lead_to_error(held):
                return [gr.skip(), *lost]
            assert held.checked is not None
            queued = launch.launch_run(yaml=held.checked["yaml"], parent=held.parent)
            return [queued["url"], *NOTHING[:-1], {held.key: None}]

    gr.on([summary.click, command.click], lead, draft, updated, **FAST)
    start.click(start_run, draft, [go, *updated], **QUEUED)
    go.change(None, go, None, js="(url) => { if (url) location.assign(url); }", **FAST)

    # -- preflight -------------------------------------------------------------------------------------------------
    @handler
    def start_preflight(held: Draft, query: dict[str, str]) -> list[Any]:
        with held.lock:
            if lost := lead_to_error(held):
                return [lost[0], query, *[gr.skip()] * 5]
            assert held.checked is not None
            queued = launch.preflight_config(yaml=held.checked["yaml"], parent=held.parent)
            held.preflight = queued["run"]
            now = {**query, "preflight": str(queued["run"])}
            return [gr.skip(), now, gr.update(visible=True), gr.update(active=True), *preflight_views(held)]

    def preflight_views(held: Draft) -> list[Any]:
        assert held.preflight is not None
        now = launch.get_preflight(held.preflight)
        if now["verdict"] is None:
            return [show.preflight_progress(now), [], None]
        old = show.is_outdated(now, held.checked)
        return [show.preflight_verdict(now, old), show.preflight_charts(now), show.preflight_facts(now)]

    @handler
    def follow(held: Draft) -> list[Any]:
        if held.preflight is None:
            return [gr.update(visible=False), gr.update(active=False), gr.skip(), gr.skip(), gr.skip()]
        try:
            views = preflight_views(held)
        except RL2FError:  # the run was deleted
            held.preflight = None
            return [gr.update(visible=False), gr.update(active=False), None, [], None]
        return [gr.skip(), gr.skip(), *views]

    @handler
    def act_on_preflight(held: Draft, query: dict[str, str], event: gr.EventData) -> list[Any]:
        if event._data["action"] == "cancel" and held.preflight is not None:
            launch.abort_preflight(held.preflight)
            return [query, gr.skip(), gr.skip(), *preflight_views(held)]
        held.preflight = None
        rest = {name: value for name, value in query.items() if name != "preflight"}
        return [rest, gr.update(visible=False), gr.update(active=False), None, [], None]

    panel = [verdict, histogram, facts]
    preflight.click(start_preflight, [draft, address], [form, address, result, timer, *panel], **QUEUED)
    timer.tick(follow, draft, [result, timer, *panel], **FAST)
    verdict.click(act_on_preflight, [draft, address], [address, result, timer, *panel], **FAST)

    planned.connect(launch, draft, schedule, form, lead_to_error)

    # -- own data --------------------------------------------------------------------------------------------------
    def use_environment(held: Draft, environment: dict[str, Any]) -> list[Any]:
        with held.lock:
            held.choices = launch.form_choices()
            held.data = {**held.data, "environment": environment}
            return check_form(held)

    own.connect(studio, draft, own_data, use_environment, updated)
