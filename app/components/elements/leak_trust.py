"""How far a flagged leak can be trusted: detector cards, redacted reruns, and what the teacher saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.common.urls import page_url
from app.components.elements.transcript import foldable, inline, sign, text_block
from app.components.nodes import Element, Node, action, badge, el, table
from app.endpoints.leaks.detector_cards import CardRow, DetectorCard
from app.endpoints.leaks.redacted_reruns import RedactedRerun
from app.endpoints.teacher_prompt import TeacherPrompt
from app.endpoints.transcript import HintDetail
from jobs.db.models import ACTIVE
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.evaluation.formatting import number

UNKNOWN = "unknown here"
UNMEASURED = (
    "Precision and recall are unknown: the detector has other settings or weights than the measured ones, and no label "
    "of this workspace decides about it."
)
ARMS = {"original": "hint as read", "redacted": "redacted"}
CARD_NOTE = (
    "Precision: leaks among the hints that this detector flags. Recall: flagged hints among all leaks, by the "
    "detectors together. Brackets are 95 % intervals. Detectors are tuned on dev. "
    "Labels: blind labels of random samples."
)
SURVIVAL = {
    (True, True): "The success survives without the flagged text.",
    (True, False): "The success does not survive without the flagged text.",
    (False, True): "The student succeeds only without the flagged text.",
    (False, False): "The student does not succeed with or without the flagged text.",
}
"""Sentence by success with the hint and with the redacted hint."""


@dataclass(frozen=True)
class Trust:
    """What is known about the flags of a dialogue."""

    cards: Mapping[tuple[int, str], Sequence[DetectorCard]] = field(default_factory=dict)
    """Detector cards by run and source of findings."""
    reruns: Sequence[RedactedRerun] = ()
    """Redacted reruns of the dialogue, newest first."""
    prompts: Mapping[int, TeacherPrompt] = field(default_factory=dict)
    """Prompts of the teacher that are shown, by turn."""


def flag_views(hint: HintDetail, run: int, turn: int, trust: Trust, *, can_rerun: bool) -> list[Node]:
    """Return how far the flags of a hint can be trusted, and its newest redacted rerun."""
    nodes: list[Node] = []
    for found in hint.findings:
        cards = {card.detector: card for card in trust.cards.get((run, found.source), ())}
        name = found.detector or "detector"
        button = rerun_button(turn, found.source) if can_rerun and found.action != "drop" else None
        nodes.append(el("div.dv-trust", card_summary(name, cards.get(name)), button))
    rerun = next((item for item in trust.reruns if item.turn == turn), None)
    return [*nodes, rerun_view(rerun)] if rerun else nodes


# -- detector cards --------------------------------------------------------------------------------------------------
def card_summary(detector: str, card: DetectorCard | None) -> Element:
    """Return how far flags of a detector can be trusted in one line, with its table folded below."""
    parts: list[Node] = [f"{detector}: "]
    if card is None:
        parts.append("not a detector of this version, so its precision and recall are unknown")
    else:
        *sets, labels = card.rows
        measured = next((row for row in sets if row.precision.value is not None), sets[0])
        parts += [*_figures(measured, "on"), "; ", *_figures(labels, "by")]
    return foldable("card", el("span", parts), card_table(card) if card else None, class_="dv-more tx-card")


def _figures(row: CardRow, preposition: str) -> list[Node]:
    if row.precision.value is None:
        return [f"{UNKNOWN} {preposition} {row.name}"]
    precision, recall = (el("b.rl-num", number(item.value)) for item in (row.precision, row.recall))
    return ["precision ", precision, ", recall ", recall, f" {preposition} {row.name} ({row.hints:,})"]


def card_table(card: DetectorCard) -> Element:
    """Return precision and recall of a detector by set of hints."""
    if all(row.precision.value is row.recall.value is None for row in card.rows):
        return el("p.rl-muted", UNMEASURED)
    heads, name = ("on", "hints", "precision", "recall"), f"quality of {card.detector}"
    rows = map(_card_row, card.rows)
    return el("div", table(heads, rows, "tx-card-table", name=name), title=CARD_NOTE)


def _card_row(row: CardRow) -> Element:
    measured = f"{row.detectors}, {row.split}" if row.detectors else ""
    return el(
        "tr",
        el("th", row.name, el("small.rl-muted", f" {measured}") if measured else None, scope="row"),
        el("td.rl-num", f"{row.hints:,}" if row.hints else "0"),
        [el("td.rl-num", _estimate(item)) for item in (row.precision, row.recall)],
        data_row=row.name,
    )


def _estimate(interval: Interval) -> list[Node]:
    if interval.value is None:
        return [el("span.rl-muted", UNKNOWN)]
    ends = f" [{number(interval.low)}, {number(interval.high)}]" if interval.low is not None else ""
    return [number(interval.value), el("small.rl-muted", ends)]


def trust_section(cards: Sequence[DetectorCard]) -> Element | None:
    """Return the cards of a run's detectors; None without detectors."""
    if not cards:
        return None
    parts = [el("div.rl-stack", el("h3", card.detector), card_table(card)) for card in cards]
    note = el("p.rl-muted.rl-small", CARD_NOTE)
    return el("section.rl-card.rl-stack", el("h2", "How far flags can be trusted"), parts, note, aria_label="detectors")


# -- redact and rerun ------------------------------------------------------------------------------------------------
def rerun_button(turn: int, source: str) -> Element:
    """Return the button that samples the next attempt again with the flagged span masked."""
    title = "Mask the flagged span and sample the next attempt again, under the same seed and 8 others"
    style = "rl-small rl-quiet dv-rerun"
    return action("Redact and rerun", "rerun", style=style, title=title, turn=turn, source=source)


def rerun_view(rerun: RedactedRerun) -> Element:
    """Return progress or result of a redacted rerun."""
    fork, status = rerun.run, rerun.status
    link = el("a", f"fork {fork}", href=page_url("fork", fork=fork))
    model = el("span.rl-muted", " under ", inline(rerun.checkpoint, 40))
    state = None if status == "succeeded" else badge(status, rerun.detail)
    head = el("div.rl-row.rl-small", el("b", "Redacted and rerun"), el("span", link, model), state)
    content: list[Node] = []
    if rerun.error:
        content.append(el("p.rl-wrong.rl-small", inline(rerun.error, 240)))
    elif status not in (*ACTIVE, "succeeded") and rerun.detail:
        content.append(el("p.rl-wrong.rl-small", inline(rerun.detail, 240)))
    if rerun.hint is not None:
        content.append(text_block(rerun.hint, "teacher", "redacted hint"))
    if len(rerun.same_seed) == len(ARMS):
        content += [_outcomes(rerun), el("p.rl-small", _survival(rerun))]
    return el("div.rl-stack.dv-redacted", head, content, role="group", aria_label="redacted rerun", data_key=str(fork))


def _outcomes(rerun: RedactedRerun) -> Element:
    stored = rerun.stored
    rows = [
        el(
            "tr",
            el("th", title, scope="row"),
            el("td", sign("-" if stored is None else str(int(stored))) if arm == "original" else ""),
            el("td", sign(str(int(rerun.same_seed[arm])))),
            el("td.rl-num", _estimate(rerun.solved[arm]) if arm in rerun.solved else "–"),
            data_arm=arm,
        )
        for arm, title in ARMS.items()
    ]
    heads = ("next attempt", "stored", "same seed", f"{rerun.samples} other seeds")
    head = el(
        "thead",
        el("tr", [el("th", item, class_="rl-num" if item == heads[-1] else None, scope="col") for item in heads]),
    )
    return el("table.rl-table.tx-card-table", head, el("tbody", rows))


def _survival(rerun: RedactedRerun) -> str:
    original, redacted = (rerun.same_seed[arm] for arm in ARMS)
    text = SURVIVAL[original, redacted]
    if rerun.stored is not None and rerun.stored != original:
        text += " The rerun differs from the stored attempt, which another checkpoint, backend or version sampled."
    return text


# -- what the teacher saw --------------------------------------------------------------------------------------------
def prompt_view(turn: int, prompt: TeacherPrompt | None) -> list[Node]:
    """Return the button that shows or hides the teacher's prompt, and the prompt if it is known."""
    text = "What the teacher saw" if prompt is None else "Hide what the teacher saw"
    button = action(text, "prompt", style="rl-small rl-quiet dv-prompt", turn=turn)
    if prompt is None:
        return [el("div", button)]
    messages: list[Node] = []
    for message in prompt.messages:
        role = message["role"]
        messages += [el("span.rl-muted.rl-small", role), text_block(message["content"], label=f"{role} message")]
    notes = [el("p.rl-muted.rl-small", note) for note in prompt.notes]
    return [
        el("div", button),
        el("div.rl-stack.dv-saw", messages, notes, role="group", aria_label="what the teacher saw"),
    ]
