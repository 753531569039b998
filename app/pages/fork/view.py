"""Elements of the page Fork: the dialogue before, the form's notes and earlier forks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.common.quantities import plural
from app.common.urls import page_url
from app.components.elements.replay import verdict
from app.components.elements.transcript import (
    finding_lines,
    inline,
    observation_block,
    reflection_block,
    shows_hint,
    signs,
    text_block,
)
from app.components.nodes import Element, Node, action, badge, el, empty, time_ago
from app.endpoints.fork import CheckpointChoice, EarlierFork, ForkPreview, HintScreening
from app.endpoints.transcript import DialogueDetail, HintDetail, TurnDetail
from rl2f_core.common.text.decimals import decimal

NAMES = {"original": "original hint"}
DESCRIPTIONS = {
    "original": "what the student read then",
    "edited": "your own text, below",
    "empty": "an empty message",
    "contentless": "“That is not correct. Try again.”",
    "shuffled": "the hint of another task",
    "misleading": "a hint that points away",
    "teacher": "another teacher's message",
    "redacted": "the flagged span is masked",
}


def arm_name(arm: str) -> str:
    """Return the name of an arm."""
    return NAMES.get(arm, arm)


# -- the dialogue --------------------------------------------------------------------------------------------------
def no_subject() -> Element:
    """Return how a fork is opened."""
    return empty(
        "What if the hint had been different?",
        "Open a dialogue, go to an incorrect attempt with j and k, and press f: the dialogue continues from there "
        "under other hints, as often as you like. The original remains unchanged.",
        el("a.rl-button.rl-primary", "Dialogues", href="/dialogues"),
    )


def not_found(text: str) -> Element:
    """Return why a fork or a dialogue cannot be shown."""
    return empty(text, el("a.rl-button", "All dialogues", href="/dialogues"), role="alert")


def heading(dialogue: DialogueDetail, turn: int, *, is_open: bool) -> list[Node]:
    """Return the title with links, the dialogue up to a turn, and why it cannot be forked there."""
    run = dialogue.run_id
    back = page_url("dialogues", run=run, dialogue=dialogue.event_id, turn=turn)
    name = inline(dialogue.dialogue_id, 60)
    title = el(
        "div.rl-head",
        el("h1.rl-title", "Fork"),
        el("a.rl-chip.fk-back", name, f" · turn {turn + 1}", href=back, title="back to the dialogue (b)"),
        el("a.rl-chip", f"run {run} · ", inline(dialogue.run_name, 40), href=page_url("run", run=run)),
        signs(dialogue.outcomes),
    )
    task = text_block(dialogue.prompt.text, label="task")
    turns = [turn_view(item) for item in dialogue.turns[: turn + 1]]
    summary = el("summary", f"Task and {f'the {turn + 1} attempts' if turn else 'the attempt'} up to here")
    before = el("details.rl-card.fk-before", summary, el("div.rl-stack", task, *turns), open=is_open)
    return [title, before, blocked_notice(dialogue, turn)]


def turn_view(turn: TurnDetail, *, hint_only: bool = False) -> list[Node]:
    """Return an attempt, its observation and its hint, or only the hint."""
    number, hint, parts = turn.index + 1, turn.hint, list[Node]()
    if not hint_only:
        reward = el("span.rl-num.rl-muted", f"r {decimal(turn.total_reward)}")
        head = el("div.rl-row.rl-small", el("b.rl-student", f"Student, turn {number}"), verdict(turn), reward)
        reflection = reflection_block(turn)
        parts += [reflection] if reflection else []
        parts.append(el("div.fk-turn", head, text_block(turn.attempt, "student", f"attempt {number}")))
        observation = observation_block(turn)
        parts += [observation] if observation else []
    if hint is not None and shows_hint(turn):
        title, text = el("b.rl-teacher.rl-small", f"Teacher, turn {number}"), hint.text
        parts.append(el("div.fk-turn", title, text_block(text, "teacher", f"hint {number}"), finding_lines(hint)))
    return parts


def blocked_reason(dialogue: DialogueDetail, turn: int) -> str:
    """Return why a dialogue cannot be forked at a turn; empty if it can."""
    if not 0 <= turn < len(dialogue.turns):
        return "The dialogue has no such turn."
    if dialogue.turns[turn].correct:
        return "This attempt is correct, so it has no hint: fork at an incorrect one."
    if dialogue.turns[turn].done:
        return "The episode ended at this turn: fork at an earlier one."
    return ""


def blocked_notice(dialogue: DialogueDetail, turn: int) -> Element | None:
    """Return why a dialogue cannot be forked here, with a link to the turn before; None if it can."""
    reason = blocked_reason(dialogue, turn)
    if not reason:
        return None
    before = page_url("fork", run=dialogue.run_id, dialogue=dialogue.event_id, turn=turn - 1)
    link = el("a", "Previous turn", href=before) if turn > 0 else None
    return el("p.rl-wrong", reason, " " if link else None, link, role="alert")


# -- form ----------------------------------------------------------------------------------------------------------
def checkpoint_choices(checkpoints: Sequence[CheckpointChoice], run: int) -> list[tuple[str, str]]:
    """Return title and label of the checkpoints; those of the run without its number."""
    own = f"{run}:"
    return [
        (item.label.removeprefix(own) if item.label.startswith(own) else f"{item.label} · {item.note}",
         item.label)
        for item in checkpoints
    ]  # fmt: skip


def arm_choices(hints: Sequence[str], has_hint: bool) -> list[tuple[str, str]]:
    """Return title and name of the arms, numbered as their keys."""
    about = {**DESCRIPTIONS, "original": DESCRIPTIONS["original"] if has_hint else "this attempt has no hint"}
    return [(f"{i} {arm_name(hint)}: {about.get(hint, '')}", hint) for i, hint in enumerate(hints, 1)]


def run_bar(dialogues: int, arms: Collection[str], *, is_ready: bool, writable: bool) -> list[Node]:
    """Return how many dialogues a fork samples, and the buttons that preview and start it."""
    text = f"{dialogues:,} dialogues; sample j of every hint has the same seed."
    if "contentless" not in arms:
        text += " Without contentless there are no differences."
    can_start = is_ready and writable
    return [
        el("p.rl-small.rl-muted", text if writable else "Read-only server.", aria_live="polite"),
        el(
            "div.rl-row",
            el("button.rl-button", "Preview", id="fork-preview", data_action="preview", disabled=not is_ready),
            el(
                "button.rl-button.rl-primary",
                "Start fork",
                id="fork-start",
                data_action="start",
                disabled=not can_start,
            ),
        ),
    ]


def preview(found: ForkPreview, original: HintDetail | None, text: str, screened: HintScreening | None) -> Element:
    """Return what a fork would sample, its configuration, and the leak reports on its fixed hints."""
    factors = (len(found.arms), "hint"), (len(found.checkpoints), "checkpoint")
    parts = [plural(count, name) for count, name in factors]
    samples = found.dialogues // max(1, len(found.arms) * len(found.checkpoints))
    stored = el("div.rl-row", el("span.rl-muted", "Original hint:"), finding_lines(original)) if original else None
    return el(
        "div.rl-stack.rl-small",
        el("p.rl-num", f"{found.dialogues:,} dialogues: {' × '.join(parts)} × {samples} samples"),
        stored,
        screening_note(text, screened) if screened else None,
        el(
            "details.fk-config",
            el("summary", "Configuration"),
            text_block(found.config, label="configuration"),
            action("Copy", "copy", style="rl-small", text=found.config),
            open=True,
        ),
        aria_live="polite",
    )


def screening_note(text: str, found: HintScreening) -> Element:
    """Return the leak report on the edited hint."""
    if not found.detectors:
        return el("p.rl-muted", "Edited hint: not checked, no detector without a model is configured.")
    if not found.leaked:
        return el("p", f"✓ Edited hint: no leak found ({', '.join(found.detectors)}).")
    evidence = found.evidence or ("" if found.start is None else text[found.start : found.end])
    fraction = f" · {found.answer_fraction:.0%} of the answer" if found.answer_fraction else ""
    return el("p.rl-leak", f"⚑ Edited hint: {found.detector} leak: ", inline(evidence, 160), fraction, role="alert")


def earlier_forks(forks: Sequence[EarlierFork], run: int, event_id: str, current: int | None) -> Element | None:
    """Return links to the forks of the dialogue; None without any."""
    if not forks:
        return None
    rows = []
    for fork in forks:
        arms = ", ".join(map(arm_name, fork.arms))
        row = el(
            "a.fk-past",
            el("b", str(fork.run)),
            badge(fork.status),
            el("span", f"turn {fork.turn + 1}"),
            el("span.rl-muted.rl-cut.rl-grow", f"{', '.join(fork.checkpoints)} × {arms} × {fork.samples}"),
            time_ago(fork.created),
            aria_current="true" if fork.run == current else None,
            href=page_url("fork", run=run, dialogue=event_id, turn=fork.turn, fork=fork.run),
            data_key=str(fork.run),
        )
        rows.append(row)
    return el("section.rl-card.fk-earlier", el("h2", "Forks of this dialogue"), rows, aria_label="earlier forks")
