"""Field, buttons and notes of the page Chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app.common.urls import page_url
from app.components.nodes import Node, el, empty
from app.pages import _chat_view as view
from app.pages._chat_tab import ChatTab
from rl2f_core.errors import DataError

SAMPLING_LABELS = {"max_new_tokens": "Tokens", "temperature": "Temperature", "top_p": "Top p", "seed": "Seed"}
ABOUT = {
    "chat": "The base and up to three checkpoints respond side by side, with the same seed and sampling. "
    "Rate which response is better.",
    "play": "The environment sets a task, the checkpoints attempt it, and you or the scripted teacher give hints, as "
    "in training. Leak detectors check every hint, yours too. Finished dialogues are recorded for replay, labels and "
    "export.",
}
Updates = dict[Any, Any]


def number(name: str, schema: Mapping[str, Any]) -> gr.Number:
    """Return the field of a sampling parameter."""
    is_whole = schema["type"] == "integer"
    high = schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1)
    return gr.Number(
        schema["default"],
        label=SAMPLING_LABELS[name],
        minimum=schema.get("minimum", 0.01),
        maximum=high,
        precision=0 if is_whole else None,
        step=1 if is_whole else 0.1,
        min_width=110,
    )


def check_message(message: str, limit: int) -> None:
    """Raise `DataError` if a message is empty or too long."""
    if not message.strip():
        raise DataError("The message is empty.", fix="Type something.")
    if len(message) > limit:
        what = f"The message has more than {limit:,} characters; the field does not take the rest of a longer text."
        raise DataError(what, fix="Shorten it.")


def integer(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else 2**31 - 1


def about(tab: ChatTab) -> list[Node]:
    if tab.chat is not None:
        return []
    runs = [run for run in tab.runs if run["checkpoints"]]
    missing: list[Node] = [" No run has a checkpoint yet. ", el("a", "Start one", href=page_url("new"))]
    return [el("p.rl-muted.ch-lead", ABOUT[tab.mode], [] if runs else missing)]


def note(tab: ChatTab, writable: bool) -> list[Node]:
    if not writable:
        return [el("p.rl-muted", "Read-only server: chats can be read, not continued.")]
    if tab.chat is None and not tab.models and not tab.is_missing:
        return [empty("No model is here yet", "Fetch the small one with: rl2f models get smollm2-135m")]
    return view.note(tab)


def edit_label(tab: ChatTab, role: str) -> str:
    if role == "teacher":
        return "Another hint; the original remains"
    if role == "user":
        return "Another message in a branch; the original remains"
    if tab.mode == "play":
        return "Another attempt beside the original; it is verified"
    return "Another response beside the original; the chat can continue from it"


def composer(
    tab: ChatTab,
    writable: bool,
    text: gr.Textbox,
    primary: gr.Button,
    scripted: gr.Button,
    stop: gr.Button,
    editor: gr.Column,
) -> Updates:
    """Return field and buttons below the messages."""
    is_open = writable and not tab.is_missing and tab.editing is None and (tab.chat is not None or bool(tab.models))
    play, busy = tab.mode == "play", tab.is_busy
    waiting = len(tab.targets()) if play and not busy else 0
    can_write = is_open and (waiting > 0 if play else True)
    label = "Send"
    if play:
        label = "Start task" if tab.chat is None or not tab.tree.players() else "Send hint"
        label = "Play another" if tab.is_over else label
    placeholder = "Write a message. Enter sends, Shift+Enter adds a line"
    if play:
        whom = f" for {waiting} checkpoints" if waiting > 1 else ""
        placeholder = f"Your hint{whom}; leak detectors check it first. Enter sends"
    idle = is_open and not busy and (not play or label != "Send hint" or waiting > 0)
    return {
        text: gr.update(visible=can_write, placeholder=placeholder, autofocus=tab.chat is None),
        primary: gr.update(visible=idle, value=label),
        scripted: gr.update(visible=is_open and waiting > 0),
        stop: gr.update(visible=busy),
        editor: gr.update(visible=tab.editing is not None),
    }
