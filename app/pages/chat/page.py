"""Page Chat: base and checkpoints side by side, or an interactive task that a person solves with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec

import gradio as gr

from app.components.browser.keys import Key
from app.components.view import View
from app.endpoints.studio import Studio
from app.forms import run_form
from app.pages._events import EACH, FAST, LATEST, Updates, handler
from app.pages._frame import page_frame
from app.pages.chat import settings as choices
from app.pages.chat import view
from app.pages.chat.tab import ChatTab, describe
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import RL2FError
from rl2f_core.types import SPLITS, JsonObject

PATH = "chat"
TITLE = "Chat"
ORDER = 60
REFRESH_SECONDS = 0.2
"""Interval of requests for growing responses. A browser opens six connections to a server, for all of its tabs; a
stream would hold one of them until the responses end."""
NO_LABEL: JsonObject = {"show_label": False, "container": False}
KEYS = [
    Key("Ctrl+.", "stop the response", "#chat-stop", typing=True),
    Key("n", "new chat", "#chat-new"),
    Key("i", "write", "#chat-field textarea", "focus"),
    Key("h", "scripted hint", "#chat-scripted"),
]
P = ParamSpec("P")


def build(studio: Studio) -> None:
    """Build the list of chats on the left; settings, messages and the message field on the right."""
    _Page(studio).connect()


def _shows_errors(
    method: Callable[Concatenate[_Page, ChatTab, P], Updates],
) -> Callable[Concatenate[_Page, ChatTab, P], Updates]:
    """Show an error of `method` above the message field."""

    @wraps(method)
    def call(page: _Page, tab: ChatTab, *args: P.args, **kwargs: P.kwargs) -> Updates:
        tab.error = None
        try:
            return method(page, tab, *args, **kwargs)
        except RL2FError as error:
            tab.error = describe(error)
            return {page.note: view.note(tab)}

    return call


class _Page:
    """Components and event handlers of the page; handlers return component → update."""

    def __init__(self, studio: Studio) -> None:
        self.chat = studio.chat
        writable = not (studio.context.read_only or studio.context.db.read_only)
        self.limits = self.chat.chat_limits()
        self.presets = [preset.name for preset in run_form.presets()]
        self.address = page_frame(studio, TITLE, KEYS)
        self.tab = gr.State(ChatTab(is_writable=writable))
        self.timer = gr.Timer(REFRESH_SECONDS, active=False)
        self.fields: dict[str, Any] = {}
        with gr.Row(equal_height=False, elem_id="chat"):
            with gr.Column(scale=0, min_width=240, elem_id="chat-side"):
                self._build_side(writable)
            with gr.Column(elem_id="chat-main", min_width=280):
                self.head = View(elem_id="chat-head")
                with gr.Accordion("Settings", elem_id="chat-settings", visible=False) as self.settings:
                    self._build_settings()
                with gr.Column(elem_id="chat-scroll"), gr.Column(elem_id="chat-flow"):
                    self.settled = View(elem_id="chat-settled")
                    self.current = View(elem_id="chat-current")
                with gr.Column(elem_id="chat-composer"):
                    self._build_composer()

    def _build_side(self, writable: bool) -> None:
        self.fold = View()
        self.new = gr.Button("New chat", size="md", elem_id="chat-new", visible=writable)
        label = "Search chats"
        self.search = gr.Textbox(
            label=label, placeholder=label, max_lines=1, max_length=200, elem_classes="search", **NO_LABEL
        )
        self.chats = View(elem_id="chat-list")

    def _build_settings(self) -> None:
        fields = self.fields
        modes = [("Chat", "chat"), ("Interactive task", "play")]
        fields["mode"] = gr.Radio(modes, label="Mode", show_label=False)
        self.about = View()
        with gr.Row():
            fields["model"] = gr.Dropdown([], label="Base model", min_width=150)
            fields["source"] = gr.Dropdown([], label="Task from", min_width=320, elem_id="chat-source")
            fields["split"] = gr.Dropdown(list(SPLITS), value="test", label="Split", min_width=120)
            fields["index"] = gr.Textbox(label="Task number", placeholder="random", max_lines=1, min_width=110)
        most = self.limits.max_checkpoints
        fields["checkpoints"] = gr.Dropdown([], label="Checkpoints", multiselect=True, max_choices=most)
        with gr.Row():
            for name in choices.SAMPLING:
                fields[name] = choices.sampling_field(name, self.limits.sampling[name])
        most = self.limits.max_text
        fields["system"] = gr.Textbox(label="System message", placeholder="none", max_lines=6, max_length=most)

    def _build_composer(self) -> None:
        most = self.limits.max_text
        self.note = View(elem_id="chat-note")
        with gr.Column(visible=False, elem_id="chat-editor") as self.editor:
            self.edited = gr.Textbox(label="Text", lines=3, max_lines=12, autofocus=True, max_length=most)
            with gr.Row():
                self.cancel = gr.Button("Cancel", size="md")
                self.save = gr.Button("Save", size="md", variant="primary")
        self.text = gr.Textbox(
            label="Message",
            max_lines=10,
            max_length=most + 1,
            visible=False,
            autofocus=True,
            elem_id="chat-field",
            **NO_LABEL,
        )
        self.actions = choices.action_buttons()
        with gr.Row(elem_id="chat-buttons"):
            self.scripted = gr.Button("Scripted hint", size="md", elem_id="chat-scripted", visible=False)
            self.stop = gr.Button("Stop", size="md", variant="stop", elem_id="chat-stop", visible=False)
            self.primary = gr.Button("Send", size="md", variant="primary", elem_id="chat-send", visible=False)

    def connect(self) -> None:
        """Connect the events."""
        tab, named, fields = self.tab, self.fields, list(self.fields.values())
        buttons = [self.primary, self.scripted, self.stop, self.actions]
        composer = [self.note, self.text, *buttons, self.editor, self.timer]
        messages = [self.settled, self.current, *composer]
        drawn = [self.fold, self.chats, self.head, *messages]
        editing = [self.edited, self.save]
        everything = [self.address, self.settings, self.about, *fields, *drawn, *editing]
        self.address.input(self.open_page, [tab, self.address], everything, **EACH)
        self.new.click(self.open_new, tab, everything, **EACH)
        self.search.change(self.search_chats, [tab, self.search], self.chats, **LATEST)
        gr.on([self.chats.click, self.head.click], self.act_on_chat, tab, everything, **EACH)
        message_clicks = [self.settled.click, self.current.click]
        gr.on(message_clicks, self.act_on_message, tab, [self.address, *messages, *editing], **EACH)
        gr.on([self.text.submit, self.primary.click], self.send, [tab, self.text, *fields], everything, **EACH)
        self.timer.tick(self.show_turn, tab, drawn, **FAST)
        self.scripted.click(self.give_scripted_hint, tab, drawn, **EACH)
        self.actions.select(self.take_action, tab, drawn, **FAST)
        self.stop.click(self.stop_turn, tab, self.note, **EACH)
        self.save.click(self.save_edit, [tab, self.edited], drawn, **EACH)
        self.cancel.click(self.cancel_edit, tab, composer, **EACH)
        self.current.input(self.choose_target, tab, composer, **EACH)
        draft_outputs = [self.address, self.head, self.settings, self.about, *fields, *composer]
        edits = [named["mode"].input, named["model"].input, named["checkpoints"].input]
        edits += [named["index"].submit, named["index"].blur]
        gr.on(edits, self.edit_draft, [tab, *fields], draft_outputs, **EACH)
        named["source"].input(self.edit_source, [tab, *fields], draft_outputs, **EACH)
        numbers = [event for name in choices.SAMPLING for event in (named[name].blur, named[name].submit)]
        changes = [named["checkpoints"].input, named["system"].blur, *numbers]
        gr.on(changes, self.edit_settings, [tab, *fields], [self.head, self.note], **EACH)

    def form(self, values: Sequence[object]) -> JsonObject:
        """Return the settings by name."""
        return dict(zip(self.fields, values, strict=True))

    # -- drawing ---------------------------------------------------------------------------------------------------
    def draw(self, tab: ChatTab) -> Updates:
        """Return everything that depends on the open chat, except its settings."""
        return {
            self.fold: view.fold(tab),
            self.chats: view.chat_list(tab),
            self.head: view.head(tab),
            **self.draw_messages(tab),
        }

    def draw_messages(self, tab: ChatTab) -> Updates:
        """Return the messages, and the composer below them."""
        messages: Updates = {self.settled: view.settled(tab), self.current: view.current(tab)}
        return {**messages, **self.draw_composer(tab)}

    def draw_composer(self, tab: ChatTab) -> Updates:
        """Return field, buttons and notes below the messages."""
        has_model = tab.chat is not None or bool(tab.models)
        is_open = tab.is_writable and has_model and not tab.is_missing and tab.editing is None
        waiting = len(tab.targets()) if tab.is_task and not tab.is_busy else 0
        label, placeholder = "Send", "Write a message. Enter sends, Shift+Enter adds a line"
        if tab.is_task:
            start = "Start task" if tab.actions is None else "Sample attempts"
            label = "Start another task" if tab.is_over else "Send hint" if tab.sampled() else start
            whom = f" for {waiting} checkpoints" if waiting > 1 else ""
            placeholder = f"Your hint{whom}; leak detectors check it first. Enter sends"
        can_write = is_open and (waiting > 0 or not tab.is_task)
        can_act = is_open and not tab.is_busy and (waiting > 0 or label != "Send hint")
        text = gr.update(visible=can_write, placeholder=placeholder, autofocus=tab.chat is None)
        if tab.sent_after is not None and len(tab.tree.messages) > tab.sent_after:
            text["value"], tab.sent_after = "", None
        actions = tab.actions if is_open and not tab.is_busy else None
        return {
            self.note: view.note(tab),
            self.text: text,
            self.actions: gr.Dataset(samples=[[item] for item in actions or ()], visible=bool(actions)),
            self.primary: gr.update(visible=can_act, value=label),
            self.scripted: gr.update(visible=is_open and waiting > 0),
            self.stop: gr.update(visible=tab.is_busy),
            self.editor: gr.update(visible=tab.editing is not None),
            self.timer: gr.Timer(active=tab.is_busy),
        }

    def draw_settings(self, tab: ChatTab, values: JsonObject) -> Updates:
        """Return values, choices and visibility of the settings."""
        is_new, is_new_task = tab.chat is None, tab.chat is None and tab.is_task
        offered = choices.offered_checkpoints(tab.runs, values["model"])
        known = {reference for _, reference in offered}
        offered += [(name, name) for name in values["checkpoints"] if name not in known]
        visible = {
            **{"mode": is_new, "model": is_new, "checkpoints": is_new or not tab.is_task, "system": not tab.is_task},
            **dict.fromkeys(("source", "split", "index"), is_new_task),
            **dict.fromkeys(("max_new_tokens", "temperature", "top_p"), not is_new_task),
        }
        offers: dict[str, Sequence[object]] = {
            "model": list(dict.fromkeys([*tab.models, values["model"]])),
            "checkpoints": offered,
        }
        if is_new_task:
            offers["source"] = choices.offered_sources(tab.runs, self.presets)
        else:
            values = {**values, "source": None}
        updates = {}
        for name, component in self.fields.items():
            updates[component] = gr.update(value=values[name], visible=visible.get(name, True))
            if name in offers:
                updates[component]["choices"] = offers[name]
        shown = tab.is_writable and not tab.is_missing and (not is_new or bool(tab.models))
        return {**updates, self.settings: gr.update(visible=shown, open=is_new), self.about: view.about(tab)}

    # -- opening ---------------------------------------------------------------------------------------------------
    @handler
    def open_page(self, tab: ChatTab, query: dict[str, str]) -> Updates:
        """Show what the address names."""
        found = self.chat.list_chat_models()
        tab.models, tab.runs = found.models, found.runs
        tab.read_memory(self.chat)
        tab.read_list(self.chat)
        if "chat" not in query:
            return self._open_draft(tab, query)
        chat, message = query["chat"], query.get("at", "")
        number = min(whole_number(chat, 2**31 - 1), 2**31 - 1)
        return self._open_chat(tab, number, whole_number(message, None))

    @handler
    def open_new(self, tab: ChatTab) -> Updates:
        """Show the settings of a new chat."""
        return {self.address: {}, **self._open_draft(tab, {})}

    def _open_draft(self, tab: ChatTab, query: Mapping[str, str]) -> Updates:
        tab.start_draft("play" if "play" in query else "chat")
        found, tab.error = choices.draft(query, tab.models, tab.runs, self.presets)
        defaults = {name: self.limits.sampling[name]["default"] for name in choices.SAMPLING}
        values = {**found, **defaults, "mode": tab.mode, "split": "test", "system": ""}
        return self.draw_settings(tab, values) | self.draw(tab)

    def _open_chat(self, tab: ChatTab, number: int, message: int | None = None) -> Updates:
        try:
            state = self.chat.get_chat(number)
        except RL2FError as error:
            tab.fail(error)
            return {self.settings: gr.update(visible=False), **self.draw(tab)}
        tab.open(state, message)
        tab.read_actions(self.chat)
        if state.streaming:
            tab.follow(self.chat, self.chat.follow_chat(number))
        elif tab.is_task and tab.actions is None and not tab.tree.attempted() and tab.is_writable:
            tab.follow(self.chat, self.chat.continue_task_chat(number))
        assert tab.chat is not None
        now = tab.chat.settings
        names = {name: now[name] for name in ("model", "checkpoints", "source", "split", "system")}
        values = {**names, **now["sampling"], "mode": tab.mode, "index": ""}
        return self.draw_settings(tab, values) | self.draw(tab)

    # -- turns -----------------------------------------------------------------------------------------------------
    def show_turn(self, tab: ChatTab) -> Updates:
        """Show the newest text of the turn, and everything if more has changed."""
        if tab.turn is None or tab.turn.update is tab.turn.shown:
            return gr.skip()
        if tab.read_turn(self.chat):
            return self.draw(tab)
        return {self.current: view.current(tab), self.note: view.note(tab)}

    @_shows_errors
    def send(self, tab: ChatTab, message: str, *values: object) -> Updates:
        """Send a message or hint, or start a task."""
        form = self.form(values)
        if tab.is_busy or not tab.is_writable:
            return gr.skip()
        if tab.is_task:
            if tab.chat is None:
                return self._create(tab, form)
            if tab.is_over:
                return self._open_another_task(tab)
            return self._give_hint(tab, "person" if tab.sampled() else "scripted", message)
        choices.check_message(message, self.limits.max_text)
        shown: Updates = {}
        if tab.chat is None:
            shown = self._create(tab, form)
        else:
            self._save_settings(tab, form)
        parent, after = tab.tree.continued()
        tab.sent_after = len(tab.tree.messages)
        tab.follow(self.chat, self.chat.send_message(tab.id, message, parent, after))
        return {**shown, **self.draw(tab)}

    def _create(self, tab: ChatTab, form: JsonObject) -> Updates:
        if tab.is_task:
            index, sampling = choices.parse_index(form["index"]), choices.chosen_sampling(form, ["seed"])
            named = (form["source"], form["model"], form["checkpoints"], form["split"])
            made = self.chat.start_task_chat(*named, index, sampling)
        else:
            system = form["system"] or ""
            made = self.chat.start_chat(form["model"], form["checkpoints"], choices.chosen_sampling(form), system)
        tab.read_list(self.chat)
        return {self.address: {"chat": made.id}, **self._open_chat(tab, made.id)}

    def _save_settings(self, tab: ChatTab, form: JsonObject) -> bool:
        """Change the settings of the open chat to those of the form; return whether they differ."""
        assert tab.chat is not None
        now = tab.chat.settings
        wanted: JsonObject = {"sampling": choices.chosen_sampling(form)}
        if not tab.is_task:
            wanted |= {"checkpoints": form["checkpoints"] or ["base"], "system": form["system"] or ""}
        changed = {name: value for name, value in wanted.items() if value != now[name]}
        if changed:
            tab.chat = self.chat.change_chat(tab.id, settings=changed)
            tab.tree.checkpoints = list(tab.chat.settings["checkpoints"])
        return bool(changed)

    def _open_another_task(self, tab: ChatTab) -> Updates:
        assert tab.chat is not None
        now = tab.chat.settings
        query = {"play": "1", "source": now["source"], "checkpoints": ",".join(now["checkpoints"])}
        return {self.address: query, **self._open_draft(tab, query)}

    @_shows_errors
    def give_scripted_hint(self, tab: ChatTab) -> Updates:
        """Give a hint of the scripted teacher."""
        return self._give_hint(tab, "scripted")

    def _give_hint(self, tab: ChatTab, by: Literal["scripted", "person"], text: str = "") -> Updates:
        """Give a hint to the attempts that wait for one, or sample the first attempts."""
        targets = tab.targets()
        if tab.is_busy or (tab.sampled() and not targets):
            return gr.skip()
        if by == "person":
            tab.sent_after = len(tab.tree.messages)
        tab.follow(self.chat, self.chat.continue_task_chat(tab.id, targets, by, text))
        return self.draw(tab)

    @_shows_errors
    def take_action(self, tab: ChatTab, event: gr.SelectData) -> Updates:
        """Take an action as the student."""
        tab.act(self.chat, str(event.value[0]))
        return self.draw(tab)

    def stop_turn(self, tab: ChatTab) -> Updates:
        """Stop the responses after their current token."""
        if tab.is_busy:
            self.chat.stop_responses(tab.id)
            tab.status = "Stopping…"
        return {self.note: view.note(tab)}

    # -- actions ---------------------------------------------------------------------------------------------------
    @_shows_errors
    def act_on_chat(self, tab: ChatTab, event: gr.EventData) -> Updates:
        """Do what a button of the list or the head says."""
        data = event._data
        match data["action"]:
            case "open":
                return {self.address: {"chat": data["chat"]}, **self._open_chat(tab, int(data["chat"]))}
            case "page":
                tab.cursor = data["cursor"]
                tab.read_list(self.chat)
            case "unload":
                tab.memory = self.chat.unload_chat_model()
            case "delete":
                self.chat.delete_chat(tab.id)
                tab.read_list(self.chat)
                return self.open_new(tab)
            case "rename":
                assert tab.chat is not None
                tab.editing = "title"
                edited = gr.update(value=tab.chat.title, label="Name")
                return {self.edited: edited, self.save: gr.update(value="Rename"), **self.draw(tab)}
        return {self.chats: view.chat_list(tab), self.head: view.head(tab)}

    @_shows_errors
    def act_on_message(self, tab: ChatTab, event: gr.EventData) -> Updates:
        """Do what a button of a message says."""
        data = event._data
        more: Updates = {}
        match data["action"]:
            case "select":
                tab.tree.select(int(data["message"]))
                tab.read_actions(self.chat)
                more = {self.address: {"chat": tab.id, "at": data["message"]}}
            case "edit":
                message = tab.tree.messages[int(data["message"])]
                tab.editing = message.id
                words = (message.detail.get("hint") or {}).get("feedback") or message.content
                label = view.edit_label(tab, message.role)
                more = {self.edited: gr.update(value=words, label=label), self.save: gr.update(value="Create branch")}
            case "retry":
                tab.follow(self.chat, self.chat.retry_response(tab.id, int(data["message"])))
            case "end":
                tab.tree.put(self.chat.end_task_chat(tab.id, int(data["message"])))
                tab.read_actions(self.chat)
            case "rate":
                choice: Any = data["choice"] or None
                for message in self.chat.rate_response(tab.id, int(data["response"]), int(data["other"]), choice):
                    tab.tree.put(message)
            case "answer":
                tab.answer = self.chat.get_task_answer(tab.id)
            case "hide":
                tab.answer = None
        return {**more, **self.draw_messages(tab)}

    @_shows_errors
    def save_edit(self, tab: ChatTab, text: str) -> Updates:
        """Create a branch with the edited message, or rename the chat."""
        editing, tab.editing = tab.editing, None
        if isinstance(editing, int):
            tab.follow(self.chat, self.chat.edit_message(tab.id, editing, text))
        else:
            tab.chat = self.chat.change_chat(tab.id, title=text)
            tab.read_list(self.chat)
        return self.draw(tab)

    def cancel_edit(self, tab: ChatTab) -> Updates:
        """Close the editor."""
        tab.editing = None
        return self.draw_composer(tab)

    def choose_target(self, tab: ChatTab, event: gr.EventData) -> Updates:
        """Choose whether a checkpoint receives the next hint."""
        change = tab.without_hint.discard if event._data["value"] else tab.without_hint.add
        change(event._data["checkpoint"])
        return self.draw_composer(tab)

    def search_chats(self, tab: ChatTab, words: str) -> Updates:
        """Show the chats with these words."""
        tab.search, tab.cursor = words or "", None
        tab.read_list(self.chat)
        return {self.chats: view.chat_list(tab)}

    # -- edits of the settings -------------------------------------------------------------------------------------
    def edit_draft(self, tab: ChatTab, *values: object) -> Updates:
        """Adapt the settings of a new chat to each other; write them into the address."""
        return self._edit_draft(tab, self.form(values))

    def edit_source(self, tab: ChatTab, *values: object) -> Updates:
        """Adapt the settings of a new task to its source."""
        return self._edit_draft(tab, self.form(values), model_of_source=True)

    def _edit_draft(self, tab: ChatTab, form: JsonObject, *, model_of_source: bool = False) -> Updates:
        if tab.chat is not None:
            return gr.skip()
        is_switched, tab.mode, tab.error = tab.mode != form["mode"], form["mode"], None
        if tab.is_task and not form["source"]:
            form["source"] = next((value for _, value in choices.offered_sources(tab.runs, self.presets)), None)
        if model_of_source:
            form["model"] = choices.source_model(tab.runs, form["source"]) or form["model"]
        offered = {reference for _, reference in choices.offered_checkpoints(tab.runs, form["model"])}
        chosen = [name for name in form["checkpoints"] if name in offered] or ["base"]
        if tab.is_task and (is_switched or model_of_source) and chosen == ["base"]:
            chosen = choices.default_checkpoints(tab.runs, form["source"], form["model"])
        form["checkpoints"] = chosen
        query = {} if chosen == ["base"] else {"checkpoints": ",".join(chosen)}
        query |= {"play": "1", "source": form["source"], "index": form["index"]} if tab.is_task else {}
        return {
            self.address: query,
            self.head: view.head(tab),
            **self.draw_settings(tab, form),
            **self.draw_composer(tab),
        }

    @_shows_errors
    def edit_settings(self, tab: ChatTab, *values: object) -> Updates:
        """Save the settings of the open chat."""
        if tab.chat is None or tab.is_busy or not self._save_settings(tab, self.form(values)):
            return gr.skip()
        return {self.head: view.head(tab), self.note: view.note(tab)}
