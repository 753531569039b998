"""`LabelCard`: one hint to label, large, with its dialogue folded above."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from app.common.urls import page_url
from app.components.module import module_url
from app.components.nodes import Attribute, Element, Node, el
from app.components.transcript import LABEL_TEXTS, chip, finding_lines, hint_marks, inline, label_chip, sign, text_block
from app.components.view import View

if TYPE_CHECKING:
    from app.endpoints.dialogues import PrivilegedData
    from app.endpoints.labels import EarlierTurn, HintToLabel
    from app.endpoints.transcript import HintDetail

LABEL_KEYS = {"leak": "1", "no_leak": "2", "unsure": "3"}
MARK_BUTTONS = (
    ("previous", "← word", "mark the previous word ([)"),
    ("next", "word →", "mark the next word (])"),
    ("previous-extend", "− word", "mark one word less ({)"),
    ("next-extend", "+ word", "mark one word more (})"),
)


class LabelCard(View):
    """A `View` with a hint whose words can be marked.

    Every `click` also reports the `hint` (see `hint_key`), `start` and `end` of the marked span, None without one, and
    the `note`. An action with `data-focus` focuses the field with this CSS selector instead. After Back, a link with
    `data-return` that had the focus gets it again.
    """

    MODULE = "label_card.js"

    def __init__(self, **options: Any) -> None:
        super().__init__(view=module_url("view.js"), selection=module_url("selection.js"), **options)


@dataclass(frozen=True)
class CardState:
    """What is shown with a hint."""

    annotator: str = ""
    name_field: str = ""
    """CSS selector of the field of the annotator's name, which the buttons focus without a name."""
    message: str = ""
    revealed: PrivilegedData | None = None
    writable: bool = True


def hint_key(hint: HintToLabel) -> str:
    """Return the text that identifies a hint in events."""
    return f"{hint['run']} {hint['event_id']} {hint['turn']}"


def label_card(hint: HintToLabel, state: CardState) -> Element:
    """Return a hint with the buttons that label it."""
    own = hint["own_label"]
    start, end = (own["start"], own["end"]) if own else (None, None)
    key = f"{hint_key(hint)} {state.annotator}"
    return el(
        "article.rl-card.lb-card",
        _heading(hint),
        _context(hint),
        _last_attempt(hint["turns"][-1]),
        _answer(state),
        _hint(hint),
        _buttons(hint, state),
        move_buttons(state.writable, state.message or ("" if state.annotator else "Enter your name first.")),
        _found(hint) if hint["is_open"] else None,
        aria_label="hint",
        data_hint=hint_key(hint),
        data_version=f"{key} {own['time'] if own else 0}",
        data_annotator=state.annotator,
        data_start="" if start is None else start,
        data_end="" if end is None else end,
        data_event=hint["event_id"],
        data_turn=hint["turn"],
    )


def _heading(hint: HintToLabel) -> Element:
    own = hint["own_label"]
    saved = f"✓ saved, {'blind' if own['blind'] else 'not blind'}" if own else "not labeled"
    return el(
        "div.rl-row.rl-small",
        el(
            "a.rl-chip",
            f"run {hint['run']} · ",
            inline(hint["dialogue_id"], 60),
            href=page_url("dialogues", run=hint["run"], dialogue=hint["event_id"], turn=hint["turn"]),
        ),
        chip(inline(hint["environment"], 40), " · ", inline(hint["level"], 40)),
        chip(f"hint {hint['turn'] + 1}"),
        el("span.rl-muted", inline(hint["teacher"], 40)),
        el("span.rl-grow"),
        el("span.lb-state.rl-muted", saved),
        el("span.lb-changed.rl-leak", "changed, not saved") if own else None,
    )


def _context(hint: HintToLabel) -> Element:
    earlier = hint["turns"][:-1]
    turns = f" and {len(earlier)} earlier turn{'s' * (len(earlier) > 1)}" if earlier else ""
    return el(
        "details.lb-context",
        el("summary.lb-fold", f"Task{turns} (e)"),
        el(
            "div.lb-before",
            el("span.dv-who", "Task"),
            text_block(hint["prompt"]["text"], label="task"),
            [node for turn in earlier for node in _earlier(turn)],
        ),
    )


def _earlier(turn: EarlierTurn) -> list[Node]:
    number = turn["index"] + 1
    nodes: list[Node] = [
        el("span.dv-who.rl-student", sign(turn["outcome"]), f" Student {number}"),
        text_block(turn["attempt"], "student", f"attempt {number}"),
    ]
    if turn["hint"] is not None:
        nodes.append(el("span.dv-who.rl-teacher", f"Teacher {number}"))
        nodes.append(text_block(turn["hint"], "teacher", f"hint {number}"))
    return nodes


def _last_attempt(turn: EarlierTurn) -> Element:
    return el(
        "div.lb-last",
        el("span.dv-who.rl-student", sign(turn["outcome"]), " Student"),
        text_block(turn["attempt"], "student", "the attempt before the hint"),
    )


def _answer(state: CardState) -> Element:
    found = state.revealed
    if found is None:
        button = _button("▸ Show gold answer (a)", "reveal", "rl-small rl-quiet lb-reveal")
        return el("div.lb-privileged", button)
    answer = found["gold_answer"]
    text = json.dumps(found["privileged"], ensure_ascii=False) if answer is None else answer
    return el("div.lb-privileged", el("span.dv-who", "Gold answer"), text_block(text, label="gold answer"))


def _hint(hint: HintToLabel) -> Element:
    findings, others = hint["findings"], hint["other_labels"]
    marks = hint_marks(findings["findings"] if findings else [], others or [])
    block = text_block(hint["feedback"], "teacher", "the hint", marks, select="label")
    marking = [
        el("button.rl-button.rl-small.rl-quiet", text, title=title, data_mark=name)
        for name, text, title in MARK_BUTTONS
    ]
    clear = el("button.rl-button.rl-small.rl-quiet", "clear highlight (Esc)", data_mark="clear")
    return el(
        "div.lb-ask",
        el("span.dv-who.rl-teacher", "Teacher"),
        el("div.lb-hint", block),
        el(
            "div.rl-row.rl-muted.rl-small",
            el("span.lb-tip", "Does this hint give the answer away? Select the words that do."),
            el("span.lb-marked", "marked: “", el("span.lb-span"), "”,", el("span.lb-range"), aria_live="polite"),
            clear,
            el("span.rl-grow"),
            el("span.lb-marking", marking, role="group", aria_label="mark words"),
        ),
    )


def _buttons(hint: HintToLabel, state: CardState) -> Element:
    own = hint["own_label"]
    given = own["label"] if own else None
    needs_name = None if state.annotator else state.name_field
    disabled = not state.writable
    answers = [
        _button(
            [el("kbd", number), LABEL_TEXTS[label]],
            "label",
            f"lb-answer {'rl-primary' if label == given else ''}",
            data_label=label,
            data_focus=needs_name,
            aria_pressed="true" if label == given else "false",
            disabled=disabled,
        )
        for label, number in LABEL_KEYS.items()
    ]
    note = el(
        "input.rl-field.lb-note",
        type="text",
        placeholder="why (optional)",
        aria_label="note on the label",
        maxlength=4000,
        value=own["note"] if own else "",
        data_note="1",
        data_key=f"note {hint_key(hint)}",
    )
    group = el("div.lb-answers", answers, role="group", aria_label="label of the hint")
    return el("div.lb-bar", group, note, _button("Save and next", "save_next", "lb-save", disabled=disabled))


def move_buttons(writable: bool, message: str) -> Element:
    """Return a message and the buttons that move through the queue."""
    return el(
        "div.lb-moves",
        el("p.lb-message", message, role="status"),
        _button("← Previous (p)", "previous", "rl-small rl-quiet lb-previous"),
        _button("Undo (u)", "undo", "rl-small rl-quiet lb-undo", disabled=not writable),
        _button("Skip → (n)", "next", "rl-small rl-quiet lb-next"),
    )


def _found(hint: HintToLabel) -> Element | None:
    findings, read, others = hint["findings"], hint["hint"], hint["other_labels"] or []
    if findings is None:
        return None
    changed = read != hint["feedback"]
    text = "what the student read" if read else "the student read nothing"
    return el(
        "section.lb-found",
        el("span.dv-who", "Detector"),
        finding_lines(cast("HintDetail", {**findings, "hint_error": None})),
        el("span.rl-muted.rl-small", text) if changed else None,
        text_block(read, "teacher", text) if changed and read else None,
        el("div.rl-row", [label_chip(label) for label in others]) if others else None,
        aria_label="findings and labels of others",
    )


def _button(label: str | list[Node], name: str, style: str = "", **attributes: Attribute) -> Element:
    return el("button", label, class_=f"rl-button {style}".strip(), data_action=name, **attributes)
