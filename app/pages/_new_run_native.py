"""Native page New run, not registered yet: a form and its YAML side by side, to check, start or schedule.

To register it, rename this file to `new_run.py` and `app/static/new_run_native.css` to `new_run.css`, and delete
`new_run.js` and `form.js`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from time import time
from typing import Any, cast
from zoneinfo import ZoneInfo

import gradio as gr
import yaml as pyyaml

from app.components.address import Address
from app.components.charts import Charts
from app.components.field_errors import FieldErrors
from app.components.keys import Key, Keys
from app.components.stored import Stored
from app.components.view import View
from app.endpoints.launch import Trigger
from app.endpoints.studio import Studio
from app.pages import _new_run_view as show
from app.pages._events import FAST, QUEUED, handler
from app.pages._new_run_draft import (
    REST,
    Draft,
    Field,
    count_changes,
    dotted,
    get_value,
    is_section,
    parse_path,
)
from app.pages._new_run_form import SectionForm
from rl2f_core.config.overrides import set_nested
from rl2f_core.errors import ConfigError, RL2FError

PATH = "new"
TITLE = "New run"
ORDER = 20
DEFAULT_PRESET = "quickstart"
CLONES = 50
"""Newest runs that are offered to be cloned; the address can name any other."""
POLL_SECONDS = 1.0
ECHO_SECONDS = 1.5
"""Time in which a text that the server wrote into the YAML field is not an edit by the user."""
TRAINING = ("train", "preflight")
TRIGGERS = [("once", "date"), ("repeat (cron)", "cron")]
Group = tuple[str, list[Field]]
"""Title of a row of plain fields (empty for sections), and its fields."""


def groups(root: Field, *, basic: bool) -> list[list[Group]]:
    """Return the parts of the form that are drawn together, so that an edit redraws little."""
    fields = [each for each in root["fields"] if each["basic"] == basic]
    plain = [each for each in fields if not is_section(each["node"])]
    found: list[list[Group]] = [[("run" if basic else "other", plain)]] if plain else []
    for each in fields:
        if not is_section(each["node"]):
            continue
        if found and each["node"]["kind"] == "object" and not any(_is_large(part) for part in found[-1]):
            found[-1].append(("", [each]))
        else:
            found.append([("", [each])])
    return found


def _is_large(part: Group) -> bool:
    return part[0] == "" and part[1][0]["node"]["kind"] != "object"


def build(studio: Studio) -> None:
    """Build the form on the left, and actions, preflight and YAML on the right."""
    launch = studio.launch
    writable = not studio.context.read_only
    presets = launch.list_presets()
    specs: dict[str, dict[str, Any]] = {kind: dict(launch.run_form(kind)) for kind in launch.run_form()["kinds"]}
    sizes = {basic: max(len(groups(spec["root"], basic=basic)) for spec in specs.values()) for basic in (True, False)}

    draft = gr.State()
    address = Address(TITLE)
    drafts = Stored("rl2f.drafts")
    Keys(TITLE, [Key("Ctrl+Enter", "start the run", "#nr-start", typing=True)])
    with gr.Row(elem_classes="nr-head", equal_height=True):
        gr.Markdown("# New run", elem_classes="nr-title")
        preset = gr.Dropdown(show.preset_choices(presets, None), label="Preset", elem_id="nr-preset", min_width=180)
        variant = gr.Dropdown([], label="Variant", elem_id="nr-variant", visible=False, min_width=180)
        clone = gr.Dropdown([], label="Clone a run", elem_id="nr-clone", min_width=180)
        kind = gr.Dropdown(list(specs), label="Kind", elem_id="nr-kind", min_width=90)
        upload = gr.UploadButton("Load YAML", file_types=[".yaml", ".yml"], type="binary", size="sm", min_width=90)
    source = View()
    notice = View()
    with gr.Row(elem_classes="nr-columns", equal_height=False) as body:
        with gr.Column(elem_id="nr-form", elem_classes="nr-left"):
            pools = []
            for basic in (True, False):
                with gr.Column(elem_classes=["rl-card", "rf-rows", "" if basic else "rf-rest"]):
                    if not basic:
                        more = View(elem_id="nr-more")
                    pools.append([gr.Column(elem_classes="rf-part") for _ in range(sizes[basic])])
        with gr.Column(elem_classes="nr-right"):
            with gr.Column(elem_classes=["rl-card", "nr-act"]):
                summary = View(elem_id="nr-summary")
                with gr.Row(elem_classes="nr-buttons"):
                    preflight = gr.Button("Preflight", elem_id="nr-preflight", interactive=writable, min_width=80)
                    schedule = gr.Button("Schedule …", elem_id="nr-schedule", interactive=writable, min_width=80)
                    start = gr.Button(
                        "Start now", variant="primary", elem_id="nr-start", interactive=writable, min_width=80
                    )
            with gr.Column(visible=False, elem_id="nr-plan", elem_classes="rl-card") as plan:
                gr.Markdown("## Schedule this run")
                plan_name = gr.Textbox(label="Name", max_length=100, elem_id="nr-plan-name")
                trigger = gr.Radio(TRIGGERS, value="date", show_label=False)
                plan_at = gr.DateTime(label="Time", type="string", elem_id="nr-plan-at")
                plan_cron = gr.Textbox("0 2 * * *", label="Cron fields", visible=False, elem_id="nr-plan-cron")
                examples = View(show.cron_examples(), visible=False)
                plan_zone = gr.Dropdown([], label="Time zone", elem_id="nr-plan-zone")
                upcoming = View(elem_id="nr-next")
                with gr.Row(elem_classes="nr-buttons"):
                    plan_cancel = gr.Button("Cancel", min_width=80)
                    plan_save = gr.Button("Schedule", variant="primary", elem_id="nr-plan-save", min_width=80)
            with gr.Column(visible=False, elem_id="nr-result", elem_classes="rl-card") as result:
                verdict = View()
                histogram = Charts()
                facts = View()
            with gr.Accordion("YAML", open=True, elem_classes="nr-code"):
                command = View(elem_id="nr-command")
                override = gr.Textbox(
                    show_label=False,
                    label="Override",
                    placeholder="override, e.g. stages.1.steps=5",
                    elem_id="nr-override",
                    max_lines=1,
                )
                yaml = gr.Textbox(label="YAML", show_label=False, lines=24, max_lines=24, elem_id="nr-yaml")
    marks = FieldErrors("nr-form", "nr-yaml")
    go = gr.Textbox(visible="hidden")
    timer = gr.Timer(POLL_SECONDS, active=False)
    slots = [(basic, i) for basic in (True, False) for i in range(sizes[basic])]
    seeds = [gr.Textbox(visible="hidden") for _ in slots]
    zone = gr.Textbox(visible="hidden")

    # -- what an edit changes --------------------------------------------------------------------------------------
    def drawn(held: Draft, slot: tuple[bool, int]) -> list[Group]:
        basic, i = slot
        found = groups(held.spec["root"], basic=basic) if held.spec else []
        return found[i] if i < len(found) and (basic or REST in held.opened) else []

    def seed_updates(held: Draft, old: Any, redraw: Callable[[list[Group]], bool]) -> list[Any]:
        updates = []
        for slot in slots:
            parts = drawn(held, slot)
            if not parts and slot not in held.filled:
                updates.append(gr.skip())
                continue
            (held.filled.add if parts else held.filled.discard)(slot)
            changed = any(get_value(old, (f["key"],)) != held.data.get(f["key"]) for _, many in parts for f in many)
            if changed or redraw(parts) or not parts:
                held.serial += 1
                updates.append(str(held.serial))
            else:
                updates.append(gr.skip())
        return updates

    def wrong_marks(held: Draft, **more: Any) -> dict[str, Any]:
        state = held.checked
        assert state is not None
        errors: dict[str, list[str]] = {}
        for error in state["errors"]:
            errors.setdefault(error["field"], []).append(error["message"])
        problem = state["yaml_error"]
        lines = [error["line"] for error in state["errors"]] + [problem and problem["line"]]
        return {
            "errors": errors,
            "resets": {dotted(path): show_value(default) for path, default in held.changed()},
            "lines": [line for line in lines if line],
            "off": problem is not None,
            **more,
        }

    def refresh(held: Draft, old: Any, redraw: Callable[[list[Group]], bool], write: bool = True) -> list[Any]:
        """Return the updates after the draft was checked; `write` the YAML too."""
        state = held.checked
        assert state is not None
        if write:
            held.sent = {held.text: time(), **dict(list(held.sent.items())[:5])}
        before = set(held.opened)
        for error in state["errors"]:
            held.reveal(tuple(error["path"]))
        again = held.opened != before
        rest = [each for each in held.spec["root"]["fields"] if not each["basic"]]
        labels = [each["label"] for each in rest]
        return [
            held.text if write else gr.skip(),
            wrong_marks(held, serial=held.serial),
            show.summary(state),
            show.command(state),
            show.more_button(labels, REST in held.opened, count_changes(rest, held.data)),
            {held.key: None if held.text in (held.start or state)["yaml"] else {"yaml": held.text, "time": time()}},
            *seed_updates(held, old, lambda parts: again or redraw(parts)),
        ]

    updated = [yaml, marks, summary, command, more, drafts, *seeds]
    NOTHING = [gr.skip() for _ in updated]

    def take(held: Draft, state: Any, text: str) -> Any:
        """Take a checked configuration; return the data that the form shows until it is drawn again."""
        old: Any = held.data
        held.checked, held.text = state, text
        if state["data"] is not None:
            held.data = state["data"]
        if held.spec.get("kind") != state["kind"] and state["data"] is not None:
            held.spec, old = specs[state["kind"]], None
        return old

    def check_form(held: Draft, redraw: Callable[[list[Group]], bool]) -> list[Any]:
        state = launch.yaml_of_form(held.data, held.text)
        return refresh(held, take(held, state, state["yaml"]), redraw)

    def is_missing(parts: list[Group]) -> bool:
        return False

    @handler
    def type_yaml(held: Draft, text: str) -> list[Any]:
        with held.lock:
            if text == held.text or time() - held.sent.get(text, 0.0) < ECHO_SECONDS:
                return NOTHING
            state = launch.form_of_yaml(text)
            return refresh(held, take(held, state, text), is_missing, write=False)

    @handler
    def leave_yaml(held: Draft, text: str) -> Any:
        with held.lock:
            if text != held.text and time() - held.sent.get(text, 0.0) >= ECHO_SECONDS:
                take(held, launch.form_of_yaml(text), text)
            if held.checked is None or not held.checked["ok"] or held.text == held.checked["yaml"]:
                return gr.skip()
            held.text = held.checked["yaml"]
            held.sent[held.text] = time()
            return held.text

    @handler
    def reset(held: Draft, event: gr.EventData) -> list[Any]:
        with held.lock:
            path = parse_path(event._data["path"])
            default = next((value for each, value in held.changed() if each == path), None)
            held.set(path, copy.deepcopy(default))
            return check_form(held, lambda parts: path[0] in {f["key"] for _, many in parts for f in many})

    @handler
    def fold(held: Draft, event: gr.EventData) -> list[Any]:
        with held.lock:
            held.opened ^= {event._data["fold"]}
            return refresh(held, held.data, lambda parts: True)

    @handler
    def set_override(held: Draft, text: str) -> list[Any]:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("An override is PATH=VALUE.", value=text, fix="For example stages.1.steps=5.")
        with held.lock:
            held.data = dict(set_nested(held.data, path.strip(), pyyaml.safe_load(value)))
            return ["", *check_form(held, lambda parts: True)]

    # -- one part of the form --------------------------------------------------------------------------------------
    def draw_part(slot: tuple[bool, int], seed: gr.Textbox) -> None:
        @gr.render([draft, seed], triggers=[seed.change], **RENDER)
        def draw(held: Draft, _: str) -> None:
            form = SectionForm(held)
            parts = drawn(held, slot)
            keys = {each["key"] for _, many in parts for each in many}
            for title, fields in parts:
                if title:
                    form.leaves(fields, title)
                else:
                    form.section(fields[0])

            @handler
            def edit(held: Draft, *values: Any) -> list[Any]:
                with held.lock:
                    if all(value == each.shown for each, value in zip(form.controls, values, strict=True)):
                        return NOTHING
                    again = False
                    for control, value in zip(form.controls, values, strict=True):
                        if value != control.shown:
                            control.shown = value
                            again = control.apply(value) or again
                    return check_form(held, lambda parts: again and keys == keys_of(parts))

            @handler
            def act(held: Draft, event: gr.EventData) -> list[Any]:
                with held.lock:
                    change(held, event._data)
                    return check_form(held, lambda parts: keys == keys_of(parts))

            inputs = [each.component for each in form.controls]
            if inputs:
                gr.on([edit_event(each) for each in inputs], edit, [draft, *inputs], updated, **LAST)
            if form.views:
                gr.on([each.click for each in form.views], act, draft, updated, **FAST)

    for slot, place, seed in zip(slots, [*pools[0], *pools[1]], seeds, strict=True):
        with place:
            draw_part(slot, seed)

    # -- where the form starts -------------------------------------------------------------------------------------
    def open_draft(held: Draft, query: dict[str, str], stored: dict[str, Any]) -> list[Any]:
        number, name = query.get("clone"), query.get("preset") or DEFAULT_PRESET
        text = launch.clone_run(int(number)) if number else launch.get_preset(name)
        held.start = launch.form_of_yaml(text)
        held.spec, held.choices = specs[held.start["kind"]], cast(Any, launch.form_choices())
        held.key, held.parent = (f"clone:{number}", int(number)) if number else (f"preset:{name}", None)
        held.opened, held.memory = set(), {}
        take(held, held.start, held.start["yaml"])
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
        description = next((each["description"] for each in presets if each["name"] == chosen), "")
        held.preflight = int(query["preflight"]) if query.get("preflight", "").isdigit() else None
        return [
            held,
            query,
            gr.update(choices=show.preset_choices(presets, chosen), value=chosen),
            gr.update(choices=variants, value=chosen, visible=bool(variants)),
            gr.update(choices=listed, value=number),
            (held.checked or held.start)["kind"],
            show.about(description, held.parent),
            back,
            gr.update(visible=True),
            gr.update(active=held.preflight is not None),
            gr.update(visible=held.preflight is not None),
            *refresh(held, None, lambda parts: True),
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
                value = getattr(error, "value", None)
                said = show.missing(str(error) if value else text, fix)
                hidden = gr.update(visible=False)
                return [held, query, *[gr.skip()] * 4, said, None, hidden, gr.skip(), hidden, *NOTHING]

    def open_preset(held: Draft, name: str | None, stored: dict[str, Any]) -> list[Any]:
        return open_page(held, {"preset": name or DEFAULT_PRESET}, stored)

    def open_clone(held: Draft, number: str, stored: dict[str, Any]) -> list[Any]:
        return open_page(held, {"clone": number}, stored)

    @handler
    def discard(held: Draft) -> list[Any]:
        with held.lock:
            assert held.start is not None
            held.spec, old = specs[held.start["kind"]], None
            take(held, held.start, held.start["yaml"])
            return [None, held.start["kind"], *refresh(held, old, lambda parts: True)]

    @handler
    def choose_kind(held: Draft, name: str) -> list[Any]:
        with held.lock:
            state = held.checked
            if state is None or state["yaml_error"] is not None:
                gr.Warning("Fix the YAML first.")
                return [state["kind"] if state else gr.skip(), gr.skip(), *NOTHING]
            found = launch.yaml_of_form(held.data, held.text, name)
            old = take(held, found, found["yaml"])
            return [name, gr.update(visible=name in TRAINING), *refresh(held, old, lambda parts: True)]

    @handler
    def load_file(held: Draft, content: bytes) -> list[Any]:
        text = content.decode("utf-8", errors="replace")
        if len(text) > specs["train"]["max_characters"]:
            gr.Warning("That file is too large for a configuration.")
            return [gr.skip(), *NOTHING]
        with held.lock:
            state = launch.form_of_yaml(text)
            old = take(held, state, state["yaml"] if state["ok"] else text)
            gr.Info("The file is loaded.")
            return [state["kind"], *refresh(held, old, is_missing)]

    address.input(open_page, [draft, address, drafts], opened, js=drafts.reader(), **QUEUED)
    for chooser, opens in ((preset, open_preset), (variant, open_preset), (clone, open_clone)):
        chooser.input(handler(opens), [draft, chooser, drafts], opened, js=drafts.reader(), **QUEUED)
    notice.click(discard, draft, [notice, kind, *updated], **FAST)
    kind.input(choose_kind, [draft, kind], [kind, preflight, *updated], **QUEUED)
    upload.upload(load_file, [draft, upload], [kind, *updated], **QUEUED)
    yaml.change(type_yaml, [draft, yaml], updated, **LAST)
    yaml.blur(leave_yaml, [draft, yaml], yaml, **FAST)
    override.submit(set_override, [draft, override], [override, *updated], **FAST)
    marks.select(reset, draft, updated, **FAST)
    more.click(fold, draft, updated, **FAST)

    # -- start -----------------------------------------------------------------------------------------------------
    def ready(held: Draft) -> dict[str, Any] | None:
        """Return None, or marks that lead to the first error."""
        state = held.checked
        if state is None or state["ok"]:
            return None
        problem = state["yaml_error"]
        if problem is not None:
            gr.Warning("The YAML cannot be read.")
            return wrong_marks(held, go=problem["line"] or 1, serial=time())
        gr.Warning("Fix the errors first.")
        path = next((error["field"] for error in state["errors"] if error["path"]), None)
        return wrong_marks(held, focus=path, serial=time())

    @handler
    def lead(held: Draft, event: gr.EventData) -> list[Any]:
        data = event._data
        with held.lock:
            held.reveal(parse_path(data.get("field") or ""))
            found = refresh(held, held.data, lambda parts: False)
            target = {"focus": data["field"]} if data.get("field") else {"go": int(data["line"])}
            return [gr.skip(), wrong_marks(held, serial=time(), **target), *found[2:]]

    @handler
    def start_run(held: Draft) -> list[Any]:
        with held.lock:
            if lost := ready(held):
                return [lost, gr.skip(), gr.skip()]
            assert held.checked is not None
            queued = launch.launch_run(yaml=held.checked["yaml"], parent=held.parent)
            return [gr.skip(), queued["url"], {held.key: None}]

    gr.on([summary.click, command.click], lead, draft, updated, **FAST)
    start.click(start_run, draft, [marks, go, drafts], **QUEUED)
    go.change(None, go, None, js="(url) => { if (url) location.assign(url); }", **FAST)

    # -- preflight -------------------------------------------------------------------------------------------------
    @handler
    def start_preflight(held: Draft, query: dict[str, str]) -> list[Any]:
        with held.lock:
            if lost := ready(held):
                return [lost, query, *[gr.skip()] * 5]
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
    preflight.click(start_preflight, [draft, address], [marks, address, result, timer, *panel], **QUEUED)
    timer.tick(follow, draft, [result, timer, *panel], **FAST)
    verdict.click(act_on_preflight, [draft, address], [address, result, timer, *panel], **FAST)

    # -- schedule --------------------------------------------------------------------------------------------------
    def when_of(kind: str, at: str | None, cron: str) -> str:
        return (at or "").replace(" ", "T") if kind == "date" else cron

    def preview(kind: Trigger, at: str | None, cron: str, zone: str | None) -> list[Any]:
        found = launch.preview_schedule(kind, when_of(kind, at, cron), zone or "UTC")
        shown = gr.update(visible=kind == "cron")
        return [
            gr.update(visible=kind == "date"),
            shown,
            shown,
            show.next_times(found),
            gr.update(interactive=found["error"] is None),
        ]

    previewed = [plan_at, plan_cron, examples, upcoming, plan_save]

    @handler
    def open_plan(held: Draft, here: str) -> list[Any]:
        if lost := ready(held):
            return [lost, *[gr.skip()] * 4]
        assert held.checked is not None and held.checked["data"] is not None
        zones = launch.list_timezones()
        here = here if here in zones else "UTC"
        name = str(held.checked["data"].get("name", "run"))
        return [gr.skip(), gr.update(visible=True), name, in_an_hour(here), gr.update(choices=zones, value=here)]

    @handler
    def example(zone: str, at: str | None, event: gr.EventData) -> list[Any]:
        return ["cron", event._data["when"], *preview("cron", at, event._data["when"], zone)[3:]]

    @handler
    def save_plan(held: Draft, name: str, kind: Trigger, at: str | None, cron: str, zone: str) -> list[Any]:
        assert held.checked is not None
        yaml = held.checked["yaml"]
        made = launch.schedule_run(kind, when_of(kind, at, cron), yaml, timezone=zone, name=name)
        gr.Info(f"Scheduled: {show.date_text(made['times'][0])}. The page Runs lists the schedules.")
        return [gr.update(visible=False)]

    times: list[Any] = [trigger, plan_at, plan_cron, plan_zone]
    timezone = "(held, zone) => [held, Intl.DateTimeFormat().resolvedOptions().timeZone]"
    schedule.click(open_plan, [draft, zone], [marks, plan, plan_name, plan_at, plan_zone], js=timezone, **QUEUED)
    gr.on([each.change for each in times], handler(preview), times, previewed, **LAST)
    examples.click(example, [plan_zone, plan_at], [trigger, plan_cron, upcoming, plan_save], **FAST)
    plan_save.click(save_plan, [draft, plan_name, *times], [plan], **QUEUED)
    plan_cancel.click(lambda: gr.update(visible=False), None, plan, **FAST)


RENDER: dict[str, Any] = {"show_progress": "hidden", "concurrency_id": "new_run_form", "concurrency_limit": 1}
"""Options of the parts of the form: Gradio cannot render two parts of one session at the same time."""
LAST: dict[str, Any] = {**FAST, "trigger_mode": "always_last"}
"""Options of an event while the user types."""


def keys_of(parts: list[Group]) -> set[str]:
    """Return the keys of the fields of a part."""
    return {each["key"] for _, many in parts for each in many}


def edit_event(component: Any) -> Any:
    """Return the event of an edit; fields of names and JSON count when the user leaves them.

    A text has `change`, because the first `input` of a field is lost.
    """
    if component.late:
        return component.blur
    return getattr(component, "change" if isinstance(component, gr.Textbox) else "input")


def change(held: Draft, data: dict[str, Any]) -> None:
    """Apply an action of the form: fold, remove, and the changes of lists and maps."""
    act = data["action"]
    if act == "fold":
        held.opened ^= {data["fold"]}
        return
    path = tuple(json.loads(data["path"]))
    if act == "drop":
        held.remove(path)
    elif act == "entry":
        held.add_entry(path)
    else:
        index = -1 if act == "add" else int(path[-1])
        holder = path if act == "add" else path[:-1]
        held.edit_list(holder, held.node_at(holder), act, index)


def show_value(value: Any) -> str:
    """Return a default as text."""
    return "none" if value is None else str(value)


def in_an_hour(zone: str) -> str:
    """Return the time in one hour in a time zone."""
    return f"{datetime.now(ZoneInfo(zone)) + timedelta(hours=1):%Y-%m-%d %H:%M:%S}"
