"""Page Chat: base and checkpoints side by side, or an interactive task that a person solves with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from typing import Any, Literal

import gradio as gr

from app.components.keys import Key
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages import _chat_parts as parts
from app.pages import _chat_view as view
from app.pages._chat_parts import Updates
from app.pages._chat_settings import (
    SAMPLING,
    SPLITS,
    chosen_sampling,
    default_checkpoints,
    draft,
    offered_checkpoints,
    offered_sources,
    parse_index,
    source_model,
)
from app.pages._chat_tab import ChatTab, describe
from app.pages._events import FAST, QUEUED, handler
from app.pages._frame import page_frame
from rl2f_core.errors import RL2FError

PATH = "chat"
TITLE = "Chat"
ORDER = 60
STREAM: dict[str, Any] = {**QUEUED, "concurrency_limit": None, "concurrency_id": "chat", "trigger_mode": "multiple"}
"""Options of an event that follows responses; any number of them run at once."""
ACT: dict[str, Any] = {**FAST, "trigger_mode": "multiple"}
KEYS = [
    Key("Ctrl+.", "stop the response", "#chat-stop", typing=True),
    Key("n", "new chat", "#chat-new"),
    Key("i", "write", "#chat-field textarea", "focus"),
    Key("h", "scripted hint", "#chat-scripted"),
]


def build(studio: Studio) -> None:
    """Build the list of chats on the left; settings, messages and the message field on the right."""
    chat, context = studio.chat, studio.context
    writable = not (context.read_only or context.db.read_only)
    limits = chat.chat_limits()
    presets = [preset["name"] for preset in studio.launch.list_presets()]
    max_text = limits["max_text"]

    address = page_frame(studio, TITLE, KEYS)
    tab_state = gr.State(ChatTab())
    requests = gr.Number(0, visible="hidden", label="Requested turns")
    with gr.Row(equal_height=False, elem_id="chat"):
        with gr.Column(scale=0, min_width=240, elem_id="chat-side"):
            fold = View()
            new = gr.Button("New chat", size="md", elem_id="chat-new", visible=writable)
            search = gr.Textbox(
                label="Search chats",
                show_label=False,
                container=False,
                placeholder="Search chats",
                max_lines=1,
                max_length=200,
                elem_classes="search",
            )
            chats = View(elem_id="chat-list")
        with gr.Column(elem_id="chat-main", min_width=280):
            head = View(elem_id="chat-head")
            with gr.Accordion("Settings", elem_id="chat-settings", visible=False) as settings:
                mode = gr.Radio([("Chat", "chat"), ("Interactive task", "play")], label="Mode", show_label=False)
                about = View()
                with gr.Row():
                    model = gr.Dropdown([], label="Base model", min_width=150)
                    source = gr.Dropdown([], label="Task from", min_width=320)
                    split = gr.Dropdown(list(SPLITS), value="test", label="Split", min_width=120)
                    index = gr.Textbox(label="Task number", placeholder="random", max_lines=1, min_width=110)
                checkpoints = gr.Dropdown(
                    [], label="Checkpoints", multiselect=True, max_choices=limits["max_checkpoints"]
                )
                with gr.Row():
                    sampling = {name: parts.number(name, limits["sampling"][name]) for name in SAMPLING}
                system = gr.Textbox(
                    label="System message", placeholder="none", lines=1, max_lines=6, max_length=max_text
                )
            with gr.Column(elem_id="chat-scroll"), gr.Column(elem_id="chat-flow"):
                settled = View(elem_id="chat-settled")
                current = View(elem_id="chat-current")
            with gr.Column(elem_id="chat-composer"):
                note = View(elem_id="chat-note")
                with gr.Column(visible=False, elem_id="chat-editor") as editor:
                    edited = gr.Textbox(label="Text", lines=3, max_lines=12, autofocus=True, max_length=max_text)
                    with gr.Row():
                        cancel = gr.Button("Cancel", size="md")
                        save = gr.Button("Save", size="md", variant="primary")
                text = gr.Textbox(
                    label="Message",
                    show_label=False,
                    container=False,
                    lines=1,
                    max_lines=10,
                    max_length=max_text + 1,
                    visible=False,
                    autofocus=True,
                    elem_id="chat-field",
                )
                with gr.Row(elem_id="chat-buttons"):
                    scripted = gr.Button("Scripted hint", size="md", elem_id="chat-scripted", visible=False)
                    stop = gr.Button("Stop", size="md", variant="stop", elem_id="chat-stop", visible=False)
                    primary = gr.Button("Send", size="md", variant="primary", elem_id="chat-send", visible=False)

    fields: dict[str, Any] = {
        **{"mode": mode, "model": model, "checkpoints": checkpoints, "source": source, "split": split, "index": index},
        **{**sampling, "system": system},
    }

    # -- drawing ---------------------------------------------------------------------------------------------------
    def draw(tab: ChatTab) -> Updates:
        """Return everything that depends on the open chat, except its settings."""
        return {
            fold: view.fold(tab),
            chats: view.chat_list(tab),
            head: view.head(tab, writable),
            settled: view.settled(tab, writable),
            current: view.current(tab, writable),
            **draw_composer(tab),
        }

    def draw_composer(tab: ChatTab) -> Updates:
        shown = parts.composer(tab, writable, text, primary, scripted, stop, editor)
        return {note: parts.note(tab, writable), requests: tab.requests, **shown}

    def draw_settings(tab: ChatTab, values: Mapping[str, Any]) -> Updates:
        """Return values, choices and visibility of the settings."""
        is_new, play = tab.chat is None, tab.mode == "play"
        offered = offered_checkpoints(tab.runs, values["model"])
        known = {reference for _, reference in offered}
        offered += [(name, name) for name in values["checkpoints"] if name not in known]
        visible = {
            **{"mode": is_new, "model": is_new, "checkpoints": is_new or not play, "system": not play},
            **dict.fromkeys(("source", "split", "index"), is_new and play),
            **dict.fromkeys(("max_new_tokens", "temperature", "top_p"), not (is_new and play)),
        }
        choices: dict[str, list[Any]] = {
            "model": list(dict.fromkeys([*tab.models, values["model"]])),
            "checkpoints": offered,
        }
        if is_new and play:
            choices["source"] = offered_sources(tab.runs, presets)
        else:
            values = {**values, "source": None}
        updates = {}
        for name, component in fields.items():
            updates[component] = gr.update(value=values[name], visible=visible.get(name, True))
            if name in choices:
                updates[component]["choices"] = choices[name]
        shown = writable and not tab.is_missing and (not is_new or bool(tab.models))
        return {**updates, settings: gr.update(visible=shown, open=is_new), about: parts.about(tab)}

    def chat_values(tab: ChatTab) -> dict[str, Any]:
        """Return the settings of the open chat."""
        assert tab.chat is not None
        now = tab.chat["settings"]
        names = {name: now[name] for name in ("model", "source", "split", "system")}
        return {**names, **now["sampling"], "mode": tab.mode, "checkpoints": now["checkpoints"], "index": ""}

    def shows_errors(function: Callable[..., Updates]) -> Callable[..., Updates]:
        """Show an error of `function` above the message field."""

        @wraps(function)
        def call(tab: ChatTab, *args: Any, **kwargs: Any) -> Updates:
            tab.error = None
            try:
                return function(tab, *args, **kwargs)
            except RL2FError as error:
                tab.error = describe(error)
                return {note: parts.note(tab, writable)}

        return call

    # -- opening ---------------------------------------------------------------------------------------------------
    def open_draft(tab: ChatTab, query: Mapping[str, str]) -> Updates:
        tab.start_draft("play" if "play" in query else "chat")
        found, tab.error = draft(query, tab.models, tab.runs, presets)
        defaults = {name: limits["sampling"][name]["default"] for name in SAMPLING}
        return draw_settings(tab, {**found, **defaults, "mode": tab.mode, "split": "test", "system": ""}) | draw(tab)

    def open_chat(tab: ChatTab, number: int, message: int | None = None) -> Updates:
        try:
            tab.open(chat.get_chat(number), message)
        except RL2FError as error:
            tab.fail(error)
            return {settings: gr.update(visible=False), **draw(tab)}
        if tab.is_streaming:
            tab.start(partial(chat.follow_chat, number))
        elif tab.mode == "play" and not tab.tree.players() and writable:
            tab.start(partial(chat.continue_task_chat, number))
        return draw_settings(tab, chat_values(tab)) | draw(tab)

    @handler
    def open_page(tab: ChatTab, query: dict[str, str]) -> Updates:
        found = chat.list_chat_models()
        tab.models, tab.runs = found["models"], found["runs"]
        tab.memory = chat.chat_memory()
        tab.read_list(chat)
        if "chat" not in query:
            return open_draft(tab, query)
        message = query.get("at", "")
        return open_chat(tab, parts.integer(query["chat"]), int(message) if message.isdigit() else None)

    @handler
    def open_new(tab: ChatTab) -> Updates:
        return {address: {}, **open_draft(tab, {})}

    # -- turns -----------------------------------------------------------------------------------------------------
    def follow_request(tab: ChatTab) -> Iterator[Updates]:
        """Show the requested turn while it is sampled; clear the field when its text has become a message."""
        request, tab.request = tab.request, None
        if request is None or tab.is_busy:
            yield gr.skip()
            return
        before, clears = len(tab.tree.messages), tab.clears_field
        for has_changed in tab.follow(chat, request()):
            shown = (
                draw(tab) if has_changed else {current: view.current(tab, writable), note: parts.note(tab, writable)}
            )
            if clears and len(tab.tree.messages) > before:
                shown[text] = {**shown.get(text, gr.update()), "value": ""}
                clears = False
            yield shown

    @shows_errors
    def send(tab: ChatTab, message: str, *values: Any) -> Updates:
        """Do what the primary button says."""
        form = dict(zip(fields, values, strict=True))
        if tab.is_busy or not writable:
            return gr.skip()
        if tab.mode == "play":
            if tab.chat is None:
                return create(tab, form)
            if tab.is_over:
                return play_another(tab)
            return give_hint(tab, "person" if tab.tree.players() else "scripted", message)
        parts.check_message(message, max_text)
        shown = draw_composer(tab)
        if tab.chat is None:
            shown = create(tab, form)
        else:
            save_settings(tab, form)
        parent, after = tab.tree.continued()
        tab.start(partial(chat.send_message, tab.id, message, parent, after), clears_field=True)
        return {**shown, requests: tab.requests}

    def create(tab: ChatTab, form: Mapping[str, Any]) -> Updates:
        if tab.mode == "play":
            named = (form["source"], form["model"], form["checkpoints"], form["split"], parse_index(form["index"]))
            made = chat.start_task_chat(*named, sampling=chosen_sampling(form, ["seed"]))
        else:
            system = form["system"] or ""
            made = chat.start_chat(form["model"], form["checkpoints"], chosen_sampling(form), system)
        tab.read_list(chat)
        return {address: {"chat": made["id"]}, **open_chat(tab, made["id"])}

    def save_settings(tab: ChatTab, form: Mapping[str, Any]) -> bool:
        """Change the settings of the open chat to those of the form; return whether they differ."""
        assert tab.chat is not None
        now = tab.chat["settings"]
        wanted: dict[str, Any] = {"sampling": chosen_sampling(form)}
        if tab.mode == "chat":
            wanted |= {"checkpoints": form["checkpoints"] or ["base"], "system": form["system"] or ""}
        changed = {name: value for name, value in wanted.items() if value != now[name]}
        if changed:
            tab.chat = chat.change_chat(tab.id, settings=changed)
            tab.tree.checkpoints = list(tab.chat["settings"]["checkpoints"])
        return bool(changed)

    def play_another(tab: ChatTab) -> Updates:
        assert tab.chat is not None
        now = tab.chat["settings"]
        query = {"play": "1", "source": now["source"], "checkpoints": ",".join(now["checkpoints"])}
        return {address: query, **open_draft(tab, query)}

    def give_hint(tab: ChatTab, by: Literal["scripted", "person"], message: str = "") -> Updates:
        """Give a hint to the attempts that wait for one, or sample the first attempts."""
        targets = tab.targets()
        if tab.is_busy or (tab.tree.players() and not targets):
            return gr.skip()
        if by == "person":
            parts.check_message(message, max_text)
        tab.start(partial(chat.continue_task_chat, tab.id, targets, by, message), clears_field=by == "person")
        return draw_composer(tab)

    @shows_errors
    def scripted_hint(tab: ChatTab) -> Updates:
        return give_hint(tab, "scripted")

    @shows_errors
    def save_edit(tab: ChatTab, words: str) -> Updates:
        editing, tab.editing = tab.editing, None
        if isinstance(editing, int):
            tab.start(partial(chat.edit_message, tab.id, editing, words))
            return draw_composer(tab)
        tab.chat = chat.change_chat(tab.id, title=words)
        tab.read_list(chat)
        return draw(tab)

    # -- actions ---------------------------------------------------------------------------------------------------
    def edit(tab: ChatTab, data: Mapping[str, str]) -> Updates:
        if data["action"] == "rename":
            assert tab.chat is not None
            tab.editing, label, words = "title", "Name", tab.chat["title"]
            done = "Rename"
        else:
            message = tab.tree.messages[int(data["message"])]
            words = (message["detail"].get("hint") or {}).get("feedback") or message["content"]
            tab.editing, label, done = message["id"], parts.edit_label(tab, message["role"]), "Create branch"
        return {edited: gr.update(value=words, label=label), save: gr.update(value=done)}

    def act_on_chat(tab: ChatTab, data: Mapping[str, str]) -> Updates:
        """Do what a button of the list or the head says."""
        match data["action"]:
            case "open":
                return {address: {"chat": data["chat"]}, **open_chat(tab, int(data["chat"]))}
            case "page":
                tab.cursor = data["cursor"]
                tab.read_list(chat)
            case "unload":
                tab.memory = chat.unload_chat_model()
            case "delete":
                chat.delete_chat(tab.id)
                tab.read_list(chat)
                return {address: {}, **open_draft(tab, {})}
            case "rename":
                return {**edit(tab, data), **draw(tab)}
        return {chats: view.chat_list(tab), head: view.head(tab, writable)}

    def act_on_message(tab: ChatTab, data: Mapping[str, str]) -> Updates:
        """Do what a button of a message says."""
        more: Updates = {}
        match data["action"]:
            case "select":
                tab.tree.select(int(data["message"]))
                more[address] = {"chat": tab.id, "at": data["message"]}
            case "edit":
                more = edit(tab, data)
            case "retry":
                tab.start(partial(chat.retry_reply, tab.id, int(data["message"])))
            case "end":
                tab.tree.put(chat.end_task_chat(tab.id, int(data["message"])))
            case "rate":
                choice: Any = data["choice"] or None
                for message in chat.rate_reply(tab.id, int(data["reply"]), int(data["other"]), choice):
                    tab.tree.put(message)
            case "answer":
                tab.answer = chat.get_task_answer(tab.id)
            case "hide":
                tab.answer = None
        shown = {settled: view.settled(tab, writable), current: view.current(tab, writable)}
        return {**more, **shown, **draw_composer(tab)}

    @shows_errors
    def act(tab: ChatTab, event: gr.EventData) -> Updates:
        data = event._data
        is_for_chat = data["action"] in ("open", "page", "unload", "delete", "rename")
        return act_on_chat(tab, data) if is_for_chat else act_on_message(tab, data)

    def choose_target(tab: ChatTab, event: gr.EventData) -> Updates:
        checkpoint = event._data["checkpoint"]
        (tab.without_hint.discard if event._data["value"] else tab.without_hint.add)(checkpoint)
        return draw_composer(tab)

    def cancel_edit(tab: ChatTab) -> Updates:
        tab.editing = None
        return draw_composer(tab)

    def stop_turn(tab: ChatTab) -> Updates:
        if tab.chat is not None and tab.is_busy:
            chat.stop_reply(tab.id)
            tab.status = "Stopping…"
        return {note: parts.note(tab, writable)}

    def search_chats(tab: ChatTab, words: str) -> Updates:
        tab.search, tab.cursor = words or "", None
        tab.read_list(chat)
        return {chats: view.chat_list(tab)}

    # -- edits of the settings -------------------------------------------------------------------------------------
    def edit_draft(tab: ChatTab, *values: Any, model_of_source: bool = False) -> Updates:
        """Adapt the settings of a new chat to each other; write them into the address."""
        if tab.chat is not None:
            return gr.skip()
        form = dict(zip(fields, values, strict=True))
        switched, tab.mode = tab.mode != form["mode"], form["mode"]
        play = tab.mode == "play"
        if play and not form["source"]:
            form["source"] = next((value for _, value in offered_sources(tab.runs, presets)), None)
        if model_of_source:
            form["model"] = source_model(tab.runs, form["source"]) or form["model"]
        offered = {reference for _, reference in offered_checkpoints(tab.runs, form["model"])}
        chosen = [name for name in form["checkpoints"] if name in offered]
        if play and (switched or model_of_source) and chosen in ([], ["base"]):
            chosen = default_checkpoints(tab.runs, form["source"], form["model"])
        form["checkpoints"] = chosen or ["base"]
        tab.error = None
        query = {"checkpoints": ",".join(chosen) if chosen not in ([], ["base"]) else ""}
        query |= {"play": "1", "source": form["source"], "index": form["index"]} if play else {}
        return {address: query, head: view.head(tab, writable), **draw_settings(tab, form), **draw_composer(tab)}

    def edit_source(tab: ChatTab, *values: Any) -> Updates:
        return edit_draft(tab, *values, model_of_source=True)

    @shows_errors
    def edit_settings(tab: ChatTab, *values: Any) -> Updates:
        """Save the settings of the open chat."""
        if tab.chat is None or tab.is_busy or not save_settings(tab, dict(zip(fields, values, strict=True))):
            return gr.skip()
        return {head: view.head(tab, writable), note: parts.note(tab, writable)}

    form = [tab_state, *fields.values()]
    composer = [note, text, primary, scripted, stop, editor, requests]
    drawn = [fold, chats, head, settled, current, *composer]
    everything = [address, settings, about, *fields.values(), *drawn, edited, save]
    views = [chats, head, settled, current]
    address.input(open_page, [tab_state, address], everything, **ACT)
    gr.on([each.click for each in views], act, tab_state, everything, **ACT)
    gr.on([text.submit, primary.click], send, [tab_state, text, *fields.values()], everything, **ACT)
    scripted.click(scripted_hint, tab_state, composer, **ACT)
    save.click(save_edit, [tab_state, edited], drawn, **ACT)
    requests.change(follow_request, tab_state, drawn, **STREAM)
    new.click(open_new, tab_state, everything, **ACT)
    current.input(choose_target, tab_state, composer, **ACT)
    cancel.click(cancel_edit, tab_state, composer, **ACT)
    stop.click(stop_turn, tab_state, note, **ACT)
    search.change(search_chats, [tab_state, search], chats, trigger_mode="always_last", **FAST)
    draft_outputs = [address, head, settings, about, *fields.values(), *composer]
    edits = [mode.input, model.input, checkpoints.input, index.submit, index.blur]
    gr.on(edits, edit_draft, form, draft_outputs, **ACT)
    source.input(edit_source, form, draft_outputs, **ACT)
    numbers = [event for each in sampling.values() for event in (each.blur, each.submit)]
    gr.on([checkpoints.input, system.blur, *numbers], edit_settings, form, [head, note], **ACT)
