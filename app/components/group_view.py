"""The dialogues of a group side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.components.nodes import Element, action, el
from app.components.replay import copy_link
from app.components.transcript import fact, fixed, inline, sign, signed, signs, text_block

if TYPE_CHECKING:
    from app.endpoints.transcript import DialogueDetail, DialogueRow

LEAKED = 2


def group_view(dialogues: Sequence[DialogueDetail], selected: str) -> Element:
    """Return the dialogues of a group side by side: one column each, turns in line.

    Args:
        dialogues: The dialogues of the group.
        selected: Event id of the selected dialogue.
    """
    rewards = [each["reward"] for each in dialogues]
    solved = [each["solved_at"] for each in dialogues]
    correct = sum(each is not None for each in solved)
    longest = max((len(each["turns"]) for each in dialogues), default=0)
    first = dialogues[0]
    return el(
        "div",
        el(
            "div",
            el("h2", f"Group of {len(dialogues)}", class_="rl-title"),
            el("span", inline(first["task"], 80), class_="rl-muted"),
            el("span", class_="rl-grow"),
            fact("mean reward", fixed(sum(rewards) / len(rewards))),
            fact("correct", f"{correct} of {len(dialogues)}"),
            copy_link(),
            action("Back to the dialogue (v)", "group", style="rl-small dv-group"),
            class_="rl-row dv-title",
        ),
        el("details", el("summary", "Task"), text_block(first["prompt"]["text"], label="task"), class_="dv-more"),
        el(
            "div",
            el(
                "div",
                [_group_head(each, each["event_id"] == selected) for each in dialogues],
                [_group_cell(each, index) for index in range(longest) for each in dialogues],
                class_="gv-grid",
                style=f"--columns: {len(dialogues)}",
            ),
            class_="rl-scroll gv-scroll",
            tabindex=0,
            role="region",
            aria_label="group side by side",
        ),
        class_="dv gv",
        data_key=f"group {selected}",
    )


def _group_head(dialogue: DialogueRow, current: bool) -> Element:
    leak = el("span", "⚑", class_="rl-leak", title="a hint leaked") if dialogue["leak_state"] == LEAKED else None
    return el(
        "button",
        el(
            "span",
            el("b", f"#{dialogue['index'] + 1}", class_="rl-num"),
            signs(dialogue["outcomes"]),
            leak,
            class_="rl-row",
        ),
        el(
            "span",
            fact("reward", fixed(dialogue["reward"])),
            fact("A", signed(dialogue["advantage"])),
            class_="rl-row rl-num",
        ),
        type="button",
        class_="gv-head",
        aria_current="true" if current else None,
        data_show=dialogue["event_id"] if current else None,
        data_action="open",
        data_run=dialogue["run"],
        data_event=dialogue["event_id"],
    )


def _group_cell(dialogue: DialogueDetail, index: int) -> Element:
    if index >= len(dialogue["turns"]):
        return el("div", class_="gv-cell gv-none")
    turn, column = dialogue["turns"][index], dialogue["index"] + 1
    hint, parsed = turn["hint"], turn["parsed"]
    answer = el("span", "no answer", class_="rl-muted") if parsed is None else inline(parsed, 30)
    return el(
        "div",
        el(
            "div",
            sign(turn["outcome"]),
            answer,
            el("span", class_="rl-grow"),
            fact("r", fixed(turn["reward"])),
            fact("A", signed(turn["advantage"])),
            class_="rl-row rl-small",
        ),
        text_block(turn["attempt"], "student", f"attempt {index + 1} of {column}"),
        text_block(hint["hint"], "teacher", f"hint {index + 1} of {column}") if hint else None,
        el("span", "⚑ leak", class_="rl-leak rl-small") if hint and hint["leak_found"] else None,
        class_="gv-cell",
    )
