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
        "div.dv.gv",
        el(
            "div.rl-row.dv-title",
            el("h2.rl-title", f"Group of {len(dialogues)}"),
            el("span.rl-muted", inline(first["task"], 80)),
            el("span.rl-grow"),
            fact("mean reward", fixed(sum(rewards) / len(rewards))),
            fact("correct", f"{correct} of {len(dialogues)}"),
            copy_link(),
            action("Back to the dialogue (v)", "group", style="rl-small dv-group"),
        ),
        el("details.dv-more", el("summary", "Task"), text_block(first["prompt"]["text"], label="task")),
        el(
            "div.rl-scroll.gv-scroll",
            el(
                "div.gv-grid",
                [_group_head(each, each["event_id"] == selected) for each in dialogues],
                [_group_cell(each, index) for index in range(longest) for each in dialogues],
                style=f"--columns: {len(dialogues)}",
            ),
            tabindex=0,
            role="region",
            aria_label="group side by side",
        ),
        data_key=f"group {selected}",
    )


def _group_head(dialogue: DialogueRow, current: bool) -> Element:
    leak = el("span.rl-leak", "⚑", title="a hint leaked") if dialogue["leak_state"] == LEAKED else None
    return el(
        "button.gv-head",
        el("span.rl-row", el("b.rl-num", f"#{dialogue['index'] + 1}"), signs(dialogue["outcomes"]), leak),
        el("span.rl-row.rl-num", fact("reward", fixed(dialogue["reward"])), fact("A", signed(dialogue["advantage"]))),
        aria_current="true" if current else None,
        data_show=dialogue["event_id"] if current else None,
        data_action="open",
        data_run=dialogue["run"],
        data_event=dialogue["event_id"],
    )


def _group_cell(dialogue: DialogueDetail, index: int) -> Element:
    if index >= len(dialogue["turns"]):
        return el("div.gv-cell.gv-none")
    turn, column = dialogue["turns"][index], dialogue["index"] + 1
    hint, parsed = turn["hint"], turn["parsed"]
    answer = el("span.rl-muted", "no answer") if parsed is None else inline(parsed, 30)
    return el(
        "div.gv-cell",
        el(
            "div.rl-row.rl-small",
            sign(turn["outcome"]),
            answer,
            el("span.rl-grow"),
            fact("r", fixed(turn["reward"])),
            fact("A", signed(turn["advantage"])),
        ),
        text_block(turn["attempt"], "student", f"attempt {index + 1} of {column}"),
        text_block(hint["hint"], "teacher", f"hint {index + 1} of {column}") if hint else None,
        el("span.rl-leak.rl-small", "⚑ leak") if hint and hint["leak_found"] else None,
    )
