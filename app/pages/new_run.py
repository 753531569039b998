"""Page New run: a form and its YAML side by side, to check, start or schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import time
from typing import Any, cast

import gradio as gr
import yaml as pyyaml

from app.components.charts import Charts
from app.components.field_errors import FieldErrors
from app.components.keys import Key
from app.components.stored import Stored
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages import _new_run_view as show
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from app.pages._new_run_draft import (
    REST,
    Draft,
    Group,
    change,
    count_changes,
    dotted,
    get_value,
    groups,
    keys_of,
    parse_path,
    show_value,
)
from app.pages._new_run_form import SectionForm
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
ECHO_SECONDS = 1.5
"""Time in which a text that the server wrote into the YAML field is not an edit by the user."""
TRAINING = ("train", "preflight")


def build(studio: Studio) -> None:
    """Build the form on the left, and actions, preflight and YAML on the right."""
    launch = studio.launch
    writable = not studio.context.read_only
    presets = launch.list_presets()
    specs: dict[str, dict[str, Any]] = {kind: dict(launch.run_form(kind)) for kind in launch.run_form()["kinds"]}
    sizes = {basic: max(len(groups(spec["root"], basic=basic)) for spec in specs.values()) for basic in (True, False)}

    draft = gr.State()
    address = page_frame(studio, TITLE, [Key("Ctrl+Enter", "start the run", "#nr-start", typing=True)])
    drafts = Stored("rl2f.drafts")
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
            planned = ScheduleCard()
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
    go = gr.Textbox(visible="hidden", elem_classes="rl-hidden")
    timer = gr.Timer(POLL_SECONDS, active=False)
    slots = [(basic, i) for basic in (True, False) for i in range(sizes[basic])]
    seeds = [gr.Textbox(visible="hidden", elem_classes="rl-hidden") for _ in slots]

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
            path = parse_path(event._data["at"])
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
            gr.update(choices=variants, value=chosen if variants else None, visible=bool(variants)),
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
            return [gr.skip(), gr.skip(), *NOTHING]
        with held.lock:
            state = launch.form_of_yaml(text)
            old = take(held, state, state["yaml"] if state["ok"] else text)
            return [state["kind"], show.about("Loaded from a file.", None), *refresh(held, old, is_missing)]

    address.input(open_page, [draft, address, drafts], opened, js=drafts.reader(), **QUEUED)
    for chooser, opens in ((preset, open_preset), (variant, open_preset), (clone, open_clone)):
        chooser.input(handler(opens), [draft, chooser, drafts], opened, js=drafts.reader(), **QUEUED)
    notice.click(discard, draft, [notice, kind, *updated], **FAST)
    kind.input(choose_kind, [draft, kind], [kind, preflight, *updated], **QUEUED)
    upload.upload(load_file, [draft, upload], [kind, source, *updated], **QUEUED)
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

    planned.connect(launch, draft, schedule, marks, ready)


RENDER: dict[str, Any] = {"show_progress": "hidden", "concurrency_id": "new_run_form", "concurrency_limit": 1}
"""Options of the parts of the form: Gradio cannot render two parts of one session at the same time."""
LAST: dict[str, Any] = {**FAST, "trigger_mode": "always_last"}
"""Options of an event while the user types."""


def edit_event(component: Any) -> Any:
    """Return the event of an edit; fields of names and JSON count when the user leaves them.

    A text has `change`, because the first `input` of a field is lost.
    """
    if component.late:
        return component.blur
    return getattr(component, "change" if isinstance(component, gr.Textbox) else "input")
