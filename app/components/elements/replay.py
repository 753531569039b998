"""One dialogue turn by turn, and the dialogues of a group side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from app.common.urls import page_url
from app.components.elements.leak_trust import Trust, flag_views, prompt_view
from app.components.elements.transcript import (
    LABEL_TEXTS,
    chip,
    fact,
    finding_lines,
    foldable,
    hint_marks,
    hint_origin,
    hint_value_chip,
    information_chips,
    inline,
    label_chip,
    leak_flag,
    observation_block,
    reflection_block,
    separated,
    shows_hint,
    sign,
    signed,
    signs,
    text_block,
    token_view,
    transcript_text,
    word_diff,
)
from app.components.nodes import Element, Node, action, el, time_ago
from app.endpoints.dialogues import DialogueWithSiblings, PrivilegedData, Sibling, TurnTokens
from app.endpoints.transcript import DialogueDetail, HintDetail, Reprompt, TurnDetail
from jobs.db.dialogue_models import DialogueSummary
from jobs.db.models import NoteSummary
from rl2f_core.common.text.decimals import decimal

STOP_REASONS = {
    "solved": "solved",
    "exhausted": "all turns used",
    "ended": "the environment ended the episode",
    "context_full": "context full",
    "dropped": "dropped for a leak",
    "failed": "failed",
}
LABEL_KEYS = {"leak": "1", "no_leak": "2", "unsure": "3"}
MAX_COPIED_CHARS = 50_000
TOKENS = "tokens and their log-probabilities (t)"
NO_REPROMPT = (
    "The text of this prompt is not available: its template is not installed, or has changed since. It shows the task, "
    "the attempt and the hint above, and nothing before them."
)


@dataclass(frozen=True)
class ReplayState(Trust):
    """What is shown of a dialogue."""

    turn: int = 0
    """The turn that is current at first; afterwards `ReplayKeys` alone decides which one is."""
    tokens: TurnTokens | None = None
    token_turn: int | None = None
    """The turn whose tokens are shown."""
    privileged: PrivilegedData | None = None
    """The gold answer, if it is shown."""
    annotator: str = ""
    """Whose label the buttons show."""
    read_only: bool = False
    """Hints cannot be labeled, and notes cannot be deleted."""


# -- one dialogue ----------------------------------------------------------------------------------------------------
def replay(dialogue: DialogueWithSiblings, state: ReplayState = ReplayState()) -> Element:
    """Return a dialogue with its turns."""
    turns, privileged = dialogue.turns, state.privileged
    details = privileged.details if privileged else [""] * len(turns)
    cards = [_turn(dialogue, turn, state, detail) for turn, detail in zip(turns, details, strict=False)]
    nothing = el("p.rl-muted", "The dialogue ended before the first attempt.")
    error = dialogue.error
    return el(
        "div.dv",
        _heading(dialogue),
        task_section(dialogue, state),
        el("div.dv-turns", cards or nothing),
        el("div.dv-end", el("span.dv-who", el("span.rl-wrong", "✗ "), "Error"), text_block(error, label="error"))
        if error is not None
        else None,
        _notes(dialogue.notes, state.read_only),
        data_key=f"{dialogue.run_id} {dialogue.event_id}",
        data_turn=state.turn,
    )


def _heading(dialogue: DialogueWithSiblings) -> Element:
    phase, condition = dialogue.phase, dialogue.condition
    place = dialogue.checkpoint or f"{dialogue.stage} step {dialogue.step}"
    shown = (condition or "").replace("_", " ") if phase == "distill" else condition
    text = transcript_text(dialogue)
    return el(
        "header.dv-head",
        el(
            "div.rl-row.dv-title",
            signs(dialogue.outcomes),
            el("h2.rl-title.rl-grow", inline(dialogue.dialogue_id, 90)),
            copy_link(),
            action("Copy text", "copy", style="rl-small rl-quiet", text=text)
            if len(text) <= MAX_COPIED_CHARS
            else None,
        ),
        el(
            "div.rl-row",
            el(
                "a",
                f"run {dialogue.run_id} · ",
                inline(dialogue.run_name, 40),
                href=page_url("run", run=dialogue.run_id),
            ),
            chip(phase, " · ", inline(place, 60)),
            chip("condition ", inline(shown, 40)) if shown else None,
            chip(inline(dialogue.environment, 40), " · ", inline(dialogue.level, 40)),
            chip(inline(dialogue.task, 60), title="task"),
            chip(inline(dialogue.policy, 40), title="sampling checkpoint"),
        ),
        el(
            "div.rl-row",
            fact("reward", decimal(dialogue.reward), "return: sum of the turns' rewards"),
            fact("advantage", signed(dialogue.advantage), "mean over the turns that have one"),
            fact("ended", STOP_REASONS.get(dialogue.stop_reason, dialogue.stop_reason)),
            fact("seed", str(dialogue.seed)),
            _group_button(dialogue.siblings),
        ),
        data_show=f"{dialogue.run_id} {dialogue.event_id}",
    )


def copy_link() -> Element:
    title = "copy a link to what is shown (c)"
    return action("Copy link", "copy", style="rl-small dv-copy", title=title)


def _group_button(siblings: Sequence[Sibling]) -> Element | None:
    if len(siblings) < 2:
        return None
    text = f"group of {len(siblings)} ({group_kind(siblings)})"
    return action(text, "group", style="rl-small rl-quiet dv-group")


def group_kind(group: Sequence[Sibling | DialogueDetail]) -> str:
    """Return `all correct`, `all incorrect` or `mixed: 3 correct`; dialogues without a verdict do not count."""
    solved = [member.solved_at is not None for member in group if not member.outcomes.endswith("-")]
    if sum(solved) in (0, len(solved)):
        return "no verdict" if not solved else "all correct" if solved[0] else "all incorrect"
    return f"mixed: {sum(solved)} correct"


def task_section(dialogue: DialogueDetail, state: ReplayState) -> Element:
    """Return the prompt of a dialogue's task, and its gold answer if it is shown."""
    prompt, privileged = dialogue.prompt, state.privileged
    missing = el("span.rl-muted.rl-small", "as data: environment not available here")
    hidden = action("▸ Show gold answer (a)", "reveal", style="rl-small rl-quiet dv-reveal")
    return el(
        "section.dv-task",
        el("div.rl-row", el("h3.dv-who", "Task"), None if prompt.rendered else missing),
        text_block(prompt.text, label="task"),
        foldable("system", "System message", text_block(prompt.system, label="system message"))
        if prompt.system
        else None,
        _answer(privileged) if privileged else hidden,
        aria_label="task",
    )


def _answer(privileged: PrivilegedData) -> Element:
    gold = privileged.gold_answer
    data = json.dumps(privileged.privileged, ensure_ascii=False, indent=2)
    return el(
        "div.dv-answer",
        el(
            "div.rl-row",
            el("span.dv-who", "Gold answer"),
            action("Hide (a)", "reveal", style="rl-small rl-quiet dv-reveal"),
        ),
        el("span.rl-muted", "environment not available here")
        if gold is None
        else text_block(gold, label="gold answer"),
        foldable("privileged", "All data that the student never sees", text_block(data, label="privileged data")),
    )


# -- turn ------------------------------------------------------------------------------------------------------------
def _turn(dialogue: DialogueDetail, turn: TurnDetail, state: ReplayState, detail: str) -> Element:
    index = turn.index
    previous = dialogue.turns[index - 1] if index else None
    next_turn = dialogue.turns[index + 1] if index + 1 < len(dialogue.turns) else None
    hint = turn.hint
    return el(
        "article.dv-turn",
        _turn_line(dialogue, turn, previous),
        _reprompt(turn.reprompt, index) if turn.reprompt else None,
        reflection_block(turn),
        text_block(turn.attempt, "student", f"attempt {index + 1}"),
        el(
            "div.dv-under",
            word_diff(turn.changes),
            _terms(turn) if turn.rewards else None,
            chip("cut off at the token limit") if turn.finish_reason == "length" else None,
        ),
        el("p.rl-small.rl-muted.dv-detail", "verifier: ", inline(detail, 400)) if detail else None,
        token_view(state.tokens) if index == state.token_turn and state.tokens else None,
        observation_block(turn),
        _hint(hint, dialogue.run_id, turn, state, next_turn.bits_used if next_turn else None)
        if shows_hint(turn) and hint
        else None,
        aria_label=f"turn {index + 1}",
        data_turn=index,
        data_action="turn",
    )


def _turn_line(dialogue: DialogueDetail, turn: TurnDetail, previous: TurnDetail | None) -> Element:
    index, parsed = turn.index, turn.parsed
    before = previous.parsed if previous else None
    moved: Element | None = None
    if before is not None and before == parsed:
        moved = chip("repeats", title="same answer as before")
    elif before is not None and parsed is not None:
        title = "the answer changed"
        moved = chip(inline(before, 24), " → ", inline(parsed, 24), title=title, class_="dv-moved")
    fork = page_url("fork", run=dialogue.run_id, dialogue=dialogue.event_id, turn=index)
    return el(
        "div.dv-line",
        el("span.dv-number", str(index + 1)),
        el("span.dv-who.rl-student", "Source" if dialogue.phase == "distill" else "Student"),
        verdict(turn),
        moved,
        el("span.rl-grow"),
        fact("r", decimal(turn.total_reward), f"reward = {_terms_text(turn)}"),
        fact("A", signed(turn.advantage), "advantage"),
        None
        if turn.correct or turn.done
        else el("a.rl-button.rl-small.rl-quiet.dv-fork", "fork", href=fork, title="try another hint here (f)"),
        action(f"{turn.token_count} tok", "tokens", style="rl-small rl-quiet rl-num dv-tok", title=TOKENS, turn=index)
        if turn.token_count
        else el("span.rl-muted.rl-small", "no tokens", title="The tokens of this attempt are not stored."),
    )


def verdict(turn: TurnDetail) -> Element:
    """Return the sign of an attempt and its parsed answer."""
    parsed = turn.parsed
    answer: list[Node] = [el("span.rl-muted", "no verdict" if turn.outcome == "-" else "no answer found")]
    if parsed is not None:
        answer = [el("span.rl-muted", "parsed "), inline(parsed)]
    return el("span.dv-verdict", sign(turn.outcome), answer)


def _terms_text(turn: TurnDetail) -> str:
    return " + ".join(f"{term.name} {term.score}×{term.weight}" for term in turn.rewards) or "no terms"


def _terms(turn: TurnDetail) -> Element:
    shown: list[Node] = []
    for term in turn.rewards:
        weight = None if term.weight == 1 else el("span.rl-muted", f" × {decimal(term.weight, 1)}")
        shown.append(el("span.dv-term", inline(term.name, 30), f" {decimal(term.score)}", weight))
    return el("span.dv-terms", shown, title="terms of the reward: score × weight")


def _reprompt(reprompt: Reprompt, index: int) -> Element:
    text = reprompt.text
    content = [el("p.rl-muted.rl-small", NO_REPROMPT)]
    if text is not None:
        content = [
            el("p.rl-muted.rl-small", "The student read only this before the attempt."),
            text_block(text, label=f"reprompt {index + 1}"),
        ]
    summary = el("span", "reprompted with ", el("span.rl-mono", reprompt.prompt_template))
    return foldable("reprompt", summary, *content)


def _hint(hint: HintDetail, run: int, turn: TurnDetail, state: ReplayState, used: float | None) -> Element:
    index, feedback, read = turn.index, hint.feedback, hint.text
    changed = hint.text != hint.feedback
    source, values = hint.source_task, hint.hint_values
    return el(
        "div.dv-hint",
        el(
            "div.dv-line",
            el("span.dv-who.rl-teacher", "Teacher"),
            el("span.rl-muted.rl-small", inline(hint.teacher, 40)),
            chip("for ", inline(source, 40), title="written for another task") if source else None,
            chip("original") if changed else None,
            el("span.rl-grow"),
            information_chips(hint, used),
            hint_value_chip(values, page_url("run", run=values[0].run_id)) if values else None,
            [label_chip(label) for label in hint.labels],
        ),
        text_block(
            feedback,
            "teacher",
            f"hint {index + 1}",
            hint_marks(hint.findings, hint.labels),
            select=str(index),
        ),
        hint_origin(hint),
        finding_lines(hint),
        flag_views(hint, run, index, state, can_rerun=not (changed or turn.done or state.read_only)),
        _as_read(read) if changed else None,
        prompt_view(index, state.prompts.get(index)) if hint.teacher else None,
        label_bar(hint, state) if not state.read_only else None,
    )


def _as_read(read: str) -> list[Node]:
    text = "what the student read" if read else "the student read nothing"
    title = el("span.rl-muted.rl-small", text)
    return [title, text_block(read, "teacher", text) if read else None]


def label_bar(hint: HintDetail, state: ReplayState) -> Element:
    """Return the buttons and fields that label a hint. Without an annotator the buttons focus the field of the name."""
    mine = next((label for label in hint.labels if label.annotator == state.annotator), None)
    given = mine.label if mine else None
    return el(
        "div.dv-labels",
        [_label_button(label, key, label == given, bool(state.annotator)) for label, key in LABEL_KEYS.items()],
        el(
            "input.rl-field.dv-note",
            type="text",
            placeholder="why (optional)",
            aria_label="note on the label",
            maxlength=4000,
            value=mine.note if mine else "",
        ),
        el(
            "input.rl-field.dv-name",
            type="text",
            placeholder="your name",
            aria_label="annotator",
            maxlength=60,
            value=state.annotator,
            data_change="annotator",
        ),
        el(
            "span.rl-muted.rl-small.dv-tip",
            "select words in the hint to mark them" if state.annotator else "to label, type your name and press Enter",
        ),
        role="group",
        aria_label="label of the hint",
    )


def _label_button(label: str, key: str, given: bool, named: bool) -> Element:
    return el(
        "button",
        el("kbd", key),
        LABEL_TEXTS[label],
        class_=f"rl-button rl-small dv-label {'rl-primary' if given else ''}".strip(),
        aria_pressed="true" if given else "false",
        data_action="label",
        data_label=label,
        data_focus=None if named else ".dv-turn[data-current] .dv-name",
    )


# -- notes -----------------------------------------------------------------------------------------------------------
def _notes(notes: Sequence[NoteSummary], read_only: bool) -> Element | None:
    if not notes:
        return None
    return el("section.dv-notes", el("h3.dv-who", "Notes"), [_note(note, read_only) for note in notes])


def _note(note: NoteSummary, read_only: bool) -> Element:
    place = "dialogue" if note.turn is None else f"turn {note.turn + 1}"
    parts: list[Node] = [place, inline(note.author, 40) if note.author else None, time_ago(note.time)]
    confirm = f"Delete this note? {note.text[:200]}"
    delete = action("×", "delete-note", style="rl-icon", title="delete the note", note=note.id, confirm=confirm)
    shown = [part for part in parts if part is not None]
    return el(
        "div.dv-note-row",
        el("div.rl-row.rl-small.rl-muted", separated(shown, " · "), el("span.rl-grow"), None if read_only else delete),
        text_block(note.text, label="note"),
        data_key=f"note{note.id}",
    )


# -- group -----------------------------------------------------------------------------------------------------------
def group_view(dialogues: Sequence[DialogueDetail], selected: str) -> Element:
    """Return the dialogues of a group side by side: one column each, turns in line.

    Args:
        dialogues: The dialogues of the group.
        selected: Event id of the selected dialogue.
    """
    rewards = [dialogue.reward for dialogue in dialogues if dialogue.reward is not None]
    correct = sum(dialogue.solved_at is not None for dialogue in dialogues)
    verified = sum(not dialogue.outcomes.endswith("-") for dialogue in dialogues)
    longest = max((len(dialogue.turns) for dialogue in dialogues), default=0)
    first = dialogues[0]
    return el(
        "div.dv.gv",
        el(
            "div.rl-row.dv-title",
            el("h2.rl-title", f"Group of {len(dialogues)}"),
            el("span.rl-muted", inline(first.task, 80)),
            el("span.rl-grow"),
            fact("mean reward", decimal(sum(rewards) / len(rewards) if rewards else None)),
            fact("correct", f"{correct} of {verified}"),
            copy_link(),
            action("Back to the dialogue (v)", "group", style="rl-small dv-group"),
        ),
        el("details.dv-more", el("summary", "Task"), text_block(first.prompt.text, label="task")),
        el(
            "div.rl-scroll.gv-scroll",
            el(
                "div.gv-grid",
                [_group_head(dialogue, dialogue.event_id == selected) for dialogue in dialogues],
                [_group_cell(dialogue, index) for index in range(longest) for dialogue in dialogues],
                style=f"--columns: {len(dialogues)}",
            ),
            tabindex=0,
            role="region",
            aria_label="group side by side",
        ),
        data_key=f"group {selected}",
    )


def _group_head(dialogue: DialogueSummary, current: bool) -> Element:
    return el(
        "button.gv-head",
        el(
            "span.rl-row",
            el("b.rl-num", f"#{dialogue.index + 1}"),
            signs(dialogue.outcomes),
            leak_flag(dialogue.leak_state),
        ),
        el("span.rl-row.rl-num", fact("reward", decimal(dialogue.reward)), fact("A", signed(dialogue.advantage))),
        aria_current="true" if current else None,
        data_show=dialogue.event_id if current else None,
        data_action="open",
        data_run=dialogue.run_id,
        data_event=dialogue.event_id,
    )


def _group_cell(dialogue: DialogueDetail, index: int) -> Element:
    if index >= len(dialogue.turns):
        return el("div.gv-cell.gv-none")
    turn, column = dialogue.turns[index], dialogue.index + 1
    hint, parsed = turn.hint, turn.parsed
    missing = "no verdict" if turn.outcome == "-" else "no answer"
    answer = el("span.rl-muted", missing) if parsed is None else inline(parsed, 30)
    return el(
        "div.gv-cell",
        el(
            "div.rl-row.rl-small",
            sign(turn.outcome),
            answer,
            el("span.rl-grow"),
            fact("r", decimal(turn.total_reward)),
            fact("A", signed(turn.advantage)),
        ),
        text_block(turn.attempt, "student", f"attempt {index + 1} of {column}"),
        text_block(hint.text, "teacher", f"hint {index + 1} of {column}") if hint else None,
        el("span.rl-leak.rl-small", "⚑ leak") if hint and hint.leak_found else None,
    )
