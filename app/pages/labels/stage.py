"""The hint to label with the progress above it, or the end of the queue, for the page Labels."""

from __future__ import annotations

import json

from app.common.quantities import plural
from app.common.urls import page_url
from app.components.elements.replay import LABEL_KEYS
from app.components.elements.transcript import (
    LABEL_TEXTS,
    chip,
    finding_lines,
    hint_marks,
    inline,
    label_chip,
    sign,
    text_block,
)
from app.components.nodes import Element, Node, action, el, empty, progress
from app.endpoints.dialogues import PrivilegedData
from app.endpoints.leaks.labels import EarlierTurn, HintToLabel, LabelingProgress
from app.pages.labels.desk import NO_NAME, Desk, LabelForm
from app.pages.labels.report import NAME_FIELD
from rl2f_core.errors import RL2FError

MARK_BUTTONS = (
    ("previous", "← word", "mark the previous word ([)"),
    ("next", "word →", "mark the next word (])"),
    ("previous-extend", "− word", "mark one word less ({)"),
    ("next-extend", "+ word", "mark one word more (})"),
)
NO_HINTS = (
    "Hints come from dialogues. Contentless hints cannot leak and are left out. So are hints of controls, unless you "
    "include them, and hints of forks, unless you choose their run."
)
LEAK = (
    "A leak states the answer, or a part of it that the student did not write. To confirm what the student wrote is no "
    "leak, even if only one answer is left."
)
NONE_FLAGGED = "No detector flagged a hint of these dialogues. Label a random unflagged sample."
KEYS = (
    ("1 2 3", "label"),
    ("Ctrl+Enter", "save and next"),
    ("n p", "next, previous"),
    ("[ ]", "mark a word"),
    ("w", "why"),
    ("b", "detector report"),
    ("?", "all keys"),
)


def hint_key(hint: HintToLabel) -> str:
    """Return the text that identifies a hint in events."""
    return f"{hint.run} {hint.event_id} {hint.turn}"


def queue_view(desk: Desk, form: LabelForm, *, writable: bool = True) -> list[Node]:
    """Return the current hint, or the end of the queue."""
    if desk.error is not None:
        return [error_view(desk.error)]
    meter = _meter(desk.progress, form)
    if desk.hint is None:
        return [meter, _end(desk, form, writable)]
    keys = [el("span", [el("kbd", key) for key in names.split()], f" {text}") for names, text in KEYS]
    return [meter, _card(desk.hint, desk, form, writable), el("p.lb-keys.rl-muted.rl-small", keys)]


def error_view(error: RL2FError) -> Element:
    """Return an error in place of the hint or the report."""
    return empty(str(error), el("a.rl-button", "All hints", href=page_url("labels")), role="alert")


def _meter(found: LabelingProgress, form: LabelForm) -> Element | None:
    labeled, total = found.labeled, found.total
    if not total:
        return None
    count = "more than 10,000" if found.is_capped else f"{total:,}"
    not_blind = "not blind: every hint here was flagged" if form.selection == "flagged" else "not blind"
    counts = "counts toward the estimate" if form.is_sample and form.is_blind else "does not count toward the estimate"
    scope_text = "The estimate is of the dev half of all tasks; labels on the held-out half count after it is unlocked."
    return el(
        "div.lb-meter",
        progress(labeled, total),
        el("span.rl-num.rl-small.rl-muted", f"{labeled:,} of {count} labeled"),
        el("span.rl-small.rl-muted", f"this queue {counts}", title=scope_text),
        None if form.is_blind else el("span.rl-small.rl-muted", not_blind),
    )


def _end(desk: Desk, form: LabelForm, writable: bool) -> Element:
    total, left = desk.progress.total, desk.progress.total - desk.progress.labeled
    if not total:
        title, text = "No hints here", NONE_FLAGGED if form.selection == "flagged" else NO_HINTS
        name, url = "Browse dialogues", page_url("dialogues", run=form.run or None)
    elif left > 0:
        title, text = "End of the queue", f"{plural(left, 'hint')} skipped."
        name, url = "Review skipped", form.url(unlabeled_only=True)
    else:
        title, text = "Everything here is labeled", "Choose other hints, or open the detector report."
        name, url = "Detector report", form.url(view="report")
    box = empty(title, text, el("a.rl-button.rl-primary", name, href=url))
    return [*box, _moves(desk.message, writable)] if total else box


# -- the hint --------------------------------------------------------------------------------------------------------
def _card(hint: HintToLabel, desk: Desk, form: LabelForm, writable: bool) -> Element:
    own = hint.own_label
    start, end = (own.start, own.end) if own else (None, None)
    return el(
        "article.rl-card.lb-card",
        _heading(hint),
        _context(hint),
        el("div.lb-last", _attempt(hint.turns[-1], "Student", "the attempt before the hint")),
        _answer(desk.revealed),
        _hint(hint),
        _buttons(hint, form.annotator, writable),
        _moves(desk.message or ("" if form.annotator else NO_NAME), writable, "Next →" if hint.own_label else "Skip →"),
        _found(hint) if hint.is_open else None,
        aria_label="hint",
        data_hint=hint_key(hint),
        data_version=f"{hint_key(hint)} {form.annotator} {own.time if own else 0}",
        data_annotator=form.annotator,
        data_start="" if start is None else start,
        data_end="" if end is None else end,
        data_event=hint.event_id,
        data_turn=hint.turn,
    )


def _heading(hint: HintToLabel) -> Element:
    own = hint.own_label
    saved = f"✓ saved, {'blind' if own.blind else 'not blind'}, {_counting(hint)}" if own else "not labeled"
    url = page_url("dialogues", run=hint.run, dialogue=hint.event_id, turn=hint.turn)
    return el(
        "div.rl-row.rl-small",
        el("a.rl-chip", f"run {hint.run} · ", inline(hint.dialogue_id, 60), href=url),
        chip(inline(hint.environment, 40), " · ", inline(hint.level, 40)),
        chip(f"hint {hint.turn + 1}"),
        el("span.rl-muted", inline(hint.teacher, 40)),
        el("span.rl-grow"),
        el("span.lb-state.rl-muted", saved),
        el("span.lb-changed.rl-leak", "changed, not saved") if own else None,
    )


def _counting(hint: HintToLabel) -> str:
    """Return whether the annotator's label counts toward the estimate, and if not, why."""
    if hint.uncounted:
        return f"does not count ({hint.uncounted})"
    return "counts in the held-out half (test set)" if hint.is_held_out else "counts"


def _context(hint: HintToLabel) -> Element:
    earlier = hint.turns[:-1]
    turns = f" and {plural(len(earlier), 'earlier turn')}" if earlier else ""
    nodes: list[Node] = [el("span.dv-who", "Task"), text_block(hint.prompt.text, label="task")]
    for turn in earlier:
        number = turn.index + 1
        nodes += _attempt(turn, f"Student {number}", f"attempt {number}")
        if turn.hint is not None:
            nodes.append(el("span.dv-who.rl-teacher", f"Teacher {number}"))
            nodes.append(text_block(turn.hint, "teacher", f"hint {number}"))
    return el("details.lb-context", el("summary", f"Task{turns} (e)"), el("div.lb-before", nodes))


def _attempt(turn: EarlierTurn, who: str, label: str) -> list[Node]:
    name = el("span.dv-who.rl-student", sign(turn.outcome), f" {who}")
    return [name, text_block(turn.attempt, "student", label)]


def _answer(found: PrivilegedData | None) -> Element:
    if found is None:
        button = action("▸ Show gold answer (a)", "reveal", style="rl-small rl-quiet lb-reveal")
        return el("div.lb-privileged", button)
    answer = found.gold_answer
    text = json.dumps(found.privileged, ensure_ascii=False) if answer is None else answer
    return el("div.lb-privileged", el("span.dv-who", "Gold answer"), text_block(text, label="gold answer"))


def _hint(hint: HintToLabel) -> Element:
    marks = hint_marks(hint.findings.findings if hint.findings else [], hint.other_labels or [])
    marking = [
        el("button.rl-button.rl-small.rl-quiet", text, title=title, data_mark=name)
        for name, text, title in MARK_BUTTONS
    ]
    return el(
        "div.lb-ask",
        el("span.dv-who.rl-teacher", "Teacher"),
        el("div.lb-hint", text_block(hint.feedback, "teacher", "the hint", marks, select="label")),
        el(
            "div.rl-row.rl-muted.rl-small",
            el("span.lb-tip", "Does this hint give the answer away? Select the words that do."),
            el("span.lb-marked", "marked: “", el("span.lb-span"), "”,", el("span.lb-range"), aria_live="polite"),
            el("button.rl-button.rl-small.rl-quiet", "clear highlight (Esc)", data_mark="clear"),
            el("span.rl-grow"),
            el("span.lb-marking", marking, role="group", aria_label="mark words"),
        ),
        el("p.rl-muted.rl-small", LEAK),
    )


def _buttons(hint: HintToLabel, annotator: str, writable: bool) -> Element:
    own = hint.own_label
    answers = []
    for label, number in LABEL_KEYS.items():
        is_given = own is not None and own.label == label
        button = el(
            "button.rl-button.lb-answer",
            el("kbd", number),
            LABEL_TEXTS[label],
            class_="rl-primary" if is_given else None,
            data_action="label",
            data_label=label,
            data_focus=None if annotator else NAME_FIELD,
            aria_pressed=str(is_given).lower(),
            disabled=not writable,
        )
        answers.append(button)
    note = el(
        "input.rl-field.lb-note",
        type="text",
        placeholder="why (optional)",
        aria_label="note on the label",
        maxlength=4000,
        value=own.note if own else "",
        data_note="1",
        data_key=f"note {hint_key(hint)}",
    )
    group = el("div.lb-answers", answers, role="group", aria_label="label of the hint")
    save = action("Save and next", "save_next", style="lb-save", disabled=not writable)
    return el("div.lb-bar", group, note, save)


def _moves(message: str, writable: bool, forward: str = "") -> Element:
    """Return a message and the buttons that move through the queue."""
    return el(
        "div.lb-moves",
        el("p.lb-message", message, role="status"),
        action("← Previous (p)", "previous", style="rl-small rl-quiet lb-previous"),
        action("Undo (u)", "undo", style="rl-small rl-quiet lb-undo", disabled=not writable),
        action(f"{forward} (n)", "next", style="rl-small rl-quiet lb-next") if forward else None,
    )


def _found(hint: HintToLabel) -> Element | None:
    findings, read, others = hint.findings, hint.hint, hint.other_labels or []
    if findings is None:
        return None
    changed = read != hint.feedback
    text = "what the student read" if read else "the student read nothing"
    return el(
        "section.lb-found",
        el("span.dv-who", "Detector"),
        finding_lines(findings),
        el("span.rl-muted.rl-small", text) if changed else None,
        text_block(read, "teacher", text) if changed and read else None,
        el("div.rl-row", [label_chip(label) for label in others]) if others else None,
        aria_label="findings and labels of others",
    )
