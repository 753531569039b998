"""The hint to label with the progress above it, or the end of the queue, for the page Labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.common.urls import page_url
from app.components.label_card import CardState, label_card, move_buttons
from app.components.nodes import Element, Node, action, el
from app.pages._labels_report import plural
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    from app.endpoints.labels import LabelingProgress
    from app.pages._labels_desk import Desk, QueueForm

NAME_FIELD = "#label-annotator :is(input, textarea)"
NO_HINTS = (
    "Hints come from dialogues. Contentless hints cannot leak and are left out. So are hints of controls, unless you "
    "include them, and hints of forks, unless you choose their run."
)
KEYS = (
    ("1 2 3", "label"),
    ("Ctrl+Enter", "save and next"),
    ("n p", "next, previous"),
    ("[ ]", "mark a word"),
    ("w", "why"),
    ("b", "detector report"),
    ("?", "all keys"),
)
NONE_FLAGGED = "No detector flagged a hint of these dialogues. Label a random unflagged sample."


def queue_view(desk: Desk, form: QueueForm, *, writable: bool = True) -> list[Node]:
    """Return the current hint, or the end of the queue."""
    if desk.error is not None:
        return [error_view(desk.error)]
    meter = _meter(desk.progress, form)
    if desk.hint is None:
        return [meter, _end(desk, form, writable)]
    state = CardState(form.annotator, NAME_FIELD, desk.message, desk.revealed, writable)
    return [meter, label_card(desk.hint, state), _keys()]


def _keys() -> Element:
    shown = [el("span", [el("kbd", key) for key in keys.split()], f" {text}") for keys, text in KEYS]
    return el("p.lb-keys.rl-muted.rl-small", shown)


def _meter(progress: LabelingProgress, form: QueueForm) -> Element | None:
    labeled, total = progress["labeled"], progress["total"]
    if not total:
        return None
    of = "more than 10,000" if progress["is_capped"] else f"{total:,}"
    bar = el(
        "div.rl-progress",
        el("i", style=f"width: {min(100, 100 * labeled / total):.1f}%"),
        role="progressbar",
        aria_label="labeled",
        aria_valuenow=labeled,
        aria_valuemin=0,
        aria_valuemax=total,
    )
    flagged = form.selection == "flagged"
    not_blind = "not blind: every hint here was flagged" if flagged else "not blind"
    return el(
        "div.lb-meter",
        bar,
        el("span.rl-num.rl-small.rl-muted", f"{labeled:,} of {of} labeled"),
        None if form.is_blind else el("span.rl-small.rl-muted", not_blind),
    )


def _end(desk: Desk, form: QueueForm, writable: bool) -> Element:
    total, left = desk.progress["total"], desk.progress["total"] - desk.progress["labeled"]
    if not total:
        title, text = "No hints here", NONE_FLAGGED if form.selection == "flagged" else NO_HINTS
        url = page_url("dialogues", run=form.run or None)
        button = el("a.rl-button.rl-primary", "Browse dialogues", href=url)
    elif left > 0:
        title, text = "End of the queue", f"{plural(left, 'hint')} skipped."
        button = action("Review skipped", "review", style="rl-primary")
    else:
        title, text = "Everything here is labeled", "Choose other hints, or open the detector report."
        button = action("Detector report", "show_report", style="rl-primary")
    return el(
        "div.rl-empty",
        el("p.rl-empty-title", title),
        el("p", text),
        el("p.rl-actions", button),
        move_buttons(writable, desk.message) if total else None,
    )


def error_view(error: RL2FError) -> Element:
    """Return an error in place of the hint or the report."""
    return el(
        "div.rl-empty",
        el("p.rl-empty-title", str(error)),
        el("p.rl-actions", el("a.rl-button", "All hints", href=page_url("labels"))),
        role="alert",
    )
